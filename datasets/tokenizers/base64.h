#pragma once
// Bytes as text (RFC 4648, section 4), for models inside JSON.
#include <optional>
#include <string>
#include <string_view>

namespace furlong {

std::string to_base64(std::string_view bytes);
/// Nothing where `text` is not base64 with its padding.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace furlong
