#pragma once
// JSON libraries copy, print and free a document by recursion: how deep it may go is checked before.
#include <string_view>

namespace furlong::foreign {

/// Throws UserError, beginning with `origin`, where lists and objects lie more than 64 deep in each other.
void check_json_depth(std::string_view text, std::string_view origin);

}  // namespace furlong::foreign
