#pragma once
// Reads the tokenizer of a GGUF file.
#include <memory>

#include "datasets/tokenizers/tokenizer.h"
#include "formats/gguf.h"

namespace furlong {

/// Reads the metadata tokenizer.ggml.*. Supported models are byte-level BPE ("gpt2"), with the text splitting of GPT-2,
/// Llama 3, SmolLM or Qwen 2, and SentencePiece BPE ("llama"). Throws UserError, with the value found, for other
/// models, and for missing or damaged metadata.
std::shared_ptr<const Tokenizer> tokenizer_from_gguf(const GgufFile& file);

}  // namespace furlong
