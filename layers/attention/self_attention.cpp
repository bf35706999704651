#include "layers/attention/self_attention.h"

#include "framework/ops/dense/short_convolution.h"
#include "framework/ops/elementwise/contiguous.h"

namespace furlong::layers {
namespace {

std::int64_t fused_width(const AttentionConfig& attention) {
  return (attention.n_heads + 2 * attention.n_kv_heads) * attention.d_head;
}

}  // namespace

SelfAttentionState SelfAttentionState::clone() const {
  return {clone_recurrent_state(*attention), convolution.defined() ? convolution.clone() : Tensor{}};
}

void SelfAttentionState::visit(const std::string& prefix, const StateVisitor& visitor) {
  visit_recurrent_state(*attention, prefix + ".attention", visitor);
  if (convolution.defined()) visitor(prefix + ".convolution", convolution);
}

SelfAttention::SelfAttention(ParameterStore& store, const std::string& name, const ModelConfig& config,
                             const AttentionConfig& attention, ops::RotaryTable* rotary)
    : name_(name),
      attention_(attention),
      rotary_(rotary),
      query_key_value_(store, name + ".query_key_value", config.d_model, fused_width(attention),
                       config.has_query_key_value_bias(), config.initializer_range, config.adapter),
      output_(store, name + ".output", attention.n_heads * attention.d_head, config.d_model, config.bias,
              config.branch_initializer_range(), config.adapter) {
  if (config.short_convolution > 0) {
    convolution_ = &store.add(name + ".short_convolution.weight", {fused_width(attention), config.short_convolution},
                              Initializer::causal_dirac(), false);
  }
  if (config.query_key_norm == QueryKeyNorm::rmsnorm) {
    const auto norm = [&](const char* of) {
      return Norm(store, name + of, attention.d_head, ops::NormKind::rmsnorm, config.norm_epsilon, false);
    };
    query_norm_ = norm(".query_norm");
    key_norm_ = norm(".key_norm");
  }
  mechanism_ = make_attention(store, name, attention);
}

SelfAttention::SelfAttention(const SelfAttention& first, const std::string& name) : SelfAttention(first) {
  name_ = name;
  shared_ = true;
}

SelfAttention::Heads SelfAttention::split(ForwardContext& context, const Variable& fused) const {
  const std::int64_t queries = attention_.n_heads * attention_.d_head, keys = attention_.n_kv_heads * attention_.d_head;
  const std::vector<Variable> parts = context.tape.split_last(fused, {queries, keys, keys});
  return {parts[0], parts[1], parts[2]};
}

/// Normalizes each head of x [batch, n, heads · d_head] separately.
Variable SelfAttention::normed(ForwardContext& context, const Variable& x, const Norm& norm) const {
  const std::int64_t d_head = attention_.d_head, heads = x.extent(2) / d_head;
  const Variable rows = ops::contiguous(context.tape, x).reshape({x.extent(0), x.extent(1) * heads, d_head});
  return norm.forward(context, rows, nullptr).normed.reshape(x.shape());
}

SelfAttention::Heads SelfAttention::heads_of(ForwardContext& context, const Variable& x, std::int64_t first_position,
                                             const SelfAttentionState* state) const {
  const Tensor* history = state && state->convolution.defined() ? &state->convolution : nullptr;
  Variable fused = query_key_value_.forward(context, x);  // [batch, n, (n_heads + 2 n_kv_heads) d_head]
  if (convolution_) {
    require(!context.exchange, "segments of a sequence on different ranks with a short convolution");
    const Tensor& documents = context.attention_mask.documents;
    fused = ops::short_convolution(context.tape, fused, convolution_->variable(), history, history,
                                   documents.defined() ? &documents : nullptr);
  }
  const Tensor own = rotary_ ? context.own_positions() : Tensor{};
  const auto rotate = [&](const Variable& columns, std::int64_t n_heads) {
    return ops::rotary(context.tape, columns, n_heads, attention_.d_head, own.defined() ? 0 : first_position, *rotary_,
                       own.defined() ? &own : nullptr);
  };
  if (!query_norm_) {
    // The columns of query and key heads precede those of value heads, so one pass rotates both.
    return split(context, rotary_ ? rotate(fused, attention_.n_heads + attention_.n_kv_heads) : fused);
  }
  Heads heads = split(context, fused);
  heads.query = normed(context, heads.query, *query_norm_);
  heads.key = normed(context, heads.key, *key_norm_);
  if (rotary_) {
    heads.query = rotate(heads.query, attention_.n_heads);
    heads.key = rotate(heads.key, attention_.n_kv_heads);
  }
  return heads;
}

Variable SelfAttention::forward(ForwardContext& context, const Variable& x, std::int64_t first_position,
                                SelfAttentionState* carried) const {
  const Tape::Scope scope(context.tape, "attention");
  const Heads heads = heads_of(context, x, first_position, carried);
  const Variable attended =
      mechanism_->forward(context, heads.query, heads.key, heads.value, carried ? carried->attention.get() : nullptr);
  const Variable projected = output_.forward(context, attended);
  if (context.observe_attention)
    context.observe_attention({name_, x, heads.query, heads.key, heads.value, attended, projected, *mechanism_});
  return projected;
}

SelfAttentionState SelfAttention::new_state(std::int64_t batch, std::int64_t max_tokens, DType dtype,
                                            const Device& device) const {
  SelfAttentionState state{mechanism_->new_state(batch, max_tokens, dtype, device), {}};
  if (convolution_)
    state.convolution = Tensor::zeros({batch, convolution_->shape()[1] - 1, fused_width(attention_)}, dtype, device);
  return state;
}

Variable SelfAttention::extend(ForwardContext& context, const Variable& x, std::int64_t first_position,
                               SelfAttentionState& state) const {
  require(!context.tape.recording(), "SelfAttention::extend with a recording tape");
  const Heads heads = heads_of(context, x, first_position, &state);
  return output_.forward(context, Variable(mechanism_->extend(context.stream(), heads.query.value(), heads.key.value(),
                                                              heads.value.value(), *state.attention)));
}

}  // namespace furlong::layers
