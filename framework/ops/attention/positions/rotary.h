#pragma once
#include <cstdint>
#include <vector>

#include "framework/autodiff/tape.h"
#include "framework/ops/attention/positions/rotary_scaling.h"

namespace furlong::ops {

/// Cosines and sines of the rotary angles, computed in double. Kept for all positions up to `most_kept` that were seen
/// so far (doubling as they grow, so that a steady step or a generated token makes nothing); beyond, for those around
/// the last ones asked for, so that text without end takes memory that has one. Rows are positions p: table[p, 0, i] =
/// f cos(p θ_i), table[p, 1, i] = f sin(p θ_i), θ_i = base^(-2i / d_head) as scaled (rotary_frequencies), f =
/// rotary_attention_factor, which is 1 but for yarn. One table serves all layers of a model; it is not for use by
/// several threads at once.
class RotaryTable {
 public:
  static constexpr std::int64_t most_kept = 65536, least_window = 4096;

  /// Throws ContractError unless d_head is even and positive and base > 0, and as rotary_frequencies does.
  RotaryTable(std::int64_t d_head, double base, const RotaryScaling& scaling = {});

  std::int64_t d_head() const { return d_head_; }
  double base() const { return base_; }
  double attention_factor() const { return factor_; }
  /// Positions [first_position, first_position + n) as [n, 2, d_head / 2]; dtype float32 or float64. A view, valid for
  /// as long as it is kept.
  Tensor get(const Stream& stream, DType dtype, std::int64_t first_position, std::int64_t n);

  /// Rows of a table, and for each token which one is its own.
  struct Rows {
    Tensor table;  // [rows, 2, d_head / 2]
    Tensor row;    // int32, a number for each token; undefined: one row after another
  };
  /// The same for tokens with positions of their own, int32 and none of them negative (on a CPU that is checked).
  /// Positions that lie far out get rows made for them, which are kept until other positions are asked for: the layers
  /// of a model ask with the same tensor. On a GPU, whose positions the host does not look at, each token gets a row of
  /// its own, made anew each time.
  Rows at(const Stream& stream, DType dtype, const Tensor& positions);

  /// θ_i, float64 [d_head / 2]; brought to a GPU once.
  const Tensor& frequencies(const Device& device);

 private:
  struct Part {
    Tensor table;
    std::int64_t first = 0;  // its first row's position
  };
  Tensor rows(const Stream& stream, DType dtype, Part& part, std::int64_t first, std::int64_t n,
              std::int64_t first_kept, std::int64_t kept);

  std::int64_t d_head_;
  double base_, factor_;
  std::vector<double> theta_;
  Tensor frequencies_;  // the same on the device in use
  Part beginning_, later_;
  Tensor far_positions_;  // those that far_ was made for
  Rows far_;
  std::vector<Tensor> replaced_;  // beginnings on a GPU that became too short: a recorded step goes on reading them
};

/// Rotary position embedding (Su et al., RoFormer, 2021, equation 34), in place: in every head of the first n_heads *
/// d_head columns of x [batch, n, columns] the pair (i, i + d_head/2), the layout of Llama and GPT-NeoX, is turned by
/// the angle (first_position + t) θ_i. Other columns stay; rows must be contiguous, so a column range of a fused
/// projection will do. The norm of each head is kept, but for the table's factor, and q·k after rotation depends on the
/// distance of the positions alone (but features of q and k do not: linear attention sees where it is). `positions`,
/// int32 [batch, n] (then first_position is 0), gives each token a position of its own instead, for documents that are
/// packed one after another (document_positions) and rows that go on from different places. Backward turns the gradient
/// back, in place too. Throws ContractError for a parameter or leaf, and where d_head is not the table's.
Variable rotary(Tape& tape, const Variable& x, std::int64_t n_heads, std::int64_t d_head, std::int64_t first_position,
                RotaryTable& table, const Tensor* positions = nullptr);

}  // namespace furlong::ops
