#pragma once
// Reads messages in protocol buffers' wire format, in which SentencePiece models are stored.
#include <cstdint>
#include <string_view>

#include "framework/core/error.h"

namespace furlong {

/// Iterates over the fields of a message. Throws UserError, starting with `origin`, if it is damaged.
class WireFields {
 public:
  WireFields(std::string_view bytes, std::string_view origin) : rest_(bytes), origin_(origin) {}

  /// Returns false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = variable();
    field_ = key >> 3;
    // Protocol buffers' parser ignores the upper half of a key, and would find another field.
    if (key >> 32 != 0 || field_ == 0) fail();
    bytes_ = {};
    number_ = 0;
    switch (key & 7) {
      case 0:
        number_ = variable();
        return true;
      case 1:
        take(8);
        return true;
      case 2:
        bytes_ = take(variable());
        return true;
      case 5:
        for (std::uint32_t i = 0; const char byte : take(4))
          number_ |= std::uint64_t{static_cast<unsigned char>(byte)} << (8 * i++);
        return true;
      default:
        fail();
    }
  }

  std::uint64_t field() const { return field_; }
  /// Returns the content of a text or of a message inside; empty for numbers.
  std::string_view bytes() const { return bytes_; }
  /// Returns an integer, or the 32 bits of a float.
  std::uint64_t number() const { return number_; }

 private:
  [[noreturn]] void fail() const {
    throw UserError("{}: not a SentencePiece model (a field is damaged); download or copy it again", origin_);
  }
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) fail();
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::uint64_t variable() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    fail();
  }

  std::string_view rest_, origin_, bytes_;
  std::uint64_t field_ = 0, number_ = 0;
};

}  // namespace furlong
