#include "framework/primitives/activation_kind.h"

#include "framework/core/error.h"

namespace furlong::ops {

const char* name_of(ActivationKind kind) {
  for (const ActivationName& entry : activation_names) {
    if (entry.kind == kind) return entry.name;
  }
  throw ContractError("activation number {} has no name", static_cast<int>(kind));
}

ActivationKind activation_from_name(const std::string& name) {
  std::string known;
  for (const ActivationName& entry : activation_names) {
    if (name == entry.name) return entry.kind;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw UserError("unknown activation '{}', expected one of: {}", name, known);
}

}  // namespace furlong::ops
