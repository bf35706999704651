#pragma once
#include "layers/linear.h"

namespace furlong::layers {

/// Feedforward network: two projections with an activation between them, or with a gate (swiglu, geglu). Parameters:
/// `name`.input (gated: rows of the gate first, then of the up projection), `name`.output.
class FeedForward {
 public:
  /// Declares the parameters in `store`.
  FeedForward(ParameterStore& store, const std::string& name, const ModelConfig& config);
  /// Maps x [..., d_model] to the same shape.
  Variable forward(ForwardContext& context, const Variable& x) const;

 private:
  bool gated_;
  ops::ActivationKind kind_;
  Linear input_, output_;
};

}  // namespace furlong::layers
