#pragma once
// JSON that a stranger wrote, as a document: bounded in depth, for whoever walks through one, copies or prints it calls
// itself.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "framework/io/json_bounds.h"

namespace furlong::foreign {

/// Throws UserError, beginning with `origin`, where `text` is no JSON, or nested too deep.
nlohmann::json parse_json(std::string_view text, std::string_view origin);
/// The same with the members of objects in their order.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view origin);

}  // namespace furlong::foreign
