#pragma once
// Shared by Llama and its successors (Mistral, Qwen2, Qwen3): decoders with rmsnorm, gated feedforwards, rotary
// positions and grouped key-value heads, in Hugging Face's format and in llama.cpp's (GGUF).
#include "conversion/architecture.h"

namespace furlong {

/// Values of keys that are missing in config.json.
struct LlamaDefaults {
  std::int64_t vocabulary_size, d_feedforward, max_sequence_length;
  std::int64_t n_key_value_heads = 0;  ///< 0: num_attention_heads
  std::int64_t d_head = 0;             ///< 0: hidden_size / num_attention_heads
};
/// Returns the settings that all these families read alike: everything but biases, norms of queries and keys, and
/// windows. Throws UserError as Architecture::settings does.
Settings llama_settings(const ForeignConfig& config, const LlamaDefaults& defaults);

/// Sets the sliding window of Qwen2 and Qwen3, which apply it to the layers from max_window_layers on. Throws UserError
/// if some layers have a window and others have none.
void read_qwen_window(const ForeignConfig& config, layers::ModelConfig& model);

/// Returns a family of these decoders.
Architecture llama_family(const char* model_type, const char* class_name, decltype(Architecture::settings) settings,
                          decltype(Architecture::mappings) mappings, decltype(Architecture::config) config);

/// Returns the table of tensors. `pairs` is the layout of the rows of queries and keys in GGUF files.
std::vector<Mapping> llama_mappings(const layers::ModelConfig& model, const TensorNaming& naming, Layout pairs);
/// Returns the keys of config.json that all these families share.
nlohmann::ordered_json llama_config(const layers::ModelConfig& model);

}  // namespace furlong
