#include "framework/ops/gemm.h"

#include <atomic>

#include "framework/ops/gemm_bodies.h"

namespace furlong::ops {
namespace {

std::atomic<bool> tf32{false};

}  // namespace

void set_tf32(bool allowed) { tf32 = allowed; }
bool tf32_allowed() { return tf32; }

void gemm(const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, GradientMode mode,
          const GemmEpilogue& epilogue) {
  if (mode == GradientMode::skip) return;
  const bool matrices = a.shape().rank() == 2 && b.shape().rank() == 2 && c.shape().rank() == 2;
  require(matrices && a.has_contiguous_rows() && b.has_contiguous_rows() && c.has_contiguous_rows(),
          "gemm: {} by {} into {}: matrices with contiguous rows are needed", a.shape().text(), b.shape().text(), c.shape().text());
  const std::int64_t rows = a.shape()[transpose_a ? 1 : 0], inner = a.shape()[transpose_a ? 0 : 1];
  const std::int64_t columns = b.shape()[transpose_b ? 0 : 1], inner_b = b.shape()[transpose_b ? 1 : 0];
  require(inner == inner_b && c.shape() == Shape({rows, columns}), "gemm: {}{} by {}{} does not give {}", a.shape().text(),
          transpose_a ? "ᵀ" : "", b.shape().text(), transpose_b ? "ᵀ" : "", c.shape().text());
  require(a.dtype() == b.dtype() && (c.dtype() == a.dtype() || c.dtype() == accumulate_dtype(a.dtype())), "gemm: {} by {} into {}",
          name_of(a.dtype()), name_of(b.dtype()), name_of(c.dtype()));
  const bool plain = epilogue.bias == nullptr && epilogue.activation == GemmEpilogue::Activation::none;
  require(plain || mode == GradientMode::overwrite, "gemm: bias and activation go with overwrite only");
  require(epilogue.bias == nullptr || epilogue.bias->elements() == columns, "gemm: a bias of {} for {} columns",
          epilogue.bias ? epilogue.bias->shape().text() : "", columns);
  const bool accumulate = mode == GradientMode::accumulate;
  if (stream.device.is_gpu()) {
    gemm_gpu(stream, a, transpose_a, b, transpose_b, c, accumulate, epilogue);
  } else {  // the shape-only device goes the same way as the CPU, as far as the memory that the product works in
    gemm_cpu(a, transpose_a, b, transpose_b, c, accumulate, epilogue);
  }
}

void column_sum(const Stream& stream, const Tensor& matrix, const GradientTarget& target) {
  if (!target.wanted()) return;
  require(matrix.shape().rank() == 2 && matrix.has_contiguous_rows() && target.tensor.elements() == matrix.extent(1),
          "column_sum: {} into {}", matrix.shape().text(), target.tensor.shape().text());
  run_body(stream, column_sum_cpu, column_sum_gpu, matrix, target.tensor, target.accumulates());
}

}  // namespace furlong::ops
