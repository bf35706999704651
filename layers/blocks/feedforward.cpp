#include "layers/blocks/feedforward.h"

#include "framework/ops/dense/feed_forward.h"

namespace furlong::layers {
namespace {

bool is_gated(const std::string& activation) { return activation == "swiglu" || activation == "geglu"; }
ops::ActivationKind kind_of(const std::string& activation) {
  if (activation == "swiglu") return ops::ActivationKind::silu;
  if (activation == "geglu") return ops::ActivationKind::gelu;
  return ops::activation_from_name(activation);
}

}  // namespace

FeedForward::FeedForward(ParameterStore& store, const std::string& name, std::int64_t d_model,
                         std::int64_t d_feedforward, const std::string& activation, bool bias, double initial_deviation,
                         double output_deviation, const AdapterConfig& adapter)
    : gated_(is_gated(activation)),
      kind_(kind_of(activation)),
      input_(store, name + ".input", d_model, gated_ ? 2 * d_feedforward : d_feedforward, bias, initial_deviation,
             adapter),
      output_(store, name + ".output", d_feedforward, d_model, bias, output_deviation, adapter) {}

Variable FeedForward::forward(ForwardContext& context, const Variable& x) const {
  const Tape::Scope scope(context.tape, "feedforward");
  if (gated_) return output_.forward(context, ops::gated_activation(context.tape, input_.forward(context, x), kind_));
  if (input_.has_adapter() || output_.has_adapter())
    return output_.forward(context, input_.activated(context, x, kind_));
  const Variable input_bias = input_.bias(), output_bias = output_.bias();
  return ops::feed_forward(context.tape, x, input_.weight(), input_bias.defined() ? &input_bias : nullptr,
                           output_.weight(), output_bias.defined() ? &output_bias : nullptr, kind_);
}

}  // namespace furlong::layers
