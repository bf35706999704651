#pragma once
// The three ways to make a tokenizer; what files hold is brought into one of these forms. For the files of this folder.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/added_tokens.h"
#include "datasets/tokenizers/special_tokens.h"
#include "datasets/tokenizers/tokenizer.h"

namespace furlong {

/// What stands before and behind a whole document.
struct TokenFrame {
  std::vector<std::int32_t> front, back;
};

nlohmann::json frame_to_json(const TokenFrame& frame);
TokenFrame frame_from_json(const JsonView& json);
/// Of the "post_processor" of a tokenizer.json ([CLS] A [SEP] and the like); what belongs to pairs of texts is passed
/// over. Throws UserError naming what is not supported.
TokenFrame frame_of_processor(const JsonView& json);

/// Of a tokenizer.json with a BPE or WordPiece model. `special` says which tokens play which part and may be left out:
/// then `names` and the usual spellings do.
std::shared_ptr<const Tokenizer> make_pipeline_tokenizer(nlohmann::json tokenizer, const SpecialNames& names,
                                                         const SpecialTokens* special, std::string_view origin);

/// Of a SentencePiece model, with what stands around it.
struct SentencePieceParts {
  std::string model;              ///< a serialised ModelProto
  nlohmann::json normalizer;      ///< as in a tokenizer.json, applied before the model's own; null: none
  std::vector<AddedToken> added;  ///< tokens beside the model's
  TokenFrame frame;
};
std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(SentencePieceParts parts, const SpecialNames& names,
                                                              const SpecialTokens* special, std::string_view origin);
/// The parts that a tokenizer.json with a Unigram model stands for.
SentencePieceParts sentencepiece_of_unigram(const JsonView& tokenizer);

/// Of a fixed list of letters, or of atoms and bonds of SMILES (Weininger 1988, doi:10.1021/ci00057a005).
struct LetterParts {
  enum class Units { letters, smiles };
  std::vector<std::string> tokens;  ///< by id
  Units units = Units::letters;
  bool joins_unknown = false;  ///< a run of unknown letters is one unknown token
  TokenFrame frame;
};
std::shared_ptr<const Tokenizer> make_letter_tokenizer(LetterParts parts, const SpecialNames& names,
                                                       const SpecialTokens* special, std::string_view origin);

}  // namespace furlong
