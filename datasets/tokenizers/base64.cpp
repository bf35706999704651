#include "datasets/tokenizers/base64.h"

#include <cstdint>

namespace furlong {
namespace {

constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const auto byte = [&](std::size_t i) {
      return at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u;
    };
    const std::uint32_t group = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (std::size_t i = 0; i < 4; ++i) text += at + i > bytes.size() ? '=' : digits[group >> (18 - 6 * i) & 63];
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::size_t padding = 0;
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const char letter = text[at + i];
      const std::size_t value = digits.find(letter);
      const bool pads = letter == '=' && at + 4 == text.size() && i >= 2;
      if (!pads && (value == std::string_view::npos || padding > 0)) return std::nullopt;
      padding += pads;
      group = group << 6 | (pads ? 0 : static_cast<std::uint32_t>(value));
    }
    for (std::size_t i = 0; i + padding < 3; ++i)
      bytes += static_cast<char>(static_cast<unsigned char>(group >> (16 - 8 * i) & 255));
  }
  return bytes;
}

}  // namespace furlong
