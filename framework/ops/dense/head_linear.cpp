#include "framework/ops/dense/head_linear.h"

#include "framework/primitives/arithmetic.h"
#include "framework/primitives/gemm.h"

namespace furlong::ops {
namespace {

/// Returns [batch, n, columns] as a matrix: a view if the rows are evenly spaced, else a copy.
Tensor as_rows(const Stream& stream, const Tensor& x) {
  const Shape rows{x.shape().rows(), x.extent(-1)};
  if (x.is_contiguous()) return x.reshape(rows);
  const Tensor copy = Tensor::empty(x.shape(), x.dtype(), x.device());
  convert(stream, copy, x);
  return copy.reshape(rows);
}

/// Returns the columns of one head in [rows, n_heads·d].
Tensor head_columns(const Tensor& rows, std::int64_t head, std::int64_t d) { return rows.narrow(1, head * d, d); }

/// Returns the matrix of one head in [n_heads, rows, columns].
Tensor head_matrix(const Tensor& weight, std::int64_t head) {
  return weight.narrow(0, head, 1).reshape({weight.extent(1), weight.extent(2)});
}

void input_gradient(const Stream& stream, const Tensor& d_y, const Tensor& weight, const GradientTarget& d_x) {
  const std::int64_t n_heads = weight.extent(0), d_out = weight.extent(1), d = weight.extent(2);
  const bool direct = d_x.tensor.is_contiguous();
  const Shape shape{d_y.extent(0), n_heads * d};
  const Tensor rows = direct ? d_x.tensor.reshape(shape) : Tensor::empty(shape, d_y.dtype(), d_y.device());
  const GradientMode mode = direct ? d_x.mode : GradientMode::overwrite;
  for (std::int64_t head = 0; head < n_heads; ++head) {
    gemm(stream, head_columns(d_y, head, d_out), false, head_matrix(weight, head), false, head_columns(rows, head, d),
         mode);
  }
  if (!direct) add(stream, d_x.tensor, rows.reshape(d_x.tensor.shape()), d_x.mode);
}

void head_linear_backward(BackwardContext& context) {
  const Tensor &x = context.saved(0), &weight = context.saved(1);
  const std::int64_t n_heads = weight.extent(0), d_out = weight.extent(1), d = weight.extent(2);
  const Tensor d_y = as_rows(context.stream(), context.d_output());
  if (const GradientTarget d_x = context.d_input(0); d_x.wanted()) input_gradient(context.stream(), d_y, weight, d_x);
  const GradientTarget d_weight = context.d_input(1);
  if (!d_weight.wanted()) return;
  const Tensor rows = as_rows(context.stream(), x);
  for (std::int64_t head = 0; head < n_heads; ++head) {
    gemm(context.stream(), head_columns(d_y, head, d_out), true, head_columns(rows, head, d), false,
         head_matrix(d_weight.tensor, head), d_weight.mode);
  }
}

}  // namespace

Variable head_linear(Tape& tape, const Variable& x, const Variable& weight, std::int64_t n_heads) {
  require(x.shape().rank() == 3 && x.value().has_contiguous_rows(),
          "head_linear: x is {}, expected [batch, n, heads·d]", x.shape().text());
  require(weight.shape().rank() == 3 && weight.value().is_contiguous() && weight.extent(0) == n_heads &&
              n_heads * weight.extent(2) == x.extent(2) && weight.dtype() == x.dtype(),
          "head_linear: weight is {} {} for x {} {} with {} heads, expected contiguous [heads, d_out, d]",
          name_of(weight.dtype()), weight.shape().text(), name_of(x.dtype()), x.shape().text(), n_heads);
  const std::int64_t d_out = weight.extent(1), d = weight.extent(2);
  const Tensor y = Tensor::empty({x.extent(0), x.extent(1), n_heads * d_out}, x.dtype(), tape.device());
  const Tensor rows = as_rows(tape.stream(), x.value()), y_rows = y.reshape({y.shape().rows(), y.extent(2)});
  for (std::int64_t head = 0; head < n_heads; ++head) {
    gemm(tape.stream(), head_columns(rows, head, d), false, head_matrix(weight.value(), head), true,
         head_columns(y_rows, head, d_out), GradientMode::overwrite);
  }
  return tape.record_one("head_linear", {x, weight}, y,
                         {weight.requires_gradient() ? x.value() : Tensor{}, weight.value()}, head_linear_backward);
}

}  // namespace furlong::ops
