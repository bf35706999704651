#include "layers/blocks/block.h"

#include "layers/dropout.h"

namespace furlong::layers {

namespace {

std::string name_of_block(std::int64_t layer) { return "blocks." + std::to_string(layer); }

}  // namespace

Block::Block(ParameterStore& store, const ModelConfig& config, std::int64_t layer, ops::RotaryTable* rotary)
    : name_(name_of_block(layer)),
      norm_placement_(config.norm_placement),
      dropout_(config.dropout),
      attention_norm_(store, name_ + ".attention_norm", config.d_model, config),
      attention_(store, name_ + ".attention", config, attention_of_layer(config, layer), rotary),
      feedforward_norm_(store, name_ + ".feedforward_norm", config.d_model, config),
      feedforward_(store, name_ + ".feedforward", config) {}

Block::Block(const Block& first, std::int64_t layer) : Block(first) {
  name_ = name_of_block(layer);
  attention_ = SelfAttention(first.attention_, name_ + ".attention");
}

Variable Block::drop(ForwardContext& context, const Variable& x, const char* branch) const {
  return dropout(context, x, dropout_, name_ + "." + branch + ".dropout");
}

template <class Attend>
ResidualStream Block::run(ForwardContext& context, const ResidualStream& in, const Attend& attend) const {
  const Tape::Scope scope(context.tape, name_);
  if (norm_placement_ == NormPlacement::post) {
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
