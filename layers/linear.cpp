#include "layers/linear.h"

#include <cmath>

#include "framework/ops/elementwise/weighted_sum.h"

namespace furlong::layers {

bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(".lora_a.weight") || parameter.ends_with(".lora_b.weight");
}

bool is_trained_with_adapters(std::string_view parameter) {
  if (is_adapter(parameter)) return true;
  // The projection along the sequence that all layers share is not part of a block.
  if (parameter.starts_with("attention.")) return true;
  const auto names = [&](std::string_view part) { return parameter.find(part) != std::string_view::npos; };
  return names(".attention.") && !names(".attention.query_key_value.") && !names(".attention.output.");
}

Linear::Linear(ParameterStore& store, const std::string& name, std::int64_t in_features, std::int64_t out_features,
               bool bias, double initial_deviation, const AdapterConfig& adapter)
    : weight_(&store.add(name + ".weight", {out_features, in_features}, Initializer::normal(initial_deviation), true)),
      bias_(bias ? &store.add(name + ".bias", {out_features}, Initializer::zeros(), false) : nullptr) {
  if (adapter.rank == 0) return;
  const double deviation = 1 / std::sqrt(static_cast<double>(in_features));
  lora_a_ = &store.add(name + ".lora_a.weight", {adapter.rank, in_features}, Initializer::normal(deviation), true);
  lora_b_ = &store.add(name + ".lora_b.weight", {out_features, adapter.rank}, Initializer::zeros(), true);
  adapter_scale_ = adapter.scale();
}

Variable Linear::product(ForwardContext& context, const Variable& x, ops::GemmEpilogue::Activation activation) const {
  if (!bias_) return ops::linear(context.tape, x, weight_->variable(), nullptr, activation);
  const Variable bias = bias_->variable();
  return ops::linear(context.tape, x, weight_->variable(), &bias, activation);
}

Variable Linear::forward(ForwardContext& context, const Variable& x) const {
  const Variable y = product(context, x, ops::GemmEpilogue::Activation::none);
  if (!lora_a_) return y;
  const Variable inside = ops::linear(context.tape, x, lora_a_->variable(), nullptr);
  return ops::weighted_sum(context.tape, y, ops::linear(context.tape, inside, lora_b_->variable(), nullptr),
                           adapter_scale_);
}

Variable Linear::activated(ForwardContext& context, const Variable& x, ops::ActivationKind activation) const {
  const bool kept = context.tape.recording() || context.tape.will_rerun();
  if (!kept && !lora_a_) return product(context, x, ops::epilogue_activation(activation));
  return ops::activation(context.tape, forward(context, x), activation);
}

}  // namespace furlong::layers
