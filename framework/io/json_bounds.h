#pragma once
// Limits on JSON documents, checked before parsing. JSON libraries copy, print and free a document recursively; those
// that preserve member order compare each new key with all earlier ones.
#include <string_view>

namespace furlong::foreign {

/// Throws UserError that starts with `origin` if lists and objects are nested more than 64 deep.
void check_json_depth(std::string_view text, std::string_view origin);

/// For nlohmann::ordered_json: as check_json_depth(). Also throws UserError if building the objects takes more than
/// 2^29 key comparisons (32,768 keys in one object).
void check_ordered_json(std::string_view text, std::string_view origin);

}  // namespace furlong::foreign
