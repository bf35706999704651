#pragma once
// The three implementations of Tokenizer; all file formats are converted to one of them.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/added_tokens.h"
#include "datasets/tokenizers/special_tokens.h"
#include "datasets/tokenizers/tokenizer.h"

namespace furlong {

/// The tokens before and after a whole document.
struct TokenFrame {
  std::vector<std::int32_t> front, back;
};

/// Returns {"front": [...], "back": [...]}.
nlohmann::json frame_to_json(const TokenFrame& frame);
/// Reads frame_to_json().
TokenFrame frame_from_json(const JsonView& json);
/// Reads the "post_processor" of a tokenizer.json, for example [CLS] A [SEP]. Parts for pairs of texts are ignored.
/// Throws UserError, naming the type, if it is not supported.
TokenFrame frame_of_processor(const JsonView& json);

/// Returns the tokenizer of a tokenizer.json with a BPE, Unigram or WordPiece model. `special` gives the special
/// tokens; if it is null, they come from `names` and the usual names.
std::shared_ptr<const Tokenizer> make_pipeline_tokenizer(nlohmann::json tokenizer, const SpecialNames& names,
                                                         const SpecialTokens* special, std::string_view origin);

/// A SentencePiece model and what surrounds it.
struct SentencePieceParts {
  std::string model;              ///< a serialized ModelProto
  nlohmann::json normalizer;      ///< as in a tokenizer.json, applied before the model's own; null: none
  std::vector<AddedToken> added;  ///< tokens in addition to the model's
  TokenFrame frame;
};
/// Returns the tokenizer of a SentencePiece model.
std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(SentencePieceParts parts, const SpecialNames& names,
                                                              const SpecialTokens* special, std::string_view origin);

/// The vocabulary, with its tokenizer, in a directory of a model with code that `furlong export` writes.
inline constexpr const char* exported_vocabulary_file = "furlong_vocabulary.json";

/// The expression that splits SMILES (Schwaller et al. 2019, doi:10.1021/acscentsci.9b00576): atoms in brackets, atoms,
/// bonds, rings.
inline constexpr std::string_view smiles_pattern =
    R"(\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9])";

/// A fixed list of letters, or of the atoms and bonds of SMILES (Weininger 1988, doi:10.1021/ci00057a005).
struct LetterParts {
  enum class Units { letters, smiles };
  std::vector<std::string> tokens;  ///< by id
  Units units = Units::letters;
  bool joins_unknown = false;  ///< a run of unknown letters becomes one unknown token
  TokenFrame frame;
};
/// Returns the tokenizer of a fixed list of letters.
std::shared_ptr<const Tokenizer> make_letter_tokenizer(LetterParts parts, const SpecialNames& names,
                                                       const SpecialTokens* special, std::string_view origin);

}  // namespace furlong
