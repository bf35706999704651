#pragma once
// Converts older tokenizer files to tokenizer.json documents, so that byte-level BPE and WordPiece have one reader and
// one stored form. The documents are complete: Hugging Face's `tokenizers` reads them, too.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/added_tokens.h"

namespace furlong {

/// How a family of byte-level models splits text. Sources: the tokenizer.json files published with the models.
enum class BytePairFamily { gpt2, llama3, smollm, qwen2 };

/// The parts of a byte-level BPE tokenizer.
struct BytePairParts {
  nlohmann::json vocabulary;        ///< object: token to id
  std::vector<std::string> merges;  ///< "left right", highest priority first
  BytePairFamily family = BytePairFamily::gpt2;
  bool add_prefix_space = false;
  std::vector<AddedToken> added;
  std::string front, back;  ///< tokens before and after a whole text; empty: none
};
/// Returns the tokenizer.json document. Throws UserError, starting with `origin`, if `front` or `back` is not in the
/// vocabulary.
nlohmann::json byte_pair_json(const BytePairParts& parts, std::string_view origin);

/// The parts of a WordPiece tokenizer.
struct WordPieceParts {
  nlohmann::json vocabulary;
  bool lowercase = true, strip_accents = true, space_ideographs = true;
  std::string unknown = "[UNK]", front = "[CLS]", back = "[SEP]";
  std::vector<AddedToken> added;
};
/// Returns the tokenizer.json document. Throws UserError as byte_pair_json() does.
nlohmann::json wordpiece_json(const WordPieceParts& parts, std::string_view origin);

}  // namespace furlong
