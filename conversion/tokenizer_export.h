#pragma once
#include <string>
#include <utility>
#include <vector>

#include "datasets/vocabulary.h"
#include "evaluation/sequences/sequence_reader.h"

namespace furlong {

struct TokenizerExport {
  std::vector<std::pair<std::string, std::string>> files;  ///< name and content
  /// Why AutoTokenizer does not give the vocabulary's ids, as the end of a sentence; empty: it does.
  std::string obstacle;
};

/// Returns the files that describe the vocabulary's tokenizer to Hugging Face: tokenizer.json and
/// tokenizer_config.json, with tokenizer.model of SentencePiece models; or vocab.txt of letters. `frame` stands around
/// a text; it and the vocabulary's tokens <mask> and <class> need not be the tokenizer's own. A SentencePiece model
/// that no tokenizer.json expresses has tokenizer.model, with a chat template also tokenizer_config.json. A vocabulary
/// without a tokenizer has no files. `chat_template` is Jinja text, as transformers' apply_chat_template expects it;
/// empty: no template. `has_segments`: the model reads token_type_ids.
TokenizerExport export_tokenizer(const Vocabulary& vocabulary, const SequenceFrame& frame,
                                 const std::string& chat_template = {}, bool has_segments = false);
/// Returns the tokenizer_config.json `existing`, with the keys of `own` (export_tokenizer) that it lacks. Without them
/// transformers has no special tokens, and lowers the case of a WordPiece vocabulary whatever tokenizer.json says.
/// Returns `existing` if it is no JSON object.
std::string completed_tokenizer_config(const std::string& existing, const std::string& own);

}  // namespace furlong
