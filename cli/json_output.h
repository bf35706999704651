#pragma once
// JSON on standard output.
#include <fmt/format.h>

#include "framework/core/json_output.h"

namespace furlong::command_line {

template <class Json>
void print_json(const Json& object) {
  fmt::print("{}", json_text(object));
}

}  // namespace furlong::command_line
