#pragma once
// JSON as text. Bytes that are not UTF-8, as paths and generated text may have, appear as U+FFFD: dump() alone throws.
#include <nlohmann/json.hpp>
#include <string>

namespace furlong {

/// Returns a value as one line, without its end.
template <class Json>
std::string json_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Returns an object as indented lines.
template <class Json>
std::string json_text(const Json& object) {
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace furlong
