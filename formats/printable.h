#pragma once
// Names out of foreign files, which may hold any bytes, on their way into messages of one line.
#include <string>
#include <string_view>

namespace furlong::foreign {

/// Whether the bytes are UTF-8 as RFC 3629 has it: shortest forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::string_view bytes);

/// The text with control characters, quotes and what is not UTF-8 as \xNN, cut after about 100 characters.
std::string printable(std::string_view bytes);

}  // namespace furlong::foreign
