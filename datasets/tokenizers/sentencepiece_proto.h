#pragma once
// SentencePiece models written from their parts, for tokenizers that come in other files.
#include <cstdint>
#include <string>
#include <vector>

namespace furlong {

/// The parts of a sentencepiece.ModelProto (sentencepiece_model.proto) that decide what ids a text has.
struct SentencePieceProto {
  enum class Type : std::uint32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };
  std::vector<Piece> pieces;  ///< by id; exactly one of type unknown
  bool bpe = false;           ///< else unigram
  bool byte_fallback = false;
  std::int32_t beginning = -1, end = -1, padding = -1;  ///< ids of pieces of type control; -1: none
  std::string normalization_map;                        ///< as SentencePiece compiles it; empty: none
  bool add_dummy_prefix = true, remove_extra_whitespaces = true;

  /// In the wire format of protocol buffers.
  std::string serialized() const;
};

}  // namespace furlong
