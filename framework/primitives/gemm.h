#pragma once
#include "framework/core/device.h"
#include "framework/primitives/gradient_target.h"

namespace furlong::ops {

enum class ActivationKind : std::uint8_t;  // framework/primitives/activation_kind.h

/// What is done to a product before it is stored, and what else its operands are read for.
struct GemmEpilogue {
  enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh, silu };
  const Tensor* bias = nullptr;  ///< [columns of c], c's dtype or float32
  Activation activation = Activation::none;
  /// [rows, columns of c], c's dtype, rows contiguous, memory of its own. Gets product + bias, the value that the
  /// activation is taken of; with `activation_gradient` it is what an earlier product put there, and is read.
  const Tensor* auxiliary = nullptr;
  /// c = (op(a) · op(b)) ⊙ f'(auxiliary), f being `activation`: the gradient at what f was taken of, where the product
  /// is that of f's value. Without bias.
  bool activation_gradient = false;
  /// [rows of c] gets the sums of op(a) over the inner dimension: with a = d_y, transposed, the gradient of the bias
  /// beside that of the weight. Any mode, whatever c's; a must be transposed, and nothing else may be asked for.
  GradientTarget bias_gradient = {};

  /// Whether more is asked for than one result of product, bias and activation.
  bool is_composite() const { return auxiliary != nullptr || bias_gradient.wanted(); }
};

/// The activation of that name.
GemmEpilogue::Activation epilogue_activation(ActivationKind kind);

/// c = op(a) · op(b), or c += op(a) · op(b) when `mode` accumulates; then the epilogue (bias and activations with
/// overwrite only). Matrices [rows, columns], rows contiguous, any row stride; op transposes. a and b share a dtype; c
/// is that dtype or wider (bfloat16 products may be stored as float32). Sums are kept in float32 (float64 for float64).
/// On one CPU the same operands, strides and number of threads give the same bits; in float64 the last two do not
/// matter (oneDNN chooses its code by shapes and both, and may share sums among threads). On CUDA the same operands,
/// strides and alignment of addresses do (cuBLASLt chooses by these). With an auxiliary, what comes out is what
/// separate ops give, bit for bit, save on CUDA for gelu_tanh in bfloat16, where cuBLASLt's own epilogue works on
/// float32 sums that have not been rounded. stream.products says how float32 is multiplied. Throws ContractError on
/// shapes that do not fit.
void gemm(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
          GradientMode mode, const GemmEpilogue& epilogue = {});

/// Target (overwrite or accumulate) [n] gets the sum over the rows of `matrix` [rows, n], in fixed blocks of rows: the
/// same for any number of threads.
void column_sum(const Stream& stream, const Tensor& matrix, const GradientTarget& target);

}  // namespace furlong::ops
