#pragma once
// The parts of SentencePiece models, for tokenizers stored in other file formats.
#include <cstdint>
#include <string>
#include <string_view>
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
  /// Only read, not written: a model of words or of characters, the dummy prefix at the end, spaces that stay spaces.
  bool other_algorithm = false, whitespace_as_suffix = false, keeps_spaces = false;

  /// Returns the model in protocol buffers' wire format.
  std::string serialized() const;
  /// Reads a serialized model. Throws UserError, starting with `origin`, if it is damaged.
  static SentencePieceProto parsed(std::string_view model, std::string_view origin);
};

}  // namespace furlong
