#include "layers/blocks/feedforward.h"

#include "framework/ops/dense/feed_forward.h"

namespace furlong::layers {

FeedForward::FeedForward(ParameterStore& store, const std::string& name, const ModelConfig& config)
    : gated_(is_gated(config.activation)),
      kind_(kind_of(config.activation)),
      input_(store, name + ".input", config.d_model, (gated_ ? 2 : 1) * config.d_feedforward, config.bias,
             config.initializer_range, config.adapter),
      output_(store, name + ".output", config.d_feedforward, config.d_model, config.bias,
              config.branch_initializer_range(), config.adapter) {}

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
