#include "layers/attention/recurrent_state.h"

namespace furlong::layers {
namespace {

template <class To, class From>
To& recurrent(From& state) {
  auto* found = dynamic_cast<To*>(&state);
  if (!found) {
    throw UserError(
        "model.attention.mechanism: stateful training needs a recurrent state of constant size; expected mechanism "
        "linear in every layer, or data.stateful: false");
  }
  return *found;
}

}  // namespace

std::unique_ptr<AttentionState> clone_recurrent_state(const AttentionState& state) {
  return recurrent<const RecurrentAttentionState>(state).clone();
}

void visit_recurrent_state(AttentionState& state, const std::string& prefix, const StateVisitor& visitor) {
  recurrent<RecurrentAttentionState>(state).visit(prefix, visitor);
}

}  // namespace furlong::layers
