#include "framework/primitives/gemm.h"

#include "framework/primitives/activation_kernels.h"
#include "framework/primitives/gemm_kernels.h"

namespace furlong::ops {
namespace {

using Activation = GemmEpilogue::Activation;

ActivationKind kind_of(Activation activation) {
  for (const ActivationName& entry : activation_names) {
    if (epilogue_activation(entry.kind) == activation) return entry.kind;
  }
  throw ContractError("gemm: unknown activation number {}", static_cast<int>(activation));
}

void check_epilogue(const GemmEpilogue& epilogue, const Tensor& c, bool transpose_a, bool overwrites) {
  const bool activated = epilogue.activation != Activation::none;
  require((epilogue.bias == nullptr && !activated) || overwrites, "gemm: bias and activation require overwrite mode");
  require(epilogue.bias == nullptr || epilogue.bias->elements() == c.extent(1),
          "gemm: bias is {}, expected {} elements", epilogue.bias ? epilogue.bias->shape().text() : "", c.extent(1));
  if (const Tensor* auxiliary = epilogue.auxiliary) {
    require(activated, "gemm: an auxiliary requires an activation");
    require(auxiliary->shape() == c.shape() && auxiliary->dtype() == c.dtype() && auxiliary->has_contiguous_rows(),
            "gemm: auxiliary is {} {}, expected {} {} with contiguous rows", name_of(auxiliary->dtype()),
            auxiliary->shape().text(), name_of(c.dtype()), c.shape().text());
    require(c.elements() == 0 || epilogue.activation_gradient || auxiliary->address() != c.address(),
            "gemm: auxiliary and result share memory");
  }
  require(!epilogue.activation_gradient || (epilogue.auxiliary != nullptr && epilogue.bias == nullptr),
          "gemm: an activation gradient requires an auxiliary and no bias");
  if (const GradientTarget& sums = epilogue.bias_gradient; sums.wanted()) {
    require(transpose_a && !activated && epilogue.bias == nullptr,
            "gemm: a bias gradient requires a transposed a, no bias and no activation");
    require(sums.tensor.elements() == c.extent(0), "gemm: the bias gradient is {}, expected {} elements",
            sums.tensor.shape().text(), c.extent(0));
  }
}

}  // namespace

Activation epilogue_activation(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::gelu:
      return Activation::gelu;
    case ActivationKind::gelu_tanh:
      return Activation::gelu_tanh;
    case ActivationKind::relu:
      return Activation::relu;
    case ActivationKind::silu:
      return Activation::silu;
  }
  return Activation::none;
}

void gemm(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c,
          GradientMode mode, const GemmEpilogue& epilogue) {
  if (mode == GradientMode::skip) {
    require(!epilogue.bias_gradient.wanted(), "gemm: a bias gradient was requested without the product");
    return;
  }
  const bool matrices = a.shape().rank() == 2 && b.shape().rank() == 2 && c.shape().rank() == 2;
  require(matrices && a.has_contiguous_rows() && b.has_contiguous_rows() && c.has_contiguous_rows(),
          "gemm: operands {} and {}, result {}, expected matrices with contiguous rows", a.shape().text(),
          b.shape().text(), c.shape().text());
  const std::int64_t rows = a.shape()[transpose_a ? 1 : 0], inner = a.shape()[transpose_a ? 0 : 1];
  const std::int64_t columns = b.shape()[transpose_b ? 0 : 1], inner_b = b.shape()[transpose_b ? 1 : 0];
  require(inner == inner_b && c.shape() == Shape({rows, columns}),
          "gemm: the shapes of {}{} · {}{} do not match the result {}", a.shape().text(), transpose_a ? "ᵀ" : "",
          b.shape().text(), transpose_b ? "ᵀ" : "", c.shape().text());
  require(a.dtype() == b.dtype() && (c.dtype() == a.dtype() || c.dtype() == accumulate_dtype(a.dtype())),
          "gemm: operands {} and {} with result {}, expected one operand dtype and that dtype or a wider one",
          name_of(a.dtype()), name_of(b.dtype()), name_of(c.dtype()));
  check_epilogue(epilogue, c, transpose_a, mode == GradientMode::overwrite);
  const bool accumulate = mode == GradientMode::accumulate;
  if (stream.device.is_gpu()) {
    gemm_gpu(stream, a, transpose_a, b, transpose_b, c, accumulate, epilogue);
  } else if (epilogue.is_composite()) {
    gemm_in_steps(stream, a, transpose_a, b, transpose_b, c, accumulate, epilogue);
  } else {  // the shape-only device follows the CPU's code as far as the product's workspace memory
    gemm_cpu(stream, a, transpose_a, b, transpose_b, c, accumulate, epilogue);
  }
}

void gemm_in_steps(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                   const Tensor& c, bool accumulate, const GemmEpilogue& epilogue) {
  if (epilogue.activation_gradient) {
    gemm(stream, a, transpose_a, b, transpose_b, c, GradientMode::overwrite);
    dispatch_kernel(stream, activation_backward_cpu, activation_backward_gpu, *epilogue.auxiliary, c, c, false,
                    kind_of(epilogue.activation));
  } else if (epilogue.auxiliary) {
    GemmEpilogue biased;
    biased.bias = epilogue.bias;
    gemm(stream, a, transpose_a, b, transpose_b, *epilogue.auxiliary, GradientMode::overwrite, biased);
    dispatch_kernel(stream, activation_cpu, activation_gpu, *epilogue.auxiliary, c, kind_of(epilogue.activation));
  } else {
    gemm(stream, a, transpose_a, b, transpose_b, c, accumulate ? GradientMode::accumulate : GradientMode::overwrite);
    column_sum(stream, a, epilogue.bias_gradient);
  }
}

void column_sum(const Stream& stream, const Tensor& matrix, const GradientTarget& target) {
  if (!target.wanted()) return;
  require(matrix.shape().rank() == 2 && matrix.has_contiguous_rows() && target.tensor.elements() == matrix.extent(1),
          "column_sum: matrix {} and target {}, expected [rows, n] with contiguous rows and [n]", matrix.shape().text(),
          target.tensor.shape().text());
  dispatch_kernel(stream, column_sum_cpu, column_sum_gpu, matrix, target.tensor, target.accumulates());
}

}  // namespace furlong::ops
