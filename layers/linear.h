#pragma once
#include <string>
#include <string_view>

#include "framework/autodiff/parameter_store.h"
#include "framework/ops/dense/linear.h"
#include "framework/ops/elementwise/activation.h"
#include "layers/context.h"
#include "layers/model_config.h"

namespace furlong::layers {

/// Whether a parameter of this name goes on being trained where a model has adapters and all else is frozen: the
/// adapters themselves, and what attention has besides its two linear maps (feature maps, gates, norms of queries and
/// keys, gains, convolutions, projections along the sequence), which a checkpoint of another mechanism has no values
/// for.
bool trains_beside_adapters(std::string_view parameter);

/// y = x · weightᵀ + bias with named parameters `name`.weight [outer, inner] and, when asked for, `name`.bias [outer].
/// With an adapter, y + (alpha / rank) (x · lora_aᵀ) · lora_bᵀ: `name`.lora_a.weight [rank, inner] begins normal with
/// variance 1 / inner, and `name`.lora_b.weight [outer, rank] as zeros, so that the map begins as the one without.
/// Which of them are trained is the store's to say.
class Linear {
 public:
  Linear(ParameterStore& store, const std::string& name, std::int64_t inner, std::int64_t outer, bool bias,
         double initial_deviation, const AdapterConfig& adapter = {});

  Variable forward(ForwardContext& context, const Variable& x) const;
  /// activation(forward(x)); where nothing is kept for backward, the activation rides along with the product, and its
  /// last bits are then not those of the op.
  Variable activated(ForwardContext& context, const Variable& x, ops::ActivationKind activation) const;

  bool has_adapter() const { return lora_a_ != nullptr; }
  /// The map's own parameters, for ops that take them; the adapter, where there is one, comes on top.
  Variable weight() const { return weight_->variable(); }
  Variable bias() const { return bias_ ? bias_->variable() : Variable{}; }  ///< undefined where there is none

 private:
  Variable product(ForwardContext& context, const Variable& x, ops::GemmEpilogue::Activation activation) const;

  Parameter* weight_;
  Parameter* bias_;
  Parameter* lora_a_ = nullptr;  // null: no adapter
  Parameter* lora_b_ = nullptr;
  double adapter_scale_ = 1;
};

}  // namespace furlong::layers
