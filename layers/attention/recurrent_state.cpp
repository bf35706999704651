#include "layers/attention/recurrent_state.h"

namespace furlong::layers {
namespace {

template <class To, class From>
To& recurrent(From& state) {
  auto* found = dynamic_cast<To*>(&state);
  if (!found) {
    throw UserError(
        "state can be carried from segment to segment only where it does not grow with the text, and a softmax layer "
        "keeps all keys and values; expected mechanism linear or windowed in every layer, or training without carried "
        "state");
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
