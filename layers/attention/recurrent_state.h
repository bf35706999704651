#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Called with the name and the memory of one tensor of a state; it may put another of the same dtype in its place.
using StateVisitor = std::function<void(const std::string& name, Tensor& tensor)>;

/// A past whose size does not grow with its length, so that training on consecutive segments of one long sequence can
/// carry it along.
class RecurrentAttentionState : public AttentionState {
 public:
  /// A copy with memory of its own: recomputation in backward has to begin where the first run began.
  virtual std::unique_ptr<AttentionState> clone() const = 0;
  /// All that the state holds, so that a checkpoint can keep it: names begin with `prefix`.
  virtual void visit(const std::string& prefix, const StateVisitor& visitor) = 0;
};

/// Throws UserError for a state that grows.
std::unique_ptr<AttentionState> clone_recurrent_state(const AttentionState& state);
void visit_recurrent_state(AttentionState& state, const std::string& prefix, const StateVisitor& visitor);

}  // namespace furlong::layers
