#pragma once
#include "framework/autodiff/tape.h"
#include "framework/core/enum_names.h"

namespace furlong::ops {

/// Normalization over the last dimension. x has n columns.
enum class NormKind : std::uint8_t {
  layernorm,  ///< (x - mean(x)) / sqrt(var(x) + epsilon), var divided by n, not n - 1 (Ba, Kiros and Hinton 2016)
  rmsnorm     ///< x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019)
};
constexpr auto names_of(NormKind) { return std::array{"layernorm", "rmsnorm"}; }

/// Outputs of norm().
struct NormOutputs {
  Variable residual;  ///< residual_in + branch; residual_in itself if there is no branch
  Variable normed;    ///< norm(residual) * gain + bias
};

/// Computes the residual addition of a pre-norm block and the norm that follows, in one pass over memory. residual_in
/// and branch (null: none) are [..., d] of one dtype, contiguous; gain and bias (null: none) are [d] of any floating
/// dtype. Statistics are over the last dimension, in float32 (float64 for float64). Saves the residual and one or two
/// statistics per row. In backward residual_in and branch share one gradient without a copy. Throws ContractError if
/// shapes do not match.
NormOutputs norm(Tape& tape, const Variable& residual_in, const Variable* branch, const Variable& gain,
                 const Variable* bias, NormKind kind, double epsilon);

}  // namespace furlong::ops
