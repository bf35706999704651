#pragma once
// A model in llama.cpp's format, small enough to write in a test.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/formats/foreign_bytes.h"

namespace furlong::testing {

inline std::string gguf_integer(const char* key, std::uint32_t value) {
  return gguf_pair(key, 4, Bytes().number(value).all());
}
inline std::string gguf_real(const char* key, float value) { return gguf_pair(key, 6, Bytes().number(value).all()); }
inline std::string gguf_text_pair(const char* key, std::string_view value) {
  return gguf_pair(key, 8, gguf_text(value));
}

/// A Llama of one layer with a byte-level BPE tokenizer without merges. `more` is additional metadata. `divisors` are
/// divisors of rotary frequencies; may be empty.
inline std::string tiny_gguf(const std::vector<std::string>& more = {}, const std::vector<float>& divisors = {}) {
  constexpr std::uint64_t d = 4, inner = 6;
  std::string tokens, types;
  for (int byte = 0; byte < 256; ++byte)
    tokens += gguf_text(byte_character(byte)), types += Bytes().number<std::int32_t>(1).all();
  tokens += gguf_text("<|im_end|>"), types += Bytes().number<std::int32_t>(3).all();
  std::vector<GgufTensor> tensors;
  const auto tensor = [&](const std::string& name, const std::vector<std::uint64_t>& extents) {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : extents) count *= extent;
    std::vector<float> values;
    for (std::uint64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i % 7) - 3);
    tensors.push_back({name, extents, 0, packed(values)});
  };
  tensor("token_embd.weight", {d, 257});
  tensor("output_norm.weight", {d});
  for (const char* norm : {"attn_norm", "ffn_norm"}) tensor(std::string("blk.0.") + norm + ".weight", {d});
  for (const char* square : {"attn_q", "attn_k", "attn_v", "attn_output"})
    tensor(std::string("blk.0.") + square + ".weight", {d, d});
  for (const char* wide : {"ffn_gate", "ffn_up"}) tensor(std::string("blk.0.") + wide + ".weight", {d, inner});
  tensor("blk.0.ffn_down.weight", {inner, d});
  if (!divisors.empty()) tensors.push_back({"rope_freqs.weight", {divisors.size()}, 0, packed(divisors)});
  std::vector<std::string> pairs{gguf_text_pair("general.architecture", "llama"),
                                 gguf_integer("llama.block_count", 1),
                                 gguf_integer("llama.context_length", 16),
                                 gguf_integer("llama.embedding_length", d),
                                 gguf_integer("llama.feed_forward_length", inner),
                                 gguf_integer("llama.attention.head_count", 2),
                                 gguf_real("llama.attention.layer_norm_rms_epsilon", 1e-5F),
                                 gguf_text_pair("tokenizer.ggml.model", "gpt2"),
                                 gguf_text_pair("tokenizer.ggml.pre", "smollm"),
                                 gguf_pair("tokenizer.ggml.tokens", 9, gguf_array(8, 257, tokens)),
                                 gguf_pair("tokenizer.ggml.token_type", 9, gguf_array(5, 257, types)),
                                 gguf_pair("tokenizer.ggml.merges", 9, gguf_array(8, 0, "")),
                                 gguf_integer("tokenizer.ggml.eos_token_id", 256)};
  pairs.insert(pairs.end(), more.begin(), more.end());
  return gguf_file(pairs, tensors);
}

}  // namespace furlong::testing
