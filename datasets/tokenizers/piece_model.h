#pragma once
// What turns one piece of text into ids: the "model" of a tokenizer.json.
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/json_view.h"
#include "datasets/tokenizers/token_table.h"

namespace furlong {

class PieceModel {
 public:
  virtual ~PieceModel() = default;
  virtual void encode(std::string_view piece, std::vector<std::int32_t>& ids) const = 0;
};

/// Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909): of all neighbours that the list of merges has, the pair
/// highest in the list becomes one token, the leftmost first, until none is left. `byte_level`: pieces are bytes and
/// the vocabulary spells each byte with a printable character (Radford et al. 2019); otherwise letters are characters,
/// and unknown ones are their bytes' tokens ("<0xE4>") where the model says so, or the unknown token. Throws UserError
/// for parts that are missing or not supported.
std::unique_ptr<PieceModel> make_bpe_model(const JsonView& model, const TokenTable& vocabulary, bool byte_level);

/// WordPiece (Wu et al. 2016, arXiv:1609.08144, as in BERT): from the left the longest token there is, those inside a
/// word with a prefix ("##").
std::unique_ptr<PieceModel> make_wordpiece_model(const JsonView& model, const TokenTable& vocabulary);

/// What byte-level vocabularies spell a byte with: itself where it is printable in Latin-1, else characters from U+0100
/// on.
char32_t letter_of_byte(unsigned char byte);
/// The bytes that a byte-level token stands for; nothing where it has a character that spells no byte.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace furlong
