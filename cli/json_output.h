#pragma once
// JSON on standard output and in files.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

namespace furlong::command_line {

/// Returns the object as indented lines. Bytes that are not UTF-8, as paths and generated text may have, appear as
/// U+FFFD.
template <class Json>
std::string json_text(const Json& object) {
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

template <class Json>
void print_json(const Json& object) {
  fmt::print("{}", json_text(object));
}

}  // namespace furlong::command_line
