#pragma once
// Names of an enumeration's values, for parsing, printing and lists of choices. The single table of names is declared
// next to the enumeration, in the order of its values, which start at 0:
//   constexpr auto names_of(NormKind) { return std::array{"layernorm", "rmsnorm"}; }
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "framework/core/error.h"

namespace furlong {

template <class E>
concept NamedEnum = std::is_enum_v<E> && sizeof(E) == 1 && requires(E value) {
  names_of(value);
};

/// Returns the name of a value.
template <NamedEnum E>
constexpr const char* name_of(E value) {
  return names_of(value).at(static_cast<std::size_t>(value));
}

/// Returns the names of all values, in order.
template <NamedEnum E>
std::vector<std::string> names_of_all() {
  const auto names = names_of(E{});
  return {names.begin(), names.end()};
}

/// Returns all values, in order.
template <NamedEnum E>
std::vector<E> all_values() {
  std::vector<E> values;
  for (std::size_t i = 0; i < names_of(E{}).size(); ++i) values.push_back(static_cast<E>(i));
  return values;
}

/// Returns the value with this name. Throws UserError if there is none; the message starts with `what` and lists the
/// names.
template <NamedEnum E>
E value_named(const std::string& name, const char* what) {
  std::string known;
  for (const E value : all_values<E>()) {
    if (name == name_of(value)) return value;
    known += (known.empty() ? "" : ", ") + std::string(name_of(value));
  }
  throw UserError("{} '{}' is unknown; expected one of {}", what, name, known);
}

}  // namespace furlong
