#include "framework/core/printable.h"

#include <fmt/format.h>

#include <cstddef>

namespace furlong::foreign {

std::size_t character_bytes(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xc2 && first < 0xe0   ? 2
                             : (first & 0xf0) == 0xe0        ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  if (length == 0 || length > text.size() - at) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and code points above U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0)) return 0;
  if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90)) return 0;
  return length;
}

namespace {

std::string escaped(std::string_view bytes, std::size_t longest, bool quotes) {
  std::string result;
  for (std::size_t at = 0; at < bytes.size();) {
    if (result.size() >= longest) return result + "...";
    const std::size_t length = character_bytes(bytes, at);
    const auto byte = static_cast<unsigned char>(bytes[at]);
    // U+0080 to U+009F (0xc2 0x80 on) are control characters too, and U+2028 and U+2029 (0xe2 0x80 0xa8, a9) end lines.
    const bool plain = length > 0 && byte >= 0x20 && byte != 0x7f && !(quotes && byte == '\'') &&
                       !(byte == 0xc2 && static_cast<unsigned char>(bytes[at + 1]) < 0xa0) &&
                       bytes.substr(at, length) != "\u2028" && bytes.substr(at, length) != "\u2029";
    if (plain) {
      result += bytes.substr(at, length);
      at += length;
    } else {
      result += fmt::format("\\x{:02x}", byte);
      ++at;
    }
  }
  return result;
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = character_bytes(bytes, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string printable(std::string_view bytes) { return escaped(bytes, 100, true); }

std::string single_line(std::string_view bytes, std::size_t longest) { return escaped(bytes, longest, false); }

}  // namespace furlong::foreign
