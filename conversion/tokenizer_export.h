#pragma once
#include <string>
#include <utility>
#include <vector>

#include "datasets/vocabulary.h"

namespace furlong {

/// Names and contents of the files that say the vocabulary's tokenizer to Hugging Face: tokenizer.json and
/// tokenizer_config.json, or tokenizer.model (with a chat template tokenizer_config.json too), or vocab.txt. Nothing
/// for vocabularies without a tokenizer. `chat_template`: in Jinja, as transformers' apply_chat_template takes it;
/// empty: none.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const Vocabulary& vocabulary,
                                                                 const std::string& chat_template = {});

}  // namespace furlong
