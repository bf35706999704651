#include "framework/ops/dense/feed_forward.h"

#include "framework/primitives/activation_kernels.h"
#include "framework/primitives/gemm_kernels.h"

namespace furlong::ops {
namespace {

// Indices of the inputs and of the saved tensors.
enum Input : std::uint8_t { input_x, input_weight_in, input_bias_in, input_weight_out, input_bias_out };
enum class SavedFeedForward : std::uint8_t { x, before, hidden, weight_in, weight_out };

/// Computes the gradients of a weight [outer, inner] and of its bias.
void parameter_gradients(BackwardContext& context, const Tensor& d_y, Input weight, Input bias,
                         const std::function<Tensor()>& x) {
  if (const GradientTarget d_weight = context.d_input(weight); d_weight.wanted()) {
    GemmEpilogue epilogue;
    epilogue.bias_gradient = context.d_input(bias);
    gemm(context.stream(), d_y, true, as_matrix(x()), false, d_weight.tensor, d_weight.mode, epilogue);
  } else {
    column_sum(context.stream(), d_y, context.d_input(bias));
  }
}

/// d_before is the gradient of the activation's input. It is used immediately, while caches still hold it.
void through_activation(BackwardContext& context, const Tensor& d_y, ActivationKind kind,
                        const Rematerialize* rematerialize_x) {
  const Stream& stream = context.stream();
  const Tensor before = as_matrix(context.saved(SavedFeedForward::before));
  const Tensor d_before = Tensor::empty(before.shape(), before.dtype(), stream.device);
  GemmEpilogue epilogue;
  epilogue.activation = epilogue_activation(kind);
  epilogue.auxiliary = &before;
  epilogue.activation_gradient = true;
  gemm(stream, d_y, false, context.saved(SavedFeedForward::weight_out), false, d_before, GradientMode::overwrite,
       epilogue);
  if (const GradientTarget d_x = context.d_input(input_x); d_x.wanted()) {
    gemm(stream, d_before, false, context.saved(SavedFeedForward::weight_in), false, as_matrix(d_x.tensor), d_x.mode);
  }
  parameter_gradients(context, d_before, input_weight_in, input_bias_in, [&] {
    return rematerialize_x ? (*rematerialize_x)(stream) : context.saved(SavedFeedForward::x);
  });
}

void feed_forward_backward(BackwardContext& context, ActivationKind kind, const Rematerialize* rematerialize_x) {
  const Stream& stream = context.stream();
  const Tensor d_y = as_matrix(context.d_output());
  if (context.wants(input_x) || context.wants(input_weight_in) || context.wants(input_bias_in)) {
    through_activation(context, d_y, kind, rematerialize_x);
  }
  parameter_gradients(context, d_y, input_weight_out, input_bias_out, [&] {
    if (context.saved(SavedFeedForward::hidden).defined()) return context.saved(SavedFeedForward::hidden);
    // Written over `before`, which is no longer needed, if no other tensor shares its memory.
    const Tensor& before = context.saved(SavedFeedForward::before);
    const Tensor hidden = before.is_unique() ? before : Tensor::empty(before.shape(), before.dtype(), stream.device);
    dispatch_kernel(stream, activation_cpu, activation_gpu, before, hidden, kind);
    return hidden;
  });
}

Tensor product(const Stream& stream, const Tensor& x, const Tensor& weight, GemmEpilogue epilogue,
               const Variable* bias) {
  Shape shape = x.shape();
  shape[-1] = weight.extent(0);
  const Tensor y = Tensor::empty(shape, x.dtype(), stream.device);
  if (bias) epilogue.bias = &bias->value();
  gemm(stream, as_matrix(x), false, weight, true, as_matrix(y), GradientMode::overwrite, epilogue);
  return y;
}

}  // namespace

Variable feed_forward(Tape& tape, const Variable& x, const Variable& input_weight, const Variable* input_bias,
                      const Variable& output_weight, const Variable* output_bias, ActivationKind kind) {
  require(
      input_weight.shape().rank() == 2 && output_weight.shape().rank() == 2 && x.shape().rank() >= 1 &&
          x.extent(-1) == input_weight.extent(1) && input_weight.extent(0) == output_weight.extent(1),
      "feed_forward: x is {} and the weights are {} and {}, expected [..., inner], [hidden, inner], [outer, hidden]",
      x.shape().text(), input_weight.shape().text(), output_weight.shape().text());
  const Stream& stream = tape.stream();
  GemmEpilogue epilogue;
  epilogue.activation = epilogue_activation(kind);
  // If the values are dropped and recomputed in backward, both runs must compute the same bits.
  const bool kept = tape.recording() || tape.will_rerun();
  Tensor before, before_rows;
  if (kept) {
    Shape shape = x.shape();
    shape[-1] = input_weight.extent(0);
    before = Tensor::empty(shape, x.dtype(), stream.device);
    before_rows = as_matrix(before);
    epilogue.auxiliary = &before_rows;
  }
  const Tensor hidden = product(stream, x.value(), input_weight.value(), epilogue, input_bias);
  const Tensor y = product(stream, hidden, output_weight.value(), {}, output_bias);

  const bool wants_weight_in = input_weight.requires_gradient(), wants_weight_out = output_weight.requires_gradient();
  const bool through = x.requires_gradient() || wants_weight_in || (input_bias && input_bias->requires_gradient());
  const std::shared_ptr<const Rematerialize> rematerialize = wants_weight_in ? x.rematerialize() : nullptr;
  const bool keeps_hidden = wants_weight_out && !tape.recomputes_values();
  const bool keeps_x = wants_weight_in && !rematerialize, keeps_before = through || (wants_weight_out && !keeps_hidden);
  std::vector<Tensor> saved =
      saved_by_name<SavedFeedForward>({{SavedFeedForward::x, keeps_x ? x.value() : Tensor{}},
                                       {SavedFeedForward::before, keeps_before ? before : Tensor{}},
                                       {SavedFeedForward::hidden, keeps_hidden ? hidden : Tensor{}},
                                       {SavedFeedForward::weight_in, input_weight.value()},
                                       {SavedFeedForward::weight_out, output_weight.value()}});
  const auto given = [](const Variable* bias) { return bias ? *bias : Variable{}; };
  return tape.record_one(
      "feed_forward", {x, input_weight, given(input_bias), output_weight, given(output_bias)}, y, std::move(saved),
      [kind, rematerialize](BackwardContext& context) { feed_forward_backward(context, kind, rematerialize.get()); });
}

}  // namespace furlong::ops
