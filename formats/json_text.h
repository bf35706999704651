#pragma once
// Untrusted JSON, parsed into a document. Nesting depth is limited because code that walks, copies or prints a document
// is recursive.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "framework/io/json_bounds.h"

namespace furlong::foreign {

/// Parses `text`. Throws UserError that starts with `origin` if it is not JSON or is nested too deep.
nlohmann::json parse_json(std::string_view text, std::string_view origin);
/// As parse_json(), preserving the order of object members.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view origin);

}  // namespace furlong::foreign
