#include "framework/primitives/activation_kind.h"

#include "framework/core/error.h"

namespace furlong::ops {

const char* name_of(ActivationKind kind) {
  for (const ActivationName& entry : activation_names) {
    if (entry.kind == kind) return entry.name;
  }
  throw ContractError("unknown activation number {}", static_cast<int>(kind));
}

}  // namespace furlong::ops
