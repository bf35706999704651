#pragma once
// JSON on standard output.
#include "cli/text_output.h"
#include "framework/core/json_output.h"

namespace furlong::command_line {

template <class Json>
void print_json(const Json& object) {
  print_text(json_text(object));
}

}  // namespace furlong::command_line
