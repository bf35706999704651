#pragma once
// Reads messages in protocol buffers' wire format, in which SentencePiece models are stored.
#include <cstdint>
#include <string_view>

#include "framework/core/error.h"

namespace furlong {

/// Iterates over the fields of a message. Throws UserError, starting with `origin`, if it is damaged.
class WireFields {
 public:
  enum class Kind : std::uint8_t { integer = 0, eight_bytes = 1, bytes = 2, four_bytes = 5 };

  WireFields(std::string_view bytes, std::string_view origin) : rest_(bytes), origin_(origin) {}

  /// Returns false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const std::string_view from = rest_;
    read();
    whole_ = from.substr(0, from.size() - rest_.size());
    return true;
  }

  /// Whether this is the field of that number. With another kind it is an unknown one, as for protocol buffers' parser.
  bool is(std::uint64_t field, Kind kind) const { return field_ == field && kind_ == kind; }
  bool is_integer(std::uint64_t field) const { return is(field, Kind::integer); }
  bool is_bytes(std::uint64_t field) const { return is(field, Kind::bytes); }
  std::uint64_t field() const { return field_; }
  /// Returns the content of a text or of a message inside; empty for numbers.
  std::string_view bytes() const { return bytes_; }
  /// Returns an integer, or the 32 bits of a float.
  std::uint64_t number() const { return number_; }
  /// Returns the bytes of the whole field, with its key.
  std::string_view whole() const { return whole_; }

 private:
  void read() {
    const std::uint64_t key = variable();
    field_ = key >> 3;
    kind_ = static_cast<Kind>(key & 7);
    // Protocol buffers' parser ignores the upper half of a key, and would find another field.
    if (key >> 32 != 0 || field_ == 0) fail();
    bytes_ = {};
    number_ = 0;
    switch (kind_) {
      case Kind::integer:
        number_ = variable();
        return;
      case Kind::eight_bytes:
        take(8);
        return;
      case Kind::bytes:
        bytes_ = take(variable());
        return;
      case Kind::four_bytes:
        for (std::uint32_t i = 0; const char byte : take(4))
          number_ |= std::uint64_t{static_cast<unsigned char>(byte)} << (8 * i++);
        return;
    }
    fail();
  }
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

  std::string_view rest_, origin_, bytes_, whole_;
  std::uint64_t field_ = 0, number_ = 0;
  Kind kind_ = Kind::integer;
};

}  // namespace furlong
