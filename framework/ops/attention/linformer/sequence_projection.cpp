#include "framework/ops/attention/linformer/sequence_projection.h"

#include "framework/ops/attention/linformer/sequence_projection_kernels.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/dispatch.h"
#include "framework/primitives/gemm.h"

namespace furlong::ops {
namespace {

/// x is saved only if the weight needs a gradient. For a convolution `weight` is saved by tap.
enum class SavedProjection : std::uint8_t { x, weight, keys };

// Linear --------------------------------------------------------------------------------------------------------------

Tensor entry(const Tensor& tensor, std::int64_t batch) {
  return tensor.defined() ? tensor.narrow(0, batch, 1) : Tensor{};
}
Tensor entry_matrix(const Tensor& tensor, std::int64_t batch) {
  return entry(tensor, batch).reshape({tensor.extent(1), tensor.extent(2)});
}

/// Returns the tokens of one sequence as a matrix [n, columns], with zeros for masked tokens; a view if nothing has to
/// be copied.
Tensor kept_rows(const Stream& stream, const Tensor& x, const Tensor& keys, std::int64_t batch) {
  if (!keys.defined() && x.is_contiguous()) return entry_matrix(x, batch);
  const Tensor rows = Tensor::empty({1, x.extent(1), x.extent(2)}, x.dtype(), x.device());
  dispatch_kernel(stream, masked_rows_cpu, masked_rows_gpu, rows, entry(x, batch), entry(keys, batch), false);
  return entry_matrix(rows, 0);
}

/// Calls body(matrix, columns) for each weight matrix, narrowed to its first n columns. `columns` selects the columns
/// of x that the matrix applies to: all of them, or one head's.
template <class Body>
void for_weights(const Tensor& weight, std::int64_t n, std::int64_t width, const Body& body) {
  if (weight.shape().rank() == 2) return body(weight.narrow(1, 0, n), [](const Tensor& rows) { return rows; });
  const std::int64_t d = width / weight.extent(0);
  for (std::int64_t head = 0; head < weight.extent(0); ++head) {
    body(entry_matrix(weight, head).narrow(1, 0, n), [&](const Tensor& rows) { return rows.narrow(1, head * d, d); });
  }
}

void project(const Stream& stream, const Tensor& x, const Tensor& weight, const Tensor& keys, const Tensor& y) {
  for (std::int64_t batch = 0; batch < x.extent(0); ++batch) {
    const Tensor rows = kept_rows(stream, x, keys, batch), projected = entry_matrix(y, batch);
    for_weights(weight, x.extent(1), x.extent(2), [&](const Tensor& matrix, const auto& columns) {
      gemm(stream, matrix, false, columns(rows), false, columns(projected), GradientMode::overwrite);
    });
  }
}

/// d_x_t = Σ_i weight[i, t] d_y_i for each kept token t.
void project_d_x(const Stream& stream, const Tensor& d_y, const Tensor& weight, const Tensor& keys,
                 const GradientTarget& d_x) {
  const bool direct = !keys.defined() && d_x.tensor.is_contiguous();
  const std::int64_t n = d_x.tensor.extent(1), width = d_x.tensor.extent(2);
  const Tensor scratch = direct ? Tensor{} : Tensor::empty({1, n, width}, d_y.dtype(), d_y.device());
  for (std::int64_t batch = 0; batch < d_y.extent(0); ++batch) {
    const Tensor rows = direct ? entry_matrix(d_x.tensor, batch) : entry_matrix(scratch, 0),
                 d_projected = entry_matrix(d_y, batch);
    for_weights(weight, n, width, [&](const Tensor& matrix, const auto& columns) {
      gemm(stream, matrix, true, columns(d_projected), false, columns(rows),
           direct ? d_x.mode : GradientMode::overwrite);
    });
    if (!direct)
      dispatch_kernel(stream, masked_rows_cpu, masked_rows_gpu, entry(d_x.tensor, batch), scratch, entry(keys, batch),
                      d_x.accumulates());
  }
}

void project_d_weight(const Stream& stream, const Tensor& d_y, const Tensor& x, const Tensor& keys,
                      const GradientTarget& d_weight) {
  const int last = d_weight.tensor.shape().rank() - 1;
  const std::int64_t n = x.extent(1), unused = d_weight.tensor.extent(last) - n;
  if (!d_weight.accumulates() && x.extent(0) == 0) fill(stream, d_weight.tensor, 0.0);
  if (!d_weight.accumulates() && unused > 0) fill(stream, d_weight.tensor.narrow(last, n, unused), 0.0);
  for (std::int64_t batch = 0; batch < x.extent(0); ++batch) {
    const Tensor rows = kept_rows(stream, x, keys, batch), d_projected = entry_matrix(d_y, batch);
    const GradientMode mode = batch == 0 ? d_weight.mode : GradientMode::accumulate;
    for_weights(d_weight.tensor, n, x.extent(2), [&](const Tensor& matrix, const auto& columns) {
      gemm(stream, columns(d_projected), false, columns(rows), true, matrix, mode);
    });
  }
}

Variable linear_projection(Tape& tape, const Variable& x, const Variable& weight, const Tensor& keys, const Tensor& y) {
  project(tape.stream(), x.value(), weight.value(), keys, y);
  return tape.record_one(
      "sequence_projection", {x, weight}, y,
      saved_by_name<SavedProjection>({{SavedProjection::x, weight.requires_gradient() ? x.value() : Tensor{}},
                                      {SavedProjection::weight, weight.value()},
                                      {SavedProjection::keys, keys}}),
      [](BackwardContext& context) {
        const Tensor &weight = context.saved(SavedProjection::weight), &keys = context.saved(SavedProjection::keys),
                     d_y = context.d_output();
        const GradientTarget d_x = context.d_input(0), d_weight = context.d_input(1);
        if (d_x.wanted()) project_d_x(context.stream(), d_y, weight, keys, d_x);
        if (d_weight.wanted())
          project_d_weight(context.stream(), d_y, context.saved(SavedProjection::x), keys, d_weight);
      });
}

// Mean and convolution ------------------------------------------------------------------------------------------------

/// Mean if `weight` is undefined, otherwise convolution.
Variable window_projection(Tape& tape, const Variable& x, const Variable& weight, const Tensor& keys,
                           std::int64_t stride, const Tensor& y) {
  Tensor by_tap;  // [stride, channels], in the dtype of the sums
  if (weight.defined()) by_tap = Tensor::empty({stride, x.extent(2)}, accumulate_dtype(x.dtype()), tape.device());
  if (weight.defined())
    dispatch_kernel(tape.stream(), projection_taps_cpu, projection_taps_gpu, weight.value(), by_tap);
  dispatch_kernel(tape.stream(), pool_windows_cpu, pool_windows_gpu, x.value(), by_tap, keys, stride, y);
  const bool keeps_x = weight.defined() && weight.requires_gradient();
  return tape.record_one("sequence_projection", {x, weight}, y,
                         saved_by_name<SavedProjection>({{SavedProjection::x, keeps_x ? x.value() : Tensor{}},
                                                         {SavedProjection::weight, by_tap},
                                                         {SavedProjection::keys, keys}}),
                         [stride](BackwardContext& context) {
                           const Tensor &by_tap = context.saved(SavedProjection::weight),
                                        &keys = context.saved(SavedProjection::keys), d_y = context.d_output();
                           const Stream& stream = context.stream();
                           const GradientTarget d_x = context.d_input(0), d_weight = context.d_input(1);
                           if (d_x.wanted())
                             dispatch_kernel(stream, pool_windows_d_x_cpu, pool_windows_d_x_gpu, d_y, by_tap, keys,
                                             stride, d_x);
                           if (!d_weight.wanted()) return;
                           const Tensor sums = Tensor::empty(by_tap.shape(), by_tap.dtype(), by_tap.device());
                           dispatch_kernel(stream, pool_windows_d_weight_cpu, pool_windows_d_weight_gpu,
                                           context.saved(SavedProjection::x), d_y, keys, sums, d_weight);
                         });
}

void check_options(const SequenceProjectionOptions& options) {
  require(options.projected_length >= 1 && options.projected_length <= options.max_length && options.n_heads >= 1,
          "sequence_projection: max_length is {}, projected_length is {} and n_heads is {}, expected 1 <= "
          "projected_length <= max_length and at least one head",
          options.max_length, options.projected_length, options.n_heads);
}

void check_keys(const Tensor& keys, std::int64_t batch, std::int64_t n) {
  require(
      !keys.defined() || (keys.dtype() == DType::int32 && keys.is_contiguous() && keys.shape() == Shape({batch, n})),
      "sequence_projection: key mask is {} {}, expected int32 [{}, {}]", keys.defined() ? name_of(keys.dtype()) : "",
      keys.shape().text(), batch, n);
}

void check_weight(const Variable& x, const Variable& weight, const SequenceProjectionOptions& options) {
  if (options.kind == SequenceProjection::mean) {
    require(!weight.defined(), "sequence_projection: kind mean takes no weight");
    return;
  }
  const std::int64_t d = x.extent(2) / options.n_heads;
  const Shape shared = sequence_projection_weight_shape(options, d, true),
              own = sequence_projection_weight_shape(options, d, false);
  require(weight.defined() && weight.value().is_contiguous() && weight.dtype() == x.dtype() &&
              (weight.shape() == shared || weight.shape() == own),
          "sequence_projection: weight is {} {} for x of {}, expected {} or {}",
          weight.defined() ? name_of(weight.dtype()) : "undefined", weight.shape().text(), name_of(x.dtype()),
          shared.text(), own.text());
}

}  // namespace

Shape sequence_projection_weight_shape(const SequenceProjectionOptions& options, std::int64_t d, bool shared_by_heads) {
  switch (options.kind) {
    case SequenceProjection::linear:
      return shared_by_heads ? Shape{options.projected_length, options.max_length}
                             : Shape{options.n_heads, options.projected_length, options.max_length};
    case SequenceProjection::convolution:
      return {shared_by_heads ? d : options.n_heads * d, options.stride()};
    case SequenceProjection::mean:
      break;
  }
  return {};
}

Variable sequence_projection(Tape& tape, const Variable& x, const Variable& weight, const Tensor& keys,
                             const SequenceProjectionOptions& options) {
  check_options(options);
  require(x.shape().rank() == 3 && x.value().has_contiguous_rows() && x.extent(2) % options.n_heads == 0 &&
              x.extent(1) >= 1 && x.extent(1) <= options.max_length,
          "sequence_projection: x is {}, expected [batch, 1 to {}, {} heads·d] with contiguous rows", x.shape().text(),
          options.max_length, options.n_heads);
  check_keys(keys, x.extent(0), x.extent(1));
  check_weight(x, weight, options);
  const Tensor y = Tensor::empty({x.extent(0), options.rows(x.extent(1)), x.extent(2)}, x.dtype(), tape.device());
  if (options.kind == SequenceProjection::linear) return linear_projection(tape, x, weight, keys, y);
  return window_projection(tape, x, weight, keys, options.stride(), y);
}

Tensor sequence_projection_mask(const Stream& stream, const Tensor& keys, const SequenceProjectionOptions& options) {
  if (!keys.defined()) return {};
  check_options(options);
  require(keys.shape().rank() == 2 && keys.extent(1) >= 1 && keys.extent(1) <= options.max_length,
          "sequence_projection: key mask is {}, expected [batch, 1 to {}]", keys.shape().text(), options.max_length);
  check_keys(keys, keys.extent(0), keys.extent(1));
  const std::int64_t n = keys.extent(1);
  const Tensor row_keys = Tensor::empty({keys.extent(0), options.rows(n)}, DType::int32, stream.device);
  // Every row of a linear projection reads the whole sequence.
  const std::int64_t stride = options.kind == SequenceProjection::linear ? 0 : options.stride();
  dispatch_kernel(stream, projection_mask_cpu, projection_mask_gpu, keys, stride, row_keys);
  return row_keys;
}

}  // namespace furlong::ops
