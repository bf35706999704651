#pragma once
#include <cstdint>
#include <vector>

#include "framework/autodiff/tape.h"
#include "framework/ops/attention/positions/rotary_scaling.h"

namespace furlong::ops {

/// Cosines and sines of the rotary angles, computed in double precision.
///
/// Row p is position p: table[p, 0, i] = f cos(p θ_i), table[p, 1, i] = f sin(p θ_i). θ_i = base^(-2i / d_head), scaled
/// as in rotary_frequencies(); f = rotary_attention_factor(), which is 1 except for yarn.
///
/// The main cache covers positions from 0 on. It serves requests that start at 0 and requests that end at or before
/// `max_cached`. It doubles when it grows, up to `max_cached`, so a steady training step or a generated token computes
/// nothing. A longer request from 0 grows it to the request's length. On a GPU it doubles without that limit, and
/// replaced tables stay allocated for recorded steps (CUDA graphs).
///
/// A request that starts above 0 and ends beyond `max_cached` is served by a second cache. It covers max(n, min_window)
/// positions from there. A request outside it replaces it, so memory stays bounded while a text is continued without
/// end. One table serves all layers of a model. Not thread-safe.
class RotaryTable {
 public:
  static constexpr std::int64_t max_cached = 65536;  ///< positions of the cache that starts at position 0
  static constexpr std::int64_t min_window = 4096;   ///< least number of positions that are cached beyond max_cached

  /// Throws ContractError if d_head is not even and positive, if base <= 0, or if rotary_frequencies() throws.
  RotaryTable(std::int64_t d_head, double base, const RotaryScaling& scaling = {});

  std::int64_t d_head() const { return d_head_; }
  double base() const { return base_; }
  double attention_factor() const { return factor_; }
  /// Returns positions [first_position, first_position + n) as [n, 2, d_head / 2]; dtype float32 or float64. The
  /// returned view keeps its memory alive.
  Tensor get(const Stream& stream, DType dtype, std::int64_t first_position, std::int64_t n);

  /// Rows of a table, and the row index of each token.
  struct Rows {
    Tensor table;  // [rows, 2, d_head / 2]
    Tensor row;    // int32, one index per token; undefined: token t uses row t
  };
  /// Returns the rows for tokens with individual positions: int32 [batch, n], contiguous, not negative (checked on the
  /// CPU). If a position is max_cached or larger, the rows are cached until another tensor is given, because all layers
  /// of a model give the same one. On a GPU the host does not read positions: each call computes one row per token.
  Rows at(const Stream& stream, DType dtype, const Tensor& positions);

  /// Returns θ_i, float64 [d_head / 2]. Copied to a GPU once.
  const Tensor& frequencies(const Device& device);

 private:
  struct Part {
    Tensor table;
    std::int64_t first = 0;  // position of its first row
  };
  Tensor rows(const Stream& stream, DType dtype, Part& part, std::int64_t first, std::int64_t n,
              std::int64_t first_kept, std::int64_t kept);

  std::int64_t d_head_;
  double base_, factor_;
  std::vector<double> theta_;
  Tensor frequencies_;  // θ_i on the device in use
  Part main_cache_, window_cache_;
  Tensor cached_positions_;  // positions of the rows in position_cache_
  Rows position_cache_;
  std::vector<Tensor> replaced_;  // GPU tables that became too short; recorded steps (CUDA graphs) still read them
};

/// Rotary position embedding (Su et al., RoFormer, 2021, equation 34), in place. In every head of the first n_heads *
/// d_head columns of x [batch, n, columns], rotates the pair (i, i + d_head/2), the layout of Llama and GPT-NeoX, by
/// the angle (first_position + t) θ_i. Other columns are unchanged. Rows must be contiguous; a column range of a fused
/// projection is valid.
///
/// The rotation preserves each head's norm, except for the table's factor. After it, q·k depends only on the distance
/// of the positions. Feature maps break this property: linear attention depends on absolute positions.
///
/// `positions`, contiguous int32 [batch, n], gives each token its own position (first_position must be 0), for packed
/// documents (document_positions) and rows that continue from different positions. Backward rotates the gradient back,
/// also in place. Throws ContractError if x is a parameter or a Variable::leaf() (both keep their values for later
/// steps), if shape or dtype of x or positions do not match, or if d_head is not the table's.
Variable rotary(Tape& tape, const Variable& x, std::int64_t n_heads, std::int64_t d_head, std::int64_t first_position,
                RotaryTable& table, const Tensor* positions = nullptr);

}  // namespace furlong::ops
