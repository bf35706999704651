#include "layers/attention/self_attention.h"

#include "framework/ops/short_convolution.h"

namespace furlong::layers {
namespace {

std::int64_t fused_width(const AttentionConfig& attention) { return (attention.n_heads + 2 * attention.n_kv_heads) * attention.d_head; }

}  // namespace

SelfAttentionState SelfAttentionState::clone() const {
  return {clone_recurrent_state(*attention), convolution.defined() ? convolution.clone() : Tensor{}};
}

void SelfAttentionState::visit(const std::string& prefix, const StateVisitor& visitor) {
  visit_recurrent_state(*attention, prefix + ".attention", visitor);
  if (convolution.defined()) visitor(prefix + ".convolution", convolution);
}

SelfAttention::SelfAttention(ParameterStore& store, const std::string& name, const SelfAttentionConfig& config, ops::RotaryTable* rotary)
    : name_(name),
      config_(config),
      rotary_(rotary),
      query_key_value_(store, name + ".query_key_value", config.d_model, fused_width(config.attention), config.bias,
                       config.initial_deviation),
      output_(store, name + ".output", config.attention.n_heads * config.attention.d_head, config.d_model, config.bias,
              config.output_deviation) {
  if (config.short_convolution > 0) {
    convolution_ = &store.add(name + ".short_convolution.weight", {fused_width(config.attention), config.short_convolution},
                              Initializer::identity_tap(), false);
  }
  mechanism_ = make_attention(store, name, config.attention);
}

std::vector<std::int64_t> SelfAttention::widths() const {
  const AttentionConfig& attention = config_.attention;
  return {attention.n_heads * attention.d_head, attention.n_kv_heads * attention.d_head, attention.n_kv_heads * attention.d_head};
}

Variable SelfAttention::projected(ForwardContext& context, const Variable& x, std::int64_t first_position,
                                  const SelfAttentionState* state) const {
  const Tensor* history = state && state->convolution.defined() ? &state->convolution : nullptr;
  Variable fused = query_key_value_.forward(context, x);  // [batch, n, (n_heads + 2 n_kv_heads) d_head]
  if (convolution_) {
    const Tensor& documents = context.attention_mask.documents;
    fused =
        ops::short_convolution(context.tape, fused, convolution_->variable(), history, history, documents.defined() ? &documents : nullptr);
  }
  if (rotary_) {
    // Query and key heads lie side by side in front of the value heads, so that one pass turns both.
    const Tensor own = context.own_positions();
    fused = ops::rotary(context.tape, fused, config_.attention.n_heads + config_.attention.n_kv_heads, config_.attention.d_head,
                        own.defined() ? 0 : first_position, *rotary_, own.defined() ? &own : nullptr);
  }
  return fused;
}

Variable SelfAttention::forward(ForwardContext& context, const Variable& x, std::int64_t first_position,
                                SelfAttentionState* carried) const {
  const Tape::Scope scope(context.tape, "attention");
  const Variable fused = projected(context, x, first_position, carried);
  const std::vector<Variable> parts = context.tape.split_last(fused, widths());
  const Variable attended = mechanism_->forward(context, parts[0], parts[1], parts[2], carried ? carried->attention.get() : nullptr);
  if (context.observe_attention) context.observe_attention({name_, parts[0], parts[1], parts[2], attended, *mechanism_});
  return output_.forward(context, attended);
}

SelfAttentionState SelfAttention::new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype, const Device& device) const {
  SelfAttentionState state{mechanism_->new_state(batch, max_tokens, dtype, device), {}};
  if (convolution_)
    state.convolution = Tensor::zeros({batch, config_.short_convolution - 1, fused_width(config_.attention)}, dtype, device);
  return state;
}

Variable SelfAttention::extend(ForwardContext& context, const Variable& x, std::int64_t first_position, SelfAttentionState& state) const {
  require(!context.tape.recording(), "a sequence is extended without recording");
  const Variable fused = projected(context, x, first_position, &state);
  const std::vector<Variable> parts = context.tape.split_last(fused, widths());
  return output_.forward(
      context, Variable(mechanism_->extend(context.stream(), parts[0].value(), parts[1].value(), parts[2].value(), *state.attention)));
}

}  // namespace furlong::layers
