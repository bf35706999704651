#pragma once
#include "framework/autodiff/parameter_store.h"
#include "framework/ops/normalization/norm.h"
#include "layers/context.h"
#include "layers/model_config.h"

namespace furlong::layers {

/// layernorm or rmsnorm over the last dimension, fused with a residual addition before it. Parameters: `name`.gain, and
/// `name`.bias if `bias` is true.
class Norm {
 public:
  /// Declares the parameters [d_model] in `store`, which must outlive this object.
  Norm(ParameterStore& store, const std::string& name, std::int64_t d_model, ops::NormKind kind, double epsilon,
       bool bias)
      : kind_(kind),
        epsilon_(epsilon),
        gain_(&store.add(name + ".gain", {d_model}, Initializer::ones(), false)),
        bias_(bias ? &store.add(name + ".bias", {d_model}, Initializer::zeros(), false) : nullptr) {}

  /// Uses the norm, epsilon and bias of the model's config.
  Norm(ParameterStore& store, const std::string& name, std::int64_t width, const ModelConfig& config)
      : Norm(store, name, width, config.norm, config.norm_epsilon, config.bias) {}

  /// Returns residual + branch and its normalized value. `branch` may be null.
  ops::NormOutputs forward(ForwardContext& context, const Variable& residual, const Variable* branch) const {
    const Variable bias = bias_ ? bias_->variable() : Variable{};
    return ops::norm(context.tape, residual, branch, gain_->variable(), bias_ ? &bias : nullptr, kind_, epsilon_);
  }

 private:
  ops::NormKind kind_;
  double epsilon_;
  Parameter* gain_;
  Parameter* bias_;
};

}  // namespace furlong::layers
