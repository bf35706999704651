#pragma once
// Base64 (RFC 4648, section 4), for binary models inside JSON.
#include <optional>
#include <string>
#include <string_view>

namespace furlong {

/// Returns `bytes` as base64 with padding.
std::string to_base64(std::string_view bytes);
/// Decodes base64 with padding. Returns nullopt if `text` is not valid.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace furlong
