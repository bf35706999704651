#include "framework/primitives/arithmetic.h"

#include <algorithm>
#include <numeric>

#include "framework/core/gpu_engine.h"
#include "framework/primitives/arithmetic_kernels.h"

namespace furlong::ops {
namespace {

/// Host memory passed to a GPU kernel would cause a device fault, from which the device does not recover.
void check_device(const char* op, const Stream& stream, const Tensor& tensor) {
  require(!stream.device.is_gpu() || tensor.device() == stream.device, "{}: a tensor is on {}, expected it on {}", op,
          tensor.device().text(), stream.device.text());
}

}  // namespace

void fill(const Stream& stream, const Tensor& tensor, double value) {
  require(tensor.has_contiguous_rows(), "fill: rows of {} are not contiguous", tensor.shape().text());
  check_device("fill", stream, tensor);
  dispatch_kernel(stream, fill_cpu, fill_gpu, tensor, value);
}

void add(const Stream& stream, const Tensor& target, const Tensor& source, GradientMode mode, double scale) {
  if (mode == GradientMode::skip) return;
  require(target.shape() == source.shape() && target.has_contiguous_rows() && source.has_contiguous_rows(),
          "add: source {} and target {}, expected equal shapes with contiguous rows", source.shape().text(),
          target.shape().text());
  check_device("add", stream, target);
  check_device("add", stream, source);
  dispatch_kernel(stream, add_cpu, add_gpu, target, source, mode == GradientMode::accumulate, scale);
}

std::int64_t count_non_finite(const Stream& stream, const Tensor& tensor) {
  if (stream.device.is_shape_only() || tensor.elements() == 0) return 0;
  if (stream.device.is_cpu()) return count_non_finite_cpu(tensor);
  check_device("count_non_finite", stream, tensor);
  constexpr std::int64_t max_blocks = 1024, elements_of_block = 4096;
  const std::int64_t blocks = std::min(max_blocks, (tensor.elements() + elements_of_block - 1) / elements_of_block);
  const Tensor counts = Tensor::empty({blocks}, DType::float64, stream.device);
  count_non_finite_gpu(stream, tensor, counts);
  synchronize(stream);
  const std::vector<double> parts = counts.to_vector<double>();
  return static_cast<std::int64_t>(std::accumulate(parts.begin(), parts.end(), 0.0));
}

void sum_of_squares(const Stream& stream, const Tensor& tensor, const Tensor& result) {
  require(tensor.is_contiguous(), "sum_of_squares: {} is not contiguous", tensor.shape().text());
  require(result.dtype() == DType::float64 && result.shape() == Shape({1}),
          "sum_of_squares: result is {} {}, expected float64 [1]", name_of(result.dtype()), result.shape().text());
  check_device("sum_of_squares", stream, tensor);
  check_device("sum_of_squares", stream, result);
  dispatch_kernel(stream, sum_of_squares_cpu, sum_of_squares_gpu, tensor, result);
}

double sum_of_squares(const Stream& stream, const Tensor& tensor) {
  const Tensor result = Tensor::empty({1}, DType::float64, stream.device);
  sum_of_squares(stream, tensor, result);
  if (stream.device.is_shape_only()) return 0.0;
  synchronize(stream);
  return result.to_vector<double>().front();
}

}  // namespace furlong::ops
