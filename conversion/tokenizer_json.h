#pragma once
// Parts of a tokenizer.json, the file format of Hugging Face tokenizers.
#include <nlohmann/json.hpp>
#include <string>

#include "datasets/vocabulary.h"
#include "evaluation/sequences/sequence_reader.h"

namespace furlong {

/// Returns a tokenizer.json whose steps are all null, without added tokens.
nlohmann::ordered_json empty_tokenizer_json();
/// Returns a special token that is matched as a whole, in the text as it is, as an item of "added_tokens".
nlohmann::ordered_json special_token_json(std::int32_t id, const std::string& content);
/// Returns a step that replaces all matches of a "Regex" or of a "String", the `kind`.
nlohmann::ordered_json replacement_json(const char* kind, const std::string& pattern, const std::string& by);
/// Returns the post_processor that puts the frame around a text, and around each text of a pair; null for an empty
/// frame.
nlohmann::ordered_json frame_json(const Vocabulary& vocabulary, const SequenceFrame& frame);

}  // namespace furlong
