#pragma once
// tokenizer.json documents made of older files, so that there is one way to read byte-level BPE and WordPiece, and one
// form to keep them in. They are complete: Hugging Face's `tokenizers` reads them too.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/tokenizers/added_tokens.h"

namespace furlong {

/// How a family of byte-level models splits text. Sources: the tokenizer.json files that the models were published
/// with.
enum class BytePairFamily { gpt2, llama3, smollm, qwen2 };

struct BytePairParts {
  nlohmann::json vocabulary;        ///< an object: token to id
  std::vector<std::string> merges;  ///< "left right", highest first
  BytePairFamily family = BytePairFamily::gpt2;
  bool add_prefix_space = false;
  std::vector<AddedToken> added;
  std::string front, back;  ///< tokens around a whole text; empty: none
};
/// Throws UserError, beginning with `origin`, where a token of the frame is not in the vocabulary.
nlohmann::json byte_pair_json(const BytePairParts& parts, std::string_view origin);

struct WordPieceParts {
  nlohmann::json vocabulary;
  bool lowercase = true, strip_accents = true, space_ideographs = true;
  std::string unknown = "[UNK]", front = "[CLS]", back = "[SEP]";
  std::vector<AddedToken> added;
};
nlohmann::json wordpiece_json(const WordPieceParts& parts, std::string_view origin);

}  // namespace furlong
