#pragma once
#include <string>
#include <utility>
#include <vector>

#include "datasets/vocabulary.h"

namespace furlong {

/// Returns names and contents of the files that describe the vocabulary's tokenizer to Hugging Face. These are
/// tokenizer.json and tokenizer_config.json, or tokenizer.model (with a chat template also tokenizer_config.json), or
/// vocab.txt. Returns nothing for a vocabulary without a tokenizer. `chat_template` is Jinja text, as transformers'
/// apply_chat_template expects it; empty: no template.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const Vocabulary& vocabulary,
                                                                 const std::string& chat_template = {});

}  // namespace furlong
