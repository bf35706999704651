// Qwen2 (Yang et al. 2024): a Llama with biases of queries, keys and values. Qwen3 (Yang et al. 2025): a Llama with
// norms of queries and keys. Both in Hugging Face's format and in llama.cpp's, which does not reorder their rows.
#include "conversion/architectures/llama_like.h"

namespace furlong {
namespace qwen {

Settings qwen2_settings(const ForeignConfig& config, const TensorNaming&) {
  Settings settings = llama_settings(config, {151936, 22016, 32768, 32});
  settings.model.query_key_value_bias = true;
  read_qwen_window(config, settings.model);
  return settings;
}

Settings qwen3_settings(const ForeignConfig& config, const TensorNaming&) {
  config.only("attention_bias", false, "linear maps without biases");
  Settings settings = llama_settings(config, {151936, 22016, 32768, 32, 128});
  settings.model.query_key_norm = layers::QueryKeyNorm::rmsnorm;
  read_qwen_window(config, settings.model);
  return settings;
}

std::vector<Mapping> mappings_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  return llama_mappings(model, naming, Layout::plain);
}

nlohmann::ordered_json config_of(const layers::ModelConfig& model) {
  nlohmann::ordered_json config = llama_config(model);
  const std::int64_t window = model.attention.window;
  config["use_sliding_window"] = window > 0;
  config["sliding_window"] = nullptr;
  if (window > 0) config["sliding_window"] = window;
  config["max_window_layers"] = window > 0 ? 0 : model.n_layers;
  return config;
}

nlohmann::ordered_json qwen3_config(const layers::ModelConfig& model) {
  nlohmann::ordered_json config = config_of(model);
  config["attention_bias"] = false;
  return config;
}

}  // namespace qwen

const Architecture& qwen2_architecture() {
  using namespace qwen;
  static const Architecture architecture =
      llama_family("qwen2", "Qwen2ForCausalLM", qwen2_settings, mappings_of, config_of);
  return architecture;
}

const Architecture& qwen3_architecture() {
  using namespace qwen;
  static const Architecture architecture =
      llama_family("qwen3", "Qwen3ForCausalLM", qwen3_settings, mappings_of, qwen3_config);
  return architecture;
}

}  // namespace furlong
