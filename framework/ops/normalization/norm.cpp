#include "framework/ops/normalization/norm.h"

#include "framework/ops/normalization/norm_kernels.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/dispatch.h"

namespace furlong::ops {
namespace {

void check_operands(const Variable& residual_in, const Variable* branch, const Variable& gain, const Variable* bias) {
  const Shape& shape = residual_in.shape();
  require(shape.rank() >= 1 && shape[-1] > 0 && residual_in.value().is_contiguous(),
          "norm: the residual {} is not contiguous or has no columns", shape.text());
  if (branch) {
    require(branch->shape() == shape && branch->dtype() == residual_in.dtype() && branch->value().is_contiguous(),
            "norm: branch is {} {}, expected contiguous {} {} as the residual", name_of(branch->dtype()),
            branch->shape().text(), name_of(residual_in.dtype()), shape.text());
  }
  const Shape columns{shape[-1]};
  require(gain.shape() == columns, "norm: gain is {}, expected {}", gain.shape().text(), columns.text());
  if (bias) require(bias->shape() == columns, "norm: bias is {}, expected {}", bias->shape().text(), columns.text());
}

/// Returns a row of parameters in the dtype of the statistics.
Tensor in_statistics_dtype(const Stream& stream, const Tensor& row, DType dtype) {
  if (row.dtype() == dtype && row.is_contiguous()) return row;
  const Tensor converted = Tensor::empty(row.shape(), dtype, stream.device);
  convert(stream, converted, row);
  return converted;
}

/// The gain is saved as the parameter's own memory. Only layernorm saves a mean.
enum class SavedNorm : std::uint8_t { residual, reciprocal_deviation, gain, mean };

/// Adds the blocks' sums to the gradient of gain or bias.
void store_parameter_gradient(BackwardContext& context, std::size_t input, const Tensor& sum) {
  const GradientTarget target = context.d_input(input);
  if (target.wanted()) add(context.stream(), target.tensor, sum, target.mode);
}

/// Backward of norm(residual) alone: fills `work` from the saved tensors and runs it. The caller sets d_residual and
/// addend.
void run_backward(BackwardContext& context, NormBackward& work, NormKind kind, std::size_t gain_input, bool has_bias) {
  const Stream& stream = context.stream();
  work.kind = kind;
  work.residual = context.saved(SavedNorm::residual);
  work.reciprocal_deviation = context.saved(SavedNorm::reciprocal_deviation);
  work.mean = context.saved(SavedNorm::mean);
  const DType dtype = work.reciprocal_deviation.dtype();
  work.gain = in_statistics_dtype(stream, context.saved(SavedNorm::gain), dtype);
  const bool wants_bias = has_bias && context.wants(gain_input + 1);
  const std::int64_t columns = work.residual.extent(-1);
  if (context.wants(gain_input) || wants_bias) {
    const std::int64_t blocks = norm_row_blocks(stream.device, work.residual.shape().rows(), columns);
    work.d_gain_bias_blocks = Tensor::empty({blocks, 2, columns}, dtype, stream.device);
    work.d_gain = Tensor::empty({columns}, dtype, stream.device);
    work.d_bias = Tensor::empty({columns}, dtype, stream.device);
  }
  dispatch_kernel(stream, norm_backward_cpu, norm_backward_gpu, work);
  if (context.wants(gain_input)) store_parameter_gradient(context, gain_input, work.d_gain);
  if (wants_bias) store_parameter_gradient(context, gain_input + 1, work.d_bias);
}

/// Outputs {residual, normed}, inputs {residual_in, branch, gain, bias}.
void backward_with_branch(BackwardContext& context, NormKind kind, bool has_bias) {
  const bool in_place = context.owns_d_output(0);
  const Tensor d_later = context.d_output(0), d_normed = context.d_output(1);
  Tensor d_residual = d_later;
  if (d_normed.defined()) {
    NormBackward work;
    work.d_normed = d_normed;
    if (context.wants(0) || context.wants(1)) {
      work.addend = d_later;
      if (!in_place) d_residual = Tensor::empty(d_normed.shape(), d_normed.dtype(), context.stream().device);
      work.d_residual = d_residual;
    }
    run_backward(context, work, kind, 2, has_bias);
  }
  if (!d_residual.defined()) return;
  context.pass(0, d_residual);
  context.pass(1, d_residual);
}

/// Outputs {normed}, inputs {residual_in, gain, bias}.
void backward_alone(BackwardContext& context, NormKind kind, bool has_bias) {
  NormBackward work;
  work.d_normed = context.d_output();
  const GradientTarget target = context.d_input(0);
  const bool fits = target.wanted() && target.tensor.dtype() == work.d_normed.dtype() && target.tensor.is_contiguous();
  if (fits) {
    work.d_residual = target.tensor;
    if (target.accumulates()) work.addend = target.tensor;
  } else if (target.wanted()) {
    work.d_residual = Tensor::empty(work.d_normed.shape(), work.d_normed.dtype(), context.stream().device);
  }
  run_backward(context, work, kind, 1, has_bias);
  if (target.wanted() && !fits) add(context.stream(), target.tensor, work.d_residual, target.mode);
}

/// Recomputes norm(residual) with the same bits, including the statistics. `gain` and `bias` are the parameters' own
/// memory, which does not change before backward ends.
Rematerialize rematerialize_normed(const Tensor& residual, const Tensor& gain, const Tensor& bias, NormKind kind,
                                   double epsilon) {
  return [=](const Stream& stream) {
    const DType statistics = accumulate_dtype(residual.dtype());
    NormForward work{kind, epsilon, residual, {}, {}, {}, {}, {}, {}, {}};
    work.gain = in_statistics_dtype(stream, gain, statistics);
    if (bias.defined()) work.bias = in_statistics_dtype(stream, bias, statistics);
    work.normed = Tensor::empty(residual.shape(), residual.dtype(), stream.device);
    work.reciprocal_deviation = Tensor::empty({residual.shape().rows()}, statistics, stream.device);
    if (kind == NormKind::layernorm) work.mean = Tensor::empty({residual.shape().rows()}, statistics, stream.device);
    dispatch_kernel(stream, norm_forward_cpu, norm_forward_gpu, work);
    return work.normed;
  };
}

}  // namespace

NormOutputs norm(Tape& tape, const Variable& residual_in, const Variable* branch, const Variable& gain,
                 const Variable* bias, NormKind kind, double epsilon) {
  check_operands(residual_in, branch, gain, bias);
  const Shape& shape = residual_in.shape();
  const DType dtype = residual_in.dtype(), statistics = accumulate_dtype(dtype);
  NormForward work{kind, epsilon, residual_in.value(), {}, {}, {}, {}, {}, {}, {}};
  work.gain = in_statistics_dtype(tape.stream(), gain.value(), statistics);
  if (bias) work.bias = in_statistics_dtype(tape.stream(), bias->value(), statistics);
  if (branch) {
    work.branch = branch->value();
    work.residual = Tensor::empty(shape, dtype, tape.device());
  }
  work.normed = Tensor::empty(shape, dtype, tape.device());
  work.reciprocal_deviation = Tensor::empty({shape.rows()}, statistics, tape.device());
  if (kind == NormKind::layernorm) work.mean = Tensor::empty({shape.rows()}, statistics, tape.device());
  dispatch_kernel(tape.stream(), norm_forward_cpu, norm_forward_gpu, work);

  const char* name = kind == NormKind::layernorm ? "layernorm" : "rmsnorm";
  const Tensor& residual = branch ? work.residual : work.residual_in;
  std::vector<Tensor> saved = saved_by_name<SavedNorm>({{SavedNorm::residual, residual},
                                                        {SavedNorm::reciprocal_deviation, work.reciprocal_deviation},
                                                        {SavedNorm::gain, gain.value()},
                                                        {SavedNorm::mean, work.mean}});
  std::vector<Variable> inputs{residual_in};
  if (branch) inputs.push_back(*branch);
  inputs.push_back(gain);
  if (bias) inputs.push_back(*bias);
  const bool has_bias = bias != nullptr;
  const auto with_rematerialize = [&](const Variable& normed) {
    if (!tape.recomputes_values()) return normed;
    return normed.with_rematerialize(
        rematerialize_normed(residual, gain.value(), bias ? bias->value() : Tensor{}, kind, epsilon));
  };
  if (!branch) {
    return {residual_in, with_rematerialize(tape.record_one(
                             name, inputs, work.normed, std::move(saved),
                             [kind, has_bias](BackwardContext& context) { backward_alone(context, kind, has_bias); }))};
  }
  const auto outputs =
      tape.record(name, inputs, {work.residual, work.normed}, std::move(saved),
                  [kind, has_bias](BackwardContext& context) { backward_with_branch(context, kind, has_bias); });
  return {outputs[0], with_rematerialize(outputs[1])};
}

}  // namespace furlong::ops
