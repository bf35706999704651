#pragma once
#include "framework/ops/elementwise/activation.h"
#include "layers/linear.h"

namespace furlong::layers {

/// Activations as YAML names them: gelu, gelu_tanh, relu, silu between two projections; swiglu and geglu with a gate
/// beside the first (Shazeer 2020, "GLU Variants Improve Transformer"). Parameters: `name`.input (gated: gate rows
/// first, then up), `name`.output.
class FeedForward {
 public:
  FeedForward(ParameterStore& store, const std::string& name, std::int64_t d_model, std::int64_t d_feedforward,
              const std::string& activation, bool bias, double initial_deviation, double output_deviation,
              const AdapterConfig& adapter = {});
  /// x [..., d_model] -> the same shape.
  Variable forward(ForwardContext& context, const Variable& x) const;

 private:
  bool gated_;
  ops::ActivationKind kind_;
  Linear input_, output_;
};

}  // namespace furlong::layers
