#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Receives the name and the memory of one tensor of a state. It may replace the tensor with another of the same dtype.
using StateVisitor = std::function<void(const std::string& name, Tensor& tensor)>;

/// A state whose size does not grow with length. Stateful training passes it from one segment of a long sequence to the
/// next.
class RecurrentAttentionState : public AttentionState {
 public:
  /// Returns a deep copy. Recomputation in backward starts from it.
  virtual std::unique_ptr<AttentionState> clone() const = 0;
  /// Visits every tensor of the state, for checkpoints. Names start with `prefix`.
  virtual void visit(const std::string& prefix, const StateVisitor& visitor) = 0;
};

/// Returns a deep copy of a recurrent state. Throws UserError if the state grows with length.
std::unique_ptr<AttentionState> clone_recurrent_state(const AttentionState& state);
/// Visits every tensor of a recurrent state. Throws UserError if the state grows with length.
void visit_recurrent_state(AttentionState& state, const std::string& prefix, const StateVisitor& visitor);

}  // namespace furlong::layers
