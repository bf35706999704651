#include "framework/ops/arithmetic.h"

#include "framework/ops/dispatch.h"

namespace furlong::ops {

void fill_cpu(const Tensor& tensor, double value);
void add_cpu(const Tensor& target, const Tensor& source, bool accumulate, double scale);
std::int64_t count_non_finite_cpu(const Tensor& tensor);
double sum_of_squares_cpu(const Tensor& tensor);

void fill(const Stream& stream, const Tensor& tensor, double value) {
  require(tensor.has_contiguous_rows(), "fill: rows of {} are not contiguous", tensor.shape().text());
  if (runs_on_cpu(stream, "fill")) fill_cpu(tensor, value);
}

void add(const Stream& stream, const Tensor& target, const Tensor& source, GradientMode mode, double scale) {
  if (mode == GradientMode::skip) return;
  require(target.shape() == source.shape() && target.has_contiguous_rows() && source.has_contiguous_rows(), "add: {} to {}",
          source.shape().text(), target.shape().text());
  if (runs_on_cpu(stream, "add")) add_cpu(target, source, mode == GradientMode::accumulate, scale);
}

std::int64_t count_non_finite(const Stream& stream, const Tensor& tensor) {
  return runs_on_cpu(stream, "count_non_finite") ? count_non_finite_cpu(tensor) : 0;
}

double sum_of_squares(const Stream& stream, const Tensor& tensor) {
  require(tensor.is_contiguous(), "sum_of_squares: {} is not contiguous", tensor.shape().text());
  return runs_on_cpu(stream, "sum_of_squares") ? sum_of_squares_cpu(tensor) : 0.0;
}

}  // namespace furlong::ops
