#pragma once
// Builds SentencePiece models from their parts, for tokenizers stored in other file formats.
#include <cstdint>
#include <string>
#include <vector>

namespace furlong {

/// The parts of a sentencepiece.ModelProto (sentencepiece_model.proto) that determine the ids of a text.
struct SentencePieceProto {
  enum class Type : std::uint32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };
  std::vector<Piece> pieces;  ///< by id; exactly one of type unknown
  bool bpe = false;           ///< false: unigram
  bool byte_fallback = false;
  std::int32_t beginning = -1, end = -1, padding = -1;  ///< ids of pieces of type control; -1: none
  std::string normalization_map;                        ///< as compiled by SentencePiece; empty: none
  bool add_dummy_prefix = true, remove_extra_whitespaces = true;

  /// Returns the model in protocol buffers' wire format.
  std::string serialized() const;
};

}  // namespace furlong
