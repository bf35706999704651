#pragma once
#include "framework/core/device.h"
#include "framework/primitives/gradient_target.h"

namespace furlong::ops {

enum class ActivationKind : std::uint8_t;  // framework/primitives/activation_kind.h

/// Operations fused into a product before its result is stored, and other results computed from its operands.
struct GemmEpilogue {
  enum class Activation : std::uint8_t { none, relu, gelu, gelu_tanh, silu };
  const Tensor* bias = nullptr;  ///< [columns of c], c's dtype or float32
  Activation activation = Activation::none;
  /// [rows, columns of c], c's dtype, rows contiguous, separate memory. Receives product + bias, the input of the
  /// activation. With `activation_gradient` it is read instead, and holds that input from an earlier product.
  const Tensor* auxiliary = nullptr;
  /// c = (op(a) · op(b)) ⊙ f'(auxiliary), where f is `activation`. The product is the gradient of f's output, so c is
  /// the gradient of f's input. Not with a bias.
  bool activation_gradient = false;
  /// [rows of c], receives the sums of op(a) over the inner dimension. With a = d_y, transposed, this is the gradient
  /// of the bias, next to that of the weight. Its mode may differ from c's. a must be transposed, and nothing else may
  /// be fused.
  GradientTarget bias_gradient = {};

  /// Returns whether more is requested than product, bias and activation in one result.
  bool is_composite() const { return auxiliary != nullptr || bias_gradient.wanted(); }
};

/// Converts an ActivationKind to the epilogue's enum.
GemmEpilogue::Activation epilogue_activation(ActivationKind kind);

/// c = op(a) · op(b), or c += op(a) · op(b) if `mode` accumulates, followed by the epilogue (bias and activations only
/// with overwrite). Matrices are [rows, columns] with contiguous rows and any row stride; op transposes if requested. a
/// and b have one dtype; c has that dtype or a wider one (bfloat16 products may be stored as float32). Sums are in
/// float32 (float64 for float64). stream.products selects how float32 is multiplied.
///
/// Reproducibility: on one CPU, equal operands, strides and number of threads give equal bits; oneDNN selects its code
/// by shape, strides and threads. In float64, and in bfloat16 if computed in float32 tiles, only the operands matter.
/// On CUDA, equal operands, strides and address alignment give equal bits, because cuBLASLt selects by these. With an
/// auxiliary, results are those of separate ops, bit for bit. The exception is gelu_tanh in bfloat16 on CUDA, where
/// cuBLASLt's epilogue uses unrounded float32 sums.
///
/// Throws ContractError if shapes do not match.
void gemm(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
          GradientMode mode, const GemmEpilogue& epilogue = {});

/// Returns the number of rows of c from which gemm() first packs b of bfloat16 into the layout of oneDNN's choice; 0 if
/// it never packs on this device.
std::int64_t gemm_packs_from(const Device& device);

/// Writes or adds the sum over the rows of `matrix` [rows, n] to `target` [n], in fixed blocks of rows, with the same
/// bits for any number of threads.
void column_sum(const Stream& stream, const Tensor& matrix, const GradientTarget& target);

}  // namespace furlong::ops
