#pragma once
#include <string>
#include <utility>
#include <vector>

#include "datasets/vocabulary.h"

namespace furlong {

/// Names and contents of the files that say the vocabulary's tokenizer to Hugging Face: tokenizer.json and tokenizer_config.json, or
/// tokenizer.model, or vocab.txt. Nothing for vocabularies without a tokenizer.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const Vocabulary& vocabulary);

}  // namespace furlong
