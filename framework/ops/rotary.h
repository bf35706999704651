#pragma once
#include <cstdint>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Cosines and sines of the rotary angles, computed in double and kept for all positions seen so far (doubling as they grow, so that a
/// steady step or a generated token makes nothing). Rows are positions p: table[p, 0, i] = cos(p θ_i), table[p, 1, i] = sin(p θ_i), θ_i =
/// base^(-2i / d_head). One table serves all layers of a model; it is not for use by several threads at once.
class RotaryTable {
 public:
  /// Throws ContractError unless d_head is even and positive and base > 0.
  RotaryTable(std::int64_t d_head, double base);

  std::int64_t d_head() const { return d_head_; }
  double base() const { return base_; }
  /// Positions [first_position, first_position + n) as [n, 2, d_head / 2]; dtype float32 or float64. A view, valid for as long as it is
  /// kept.
  Tensor get(const Stream& stream, DType dtype, std::int64_t first_position, std::int64_t n);

 private:
  std::int64_t d_head_;
  double base_;
  Tensor table_;
};

/// Rotary position embedding (Su et al., RoFormer, 2021, equation 34), in place: in every head of the first n_heads * d_head columns of
/// x [batch, n, columns] the pair (i, i + d_head/2), the layout of Llama and GPT-NeoX, is turned by the angle (first_position + t) θ_i.
/// Other columns stay; rows must be contiguous, so a column range of a fused projection will do. The norm of each head is kept, and q·k
/// after rotation depends on the distance of the positions alone. Backward turns the gradient back, in place too. Throws ContractError for
/// a parameter or leaf, and where d_head is not the table's.
Variable rotary(Tape& tape, const Variable& x, std::int64_t n_heads, std::int64_t d_head, std::int64_t first_position, RotaryTable& table);

}  // namespace furlong::ops
