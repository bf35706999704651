#pragma once
// Limits on JSON documents, checked before parsing. JSON libraries copy, print and free a document recursively; those
// that preserve member order compare each new key with all earlier ones.
#include <cstddef>
#include <string_view>

namespace furlong::foreign {

/// Throws UserError that starts with `origin` if lists and objects are nested more than 64 deep, less the levels of a
/// document that will contain this one.
void check_json_depth(std::string_view text, std::string_view origin, std::size_t levels_around = 0);

/// For nlohmann::ordered_json: as check_json_depth(). Also throws UserError if building the objects takes more than
/// 2^29 key comparisons of up to 128 bytes (32,768 keys in one object).
void check_ordered_json(std::string_view text, std::string_view origin);

}  // namespace furlong::foreign
