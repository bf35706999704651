#pragma once
// The tokenizer inside a GGUF file.
#include <memory>

#include "datasets/tokenizers/tokenizer.h"
#include "formats/gguf.h"

namespace furlong {

/// Of the metadata tokenizer.ggml.*: byte-level BPE ("gpt2") that splits text as GPT-2, Llama 3, SmolLM or Qwen 2 do,
/// and SentencePiece BPE ("llama"). Throws UserError for other ones, naming what the file says, and for what is missing
/// or damaged.
std::shared_ptr<const Tokenizer> tokenizer_from_gguf(const GgufFile& file);

}  // namespace furlong
