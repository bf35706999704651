#pragma once
// Bytes, alphabets and lists of letters as tokenizers of Hugging Face.
#include <string>
#include <utility>
#include <vector>

#include "datasets/vocabulary.h"
#include "evaluation/sequences/sequence_reader.h"

namespace furlong {

/// Returns tokenizer.json and tokenizer_config.json for a vocabulary without a tokenizer of its own, or with one of
/// letters: the same ids for the same text, inside `frame`. Returns nothing for other vocabularies.
std::vector<std::pair<std::string, std::string>> symbol_tokenizer_files(const Vocabulary& vocabulary,
                                                                        const SequenceFrame& frame);

}  // namespace furlong
