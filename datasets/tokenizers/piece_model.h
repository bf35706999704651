#pragma once
// Encodes one piece of text as ids: the "model" of a tokenizer.json.
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/json_view.h"
#include "datasets/tokenizers/token_table.h"

namespace furlong {

/// Interface of the models.
class PieceModel {
 public:
  virtual ~PieceModel() = default;
  /// Appends the ids of `piece` to `ids`.
  virtual void encode(std::string_view piece, std::vector<std::int32_t>& ids) const = 0;
  /// Returns the number of characters of `piece` of which encode() skips at least a part.
  virtual std::uint64_t count_skipped(std::string_view /*piece*/) const { return 0; }
  /// Whether encode() skips letters that the vocabulary lacks.
  virtual bool skips() const { return false; }
};

/// Returns a byte-pair encoder (Sennrich et al. 2016, arXiv:1508.07909). Of all adjacent pairs in the list of merges,
/// the highest in the list is merged first, then the leftmost, until none is left. With `byte_level`, pieces are bytes,
/// and the vocabulary writes each byte as a printable character (Radford et al. 2019). Otherwise letters are
/// characters. An unknown letter becomes the tokens of its bytes ("<0xE4>") if the model has byte_fallback, else the
/// unknown token. Throws UserError if a part is missing or not supported.
std::unique_ptr<PieceModel> make_bpe_model(const JsonView& model, const TokenTable& vocabulary, bool byte_level);

/// Returns a WordPiece encoder (Wu et al. 2016, arXiv:1609.08144, as in BERT): from the left, the longest known token.
/// Tokens inside a word start with a prefix ("##").
std::unique_ptr<PieceModel> make_wordpiece_model(const JsonView& model, const TokenTable& vocabulary);

/// Returns a Unigram encoder (Kudo 2018, arXiv:1804.10959): the segmentation with the largest sum of scores. Tokens in
/// `special` stand for no text. A run of unknown characters becomes the tokens of its bytes ("<0xE4>") if the model has
/// byte_fallback and all of them, else one unknown token. Throws UserError if a part is missing.
std::unique_ptr<PieceModel> make_unigram_model(const JsonView& model, const TokenTable& vocabulary,
                                               const std::set<std::int32_t>& special);

/// Returns the character that byte-level vocabularies write for a byte: the byte itself if it is printable in Latin-1,
/// otherwise a character from U+0100 on.
char32_t letter_of_byte(unsigned char byte);
/// Returns the bytes of a byte-level token, or nullopt if one of its characters stands for no byte.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace furlong
