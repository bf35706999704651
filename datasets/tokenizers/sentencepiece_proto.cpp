#include "datasets/tokenizers/sentencepiece_proto.h"

#include <bit>

#include "datasets/tokenizers/wire_format.h"

namespace furlong {
namespace {

/// Builds one message in protocol buffers' wire format: each field is a key (number and wire type) and a value.
class Message {
 public:
  Message& integer(std::uint32_t field, std::int64_t value) {
    key(field, 0);
    variable(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& bytes(std::uint32_t field, std::string_view value) {
    key(field, 2);
    variable(value.size());
    bytes_ += value;
    return *this;
  }
  Message& real(std::uint32_t field, float value) {
    key(field, 5);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8)
      bytes_ += static_cast<char>(static_cast<unsigned char>(bits >> shift & 255));
    return *this;
  }
  const std::string& text() const { return bytes_; }

 private:
  void key(std::uint32_t field, std::uint32_t kind) { variable(field << 3 | kind); }
  void variable(std::uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(static_cast<unsigned char>(128 | (value & 127)));
    bytes_ += static_cast<char>(static_cast<unsigned char>(value));
  }
  std::string bytes_;
};

using Kind = WireFields::Kind;

SentencePieceProto::Piece parsed_piece(std::string_view message, std::string_view origin) {
  SentencePieceProto::Piece piece;
  for (WireFields fields(message, origin); fields.next();) {
    if (fields.is_bytes(1)) piece.text = fields.bytes();
    if (fields.is(2, Kind::four_bytes)) piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(fields.number()));
    const auto type = static_cast<std::int32_t>(fields.number());
    if (fields.is_integer(3) && type >= 1 && type <= 6) piece.type = static_cast<SentencePieceProto::Type>(type);
  }
  return piece;
}

void parse_trainer(std::string_view message, std::string_view origin, SentencePieceProto& proto) {
  for (WireFields fields(message, origin); fields.next();) {
    const bool is_set = fields.number() != 0;
    if (fields.is_integer(3)) {
      const auto algorithm = static_cast<std::int32_t>(fields.number());
      proto.bpe = algorithm == 2;
      proto.other_algorithm = algorithm != 1 && algorithm != 2;
    }
    if (fields.is_integer(24)) proto.whitespace_as_suffix = is_set;
    if (fields.is_integer(35)) proto.byte_fallback = is_set;
    if (fields.is_integer(41)) proto.beginning = static_cast<std::int32_t>(fields.number());
    if (fields.is_integer(42)) proto.end = static_cast<std::int32_t>(fields.number());
    if (fields.is_integer(43)) proto.padding = static_cast<std::int32_t>(fields.number());
  }
}

void parse_normalizer(std::string_view message, std::string_view origin, SentencePieceProto& proto) {
  for (WireFields fields(message, origin); fields.next();) {
    const bool is_set = fields.number() != 0;
    if (fields.is_bytes(2)) proto.normalization_map = fields.bytes();
    if (fields.is_integer(3)) proto.add_dummy_prefix = is_set;
    if (fields.is_integer(4)) proto.remove_extra_whitespaces = is_set;
    if (fields.is_integer(5)) proto.keeps_spaces = !is_set;
  }
}

}  // namespace

SentencePieceProto SentencePieceProto::parsed(std::string_view model, std::string_view origin) {
  SentencePieceProto proto;
  proto.beginning = 1;  // the defaults of sentencepiece_model.proto
  proto.end = 2;
  for (WireFields fields(model, origin); fields.next();) {
    if (fields.is_bytes(1)) proto.pieces.push_back(parsed_piece(fields.bytes(), origin));
    if (fields.is_bytes(2)) parse_trainer(fields.bytes(), origin, proto);
    if (fields.is_bytes(3)) parse_normalizer(fields.bytes(), origin, proto);
  }
  return proto;
}

std::string SentencePieceProto::serialized() const {
  Message model;
  std::int32_t unknown = -1;
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    const Piece& piece = pieces[id];
    if (piece.type == Type::unknown) unknown = static_cast<std::int32_t>(id);
    model.bytes(
        1,
        Message().bytes(1, piece.text).real(2, piece.score).integer(3, static_cast<std::int64_t>(piece.type)).text());
  }
  Message trainer;
  trainer.integer(3, bpe ? 2 : 1)
      .integer(4, static_cast<std::int64_t>(pieces.size()))
      .integer(35, byte_fallback ? 1 : 0);
  trainer.integer(40, unknown).integer(41, beginning).integer(42, end).integer(43, padding);
  const auto name = [&](std::uint32_t field, std::int32_t id) {
    if (id >= 0) trainer.bytes(field, pieces[static_cast<std::size_t>(id)].text);
  };
  name(45, unknown);
  name(46, beginning);
  name(47, end);
  name(48, padding);
  model.bytes(2, trainer.text());
  model.bytes(3, Message()
                     .bytes(1, "user_defined")
                     .bytes(2, normalization_map)
                     .integer(3, add_dummy_prefix ? 1 : 0)
                     .integer(4, remove_extra_whitespaces ? 1 : 0)
                     .integer(5, 1)
                     .text());
  return model.text();
}

}  // namespace furlong
