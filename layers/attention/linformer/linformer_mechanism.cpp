#include "layers/attention/linformer/linformer_mechanism.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "framework/ops/attention/softmax/softmax_attention.h"
#include "layers/attention/softmax/softmax_mechanism.h"

namespace furlong::layers {
namespace {

using ops::SequenceProjection;

constexpr const char* shared_name = "attention.sequence_projection.weight";

Initializer initial_projection(const ops::SequenceProjectionOptions& options) {
  const std::int64_t terms =
      options.kind == SequenceProjection::linear ? options.projected_length + options.max_length : options.stride();
  return Initializer::normal(1 / std::sqrt(static_cast<double>(terms)));
}

/// Returns the model's one projection, which the first layer declares.
Parameter& shared_projection(ParameterStore& store, const Shape& shape, const Initializer& initializer) {
  for (const Parameter& parameter : store.parameters()) {
    if (parameter.name() != shared_name) continue;
    if (!(parameter.shape() == shape)) {
      throw UserError(
          "{} is {} in one layer and {} in another; expected layers that share a projection to agree in length, "
          "projected length and head width, or sharing: key_value",
          shared_name, parameter.shape().text(), shape.text());
    }
    return store.find(shared_name);
  }
  return store.add(shared_name, shape, initializer, true);
}

class LinformerMechanism : public AttentionMechanism {
 public:
  LinformerMechanism(ParameterStore& store, const std::string& name, const AttentionConfig& config) : name_(name) {
    projection_.kind = config.projection;
    projection_.n_heads = config.n_kv_heads;
    projection_.projected_length = resolved_projected_length(config);
    projection_.max_length = config.max_sequence_length;
    attention_.n_heads = config.n_heads;
    attention_.n_kv_heads = config.n_kv_heads;
    attention_.causal = false;
    if (projection_.kind != SequenceProjection::mean) declare(store, config.sharing, config.d_head);
  }

  Variable forward(ForwardContext& context, const Variable& query, const Variable& key, const Variable& value,
                   AttentionState* carried) const override {
    require(!context.exchange, "segments of a sequence on different ranks with linformer attention");
    if (carried) refuse("has no recurrent state");
    if (context.attention_mask.documents.defined()) {
      throw UserError(
          "{}: linformer cannot separate packed documents, because its projection mixes all positions of a sequence; "
          "put one document in each sequence, or use mechanism softmax or linear",
          name_);
    }
    if (key.extent(1) > projection_.max_length) {
      throw UserError(
          "{}: a sequence of {} tokens; expected at most {}, the length of linformer's projection, so shorten the "
          "input or train with a larger model.max_sequence_length",
          name_, key.extent(1), projection_.max_length);
    }
    const Tensor& keys = context.attention_mask.keys;
    const Variable key_weight = substitutes_ ? substitutes_->key_projection : weight(key_),
                   value_weight = substitutes_ ? substitutes_->value_projection : weight(value_);
    const Variable projected_key = ops::sequence_projection(context.tape, key, key_weight, keys, projection_),
                   projected_value = ops::sequence_projection(context.tape, value, value_weight, keys, projection_);
    ops::AttentionMask mask;
    mask.keys = ops::sequence_projection_mask(context.stream(), keys, projection_);
    return ops::softmax_attention(context.tape, query, projected_key, projected_value, attention_, mask);
  }

  std::unique_ptr<AttentionState> new_state(std::int64_t, std::int64_t, DType, const Device&) const override {
    refuse("cannot generate token by token");
  }
  Tensor extend(const Stream&, const Tensor&, const Tensor&, const Tensor&, AttentionState&, const Tensor&,
                ops::DenominatorReport*) const override {
    refuse("cannot generate token by token");
  }
  bool substitute(const AttentionTensors& tensors) override {
    substitutes_ = tensors;
    return true;
  }

 private:
  void declare(ParameterStore& store, ProjectionSharing sharing, std::int64_t d_head) {
    const Shape shape = ops::sequence_projection_weight_shape(projection_, d_head, sharing != ProjectionSharing::none);
    const Initializer initializer = initial_projection(projection_);
    switch (sharing) {
      case ProjectionSharing::none:
      case ProjectionSharing::heads:
        key_ = &store.add(name_ + ".key_projection.weight", shape, initializer, true);
        value_ = &store.add(name_ + ".value_projection.weight", shape, initializer, true);
        return;
      case ProjectionSharing::key_value:
        key_ = value_ = &store.add(name_ + ".sequence_projection.weight", shape, initializer, true);
        return;
      case ProjectionSharing::layers:
        key_ = value_ = &shared_projection(store, shape, initializer);
        return;
    }
  }

  static Variable weight(const Parameter* parameter) { return parameter ? parameter->variable() : Variable{}; }

  [[noreturn]] void refuse(const char* what) const {
    throw UserError(
        "{}: linformer {}, because its projection needs the whole sequence at once; use mechanism softmax or linear",
        name_, what);
  }

  std::string name_;
  ops::SequenceProjectionOptions projection_;
  ops::SoftmaxAttentionOptions attention_;
  Parameter *key_ = nullptr, *value_ = nullptr;  // null for projection mean
  std::optional<AttentionTensors> substitutes_;
};

}  // namespace

std::int64_t resolved_projected_length(const AttentionConfig& config) {
  if (config.projected_length != 0) return config.projected_length;
  return std::clamp<std::int64_t>(config.max_sequence_length / 4, 1, 256);
}

namespace {

std::unique_ptr<AttentionMechanism> make_linformer(ParameterStore& store, const std::string& name,
                                                   const AttentionConfig& config) {
  require(config.max_sequence_length >= 1, "{}: linformer without max_sequence_length", name);
  if (config.causal) {
    throw UserError(
        "{}: linformer cannot be causal, because each row of its projection mixes all positions and a query would "
        "attend to later tokens; use it in an encoder, or use mechanism softmax or linear",
        name);
  }
  const std::int64_t r = resolved_projected_length(config);
  if (r < 1 || r > config.max_sequence_length) {
    throw UserError("{}: projected_length {} for sequences of at most {} tokens; expected 1 to {}, or 0 for a default",
                    name, r, config.max_sequence_length, config.max_sequence_length);
  }
  return std::make_unique<LinformerMechanism>(store, name, config);
}

/// Forward 4nrd + 4nrd, backward 8nrd + 10nrd. Mean and convolution lack the first term of each.
AttentionCost cost_of_linformer(const AttentionConfig& config, std::int64_t n) {
  const bool products = config.projection == SequenceProjection::linear;
  const ops::SequenceProjectionOptions options{.kind = config.projection,
                                               .projected_length = resolved_projected_length(config),
                                               .max_length = config.max_sequence_length};
  const double pairs = static_cast<double>(n) * static_cast<double>(options.rows(n)),
               d = static_cast<double>(config.d_head), heads = static_cast<double>(config.n_heads);
  const AttentionCost rows = softmax_cost(pairs, d);
  return {heads * ((products ? 4 * pairs * d : 0) + rows.forward),
          heads * ((products ? 12 * pairs * d : 0) + rows.with_backward)};
}

}  // namespace

MechanismInfo linformer_mechanism() {
  MechanismInfo info{"linformer", "softmax over a projected sequence, encoders only", make_linformer,
                     cost_of_linformer};
  info.projects_sequence = true;
  info.can_be_causal = info.separates_documents = info.weighs_tokens = false;
  info.limits = "its projection mixes all positions of a sequence";
  info.size = &AttentionConfig::projected_length;
  return info;
}

}  // namespace furlong::layers
