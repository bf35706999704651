#include "layers/blocks/block.h"

#include "layers/dropout.h"

namespace furlong::layers {

AttentionConfig attention_of_layer(const AttentionConfig& config, std::int64_t layer, std::int64_t n_layers) {
  AttentionConfig result = config;
  result.layer_mechanisms.clear();
  if (config.layer_mechanisms.empty()) return result;
  if (static_cast<std::int64_t>(config.layer_mechanisms.size()) != n_layers)
    throw UserError("model.attention.layers names {} mechanisms for {} layers; expected one for each",
                    config.layer_mechanisms.size(), n_layers);
  const std::string& entry = config.layer_mechanisms[static_cast<std::size_t>(layer)];
  if (const std::vector<std::string> names = mechanisms_in(entry); names.size() > 1) {
    result.head_mechanisms = names;
  } else {
    result.mechanism = entry;
  }
  return result;
}

Block::Block(ParameterStore& store, const std::string& name, const BlockConfig& config, ops::RotaryTable* rotary)
    : name_(name),
      norm_placement_(config.norm_placement),
      dropout_(config.dropout),
      attention_norm_(store, name + ".attention_norm", config.self_attention.d_model, config.norm, config.norm_epsilon,
                      config.self_attention.bias),
      attention_(store, name + ".attention", config.self_attention, rotary),
      feedforward_norm_(store, name + ".feedforward_norm", config.self_attention.d_model, config.norm,
                        config.norm_epsilon, config.self_attention.bias),
      feedforward_(store, name + ".feedforward", config.self_attention.d_model, config.d_feedforward, config.activation,
                   config.self_attention.bias, config.self_attention.initial_deviation,
                   config.self_attention.output_deviation, config.self_attention.adapter) {}

Block::Block(const Block& first, const std::string& name)
    : name_(name),
      norm_placement_(first.norm_placement_),
      dropout_(first.dropout_),
      attention_norm_(first.attention_norm_),
      attention_(first.attention_, name + ".attention"),
      feedforward_norm_(first.feedforward_norm_),
      feedforward_(first.feedforward_) {}

Variable Block::drop(ForwardContext& context, const Variable& x, const char* branch) const {
  return dropout(context, x, dropout_, name_ + "." + branch + ".dropout");
}

template <class Attend>
ResidualStream Block::run(ForwardContext& context, const ResidualStream& in, const Attend& attend) const {
  const Tape::Scope scope(context.tape, name_);
  if (norm_placement_ == NormPlacement::after) {
    const Variable attended = drop(context, attend(in.sum), "attention");
    const Variable x = attention_norm_.forward(context, in.sum, &attended).normed;
    const Variable fed = drop(context, feedforward_.forward(context, x), "feedforward");
    return {feedforward_norm_.forward(context, x, &fed).normed, {}};
  }
  const ops::NormOutputs first = attention_norm_.forward(context, in.sum, in.branch.defined() ? &in.branch : nullptr);
  const Variable attended = drop(context, attend(first.normed), "attention");
  const ops::NormOutputs second = feedforward_norm_.forward(context, first.residual, &attended);
  return {second.residual, drop(context, feedforward_.forward(context, second.normed), "feedforward")};
}

ResidualStream Block::forward(ForwardContext& context, const ResidualStream& in, std::int64_t first_position,
                              SelfAttentionState* carried) const {
  return run(context, in, [&](const Variable& x) { return attention_.forward(context, x, first_position, carried); });
}

Variable Block::attention_output(ForwardContext& context, const Variable& input, std::int64_t first_position) const {
  const Tape::Scope scope(context.tape, name_);
  return attention_.forward(context, input, first_position);
}

ResidualStream Block::extend(ForwardContext& context, const ResidualStream& in, std::int64_t first_position,
                             SelfAttentionState& state) const {
  return run(context, in, [&](const Variable& x) { return attention_.extend(context, x, first_position, state); });
}

}  // namespace furlong::layers
