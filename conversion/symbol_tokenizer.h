#pragma once
// Bytes and alphabets as tokenizers of Hugging Face.
#include <string>
#include <utility>
#include <vector>

#include "datasets/vocabulary.h"

namespace furlong {

/// tokenizer.json and tokenizer_config.json for a vocabulary without a tokenizer of its own: the same ids for the same
/// text. `class_token`: <class> stands before a text, as classification with pooling class_token has it.
std::vector<std::pair<std::string, std::string>> symbol_tokenizer_files(const Vocabulary& vocabulary, bool class_token);

}  // namespace furlong
