#pragma once
#include <string>
#include <string_view>

#include "framework/autodiff/parameter_store.h"
#include "framework/ops/dense/linear.h"
#include "framework/ops/elementwise/activation.h"
#include "layers/context.h"
#include "layers/model_config.h"

namespace furlong::layers {

/// Returns true for the matrices of an adapter: names that end in .lora_a.weight or .lora_b.weight.
bool is_adapter(std::string_view parameter);
/// Returns true if a parameter is trained in a model with adapters, where all other weights are frozen. These are the
/// adapters, and all parameters of attention other than its two linear maps: feature maps, gates, norms of queries and
/// keys, gains, convolutions and projections along the sequence. A checkpoint of another mechanism has no values for
/// them.
bool is_trained_with_adapters(std::string_view parameter);

/// y = x · weightᵀ + bias, with parameters `name`.weight [out_features, in_features] and, if `bias`, `name`.bias
/// [out_features]. With an adapter: y + (alpha / rank) (x · lora_aᵀ) · lora_bᵀ. `name`.lora_a.weight [rank,
/// in_features] is initialized as N(0, 1 / in_features) and `name`.lora_b.weight [out_features, rank] as zeros, so the
/// adapter initially changes nothing. The store decides which parameters are trained (ParameterStore::freeze).
class Linear {
 public:
  /// Declares the parameters in `store`, which must outlive this object. The initial weights are
  /// N(0, initial_deviation²), the initial bias is 0. An adapter of rank 0 is none.
  Linear(ParameterStore& store, const std::string& name, std::int64_t in_features, std::int64_t out_features, bool bias,
         double initial_deviation, const AdapterConfig& adapter = {});

  /// Maps x [..., in_features] to [..., out_features].
  Variable forward(ForwardContext& context, const Variable& x) const;
  /// Returns activation(forward(x)). If nothing is stored for backward, the activation is fused with the product; the
  /// last bits of the result may then differ from the separate op.
  Variable activated(ForwardContext& context, const Variable& x, ops::ActivationKind activation) const;

  /// Returns whether the layer has LoRA parameters.
  bool has_adapter() const { return lora_a_ != nullptr; }
  /// The map's own parameters, without the adapter, for ops that take them.
  Variable weight() const { return weight_->variable(); }
  /// The bias; undefined if the layer has none.
  Variable bias() const { return bias_ ? bias_->variable() : Variable{}; }

 private:
  Variable product(ForwardContext& context, const Variable& x, ops::GemmEpilogue::Activation activation) const;

  Parameter* weight_;
  Parameter* bias_;
  Parameter* lora_a_ = nullptr;  // null: no adapter
  Parameter* lora_b_ = nullptr;
  double adapter_scale_ = 1;
};

}  // namespace furlong::layers
