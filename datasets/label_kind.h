#pragma once
// What the labels of documents are.
#include <array>
#include <cstdint>

#include "framework/core/enum_names.h"

namespace furlong {

/// classes: one of several labels. numbers: one or several real numbers. sets: any number of labels. tokens: a label
/// for each token, or none.
enum class LabelKind : std::uint8_t { classes, numbers, sets, tokens };
constexpr auto names_of(LabelKind) { return std::array{"class", "number", "set", "token"}; }

}  // namespace furlong
