#pragma once
#include "layers/linear.h"

namespace furlong::layers {

/// An activation between two projections, or a gate beside the first. Parameters: `name`.input (gated: gate rows first,
/// then up), `name`.output.
class FeedForward {
 public:
  FeedForward(ParameterStore& store, const std::string& name, const ModelConfig& config);
  /// x [..., d_model] -> the same shape.
  Variable forward(ForwardContext& context, const Variable& x) const;

 private:
  bool gated_;
  ops::ActivationKind kind_;
  Linear input_, output_;
};

}  // namespace furlong::layers
