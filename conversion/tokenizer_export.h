#pragma once
#include <string>
#include <utility>
#include <vector>

#include "datasets/vocabulary.h"

namespace furlong {

/// Returns names and contents of the files that describe the vocabulary's tokenizer to Hugging Face. These are
/// tokenizer.json and tokenizer_config.json, or tokenizer.model (with a chat template also tokenizer_config.json), or
/// vocab.txt. Returns nothing for a vocabulary without a tokenizer. `chat_template` is Jinja text, as transformers'
/// apply_chat_template expects it; empty: no template. `has_segments`: the model reads token_type_ids.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const Vocabulary& vocabulary,
                                                                 const std::string& chat_template = {},
                                                                 bool has_segments = false);
/// Returns the tokenizer_config.json `existing`, with the keys of `own` (tokenizer_files) that it lacks. Without them
/// transformers has no special tokens, and lowers the case of a WordPiece vocabulary whatever tokenizer.json says.
/// Returns `existing` if it is no JSON object.
std::string completed_tokenizer_config(const std::string& existing, const std::string& own);

}  // namespace furlong
