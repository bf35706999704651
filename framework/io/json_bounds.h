#pragma once
// JSON libraries copy, print and free a document by recursion, and keep the members of an object in order by comparing
// each new key with all before it: how deep and how wide a document may be is checked before.
#include <string_view>

namespace furlong::foreign {

/// Throws UserError, beginning with `origin`, where lists and objects lie more than 64 deep in each other.
void check_json_depth(std::string_view text, std::string_view origin);

/// For nlohmann::ordered_json: that, and UserError as well where building the objects takes more than 2^29 comparisons
/// of keys (32,768 in one object).
void check_ordered_json(std::string_view text, std::string_view origin);

}  // namespace furlong::foreign
