// Mistral (Jiang et al. 2023): a Llama with a sliding window in every layer. In GGUF files it is a Llama.
#include "conversion/architectures/llama_like.h"

namespace furlong {
namespace mistral {

Settings settings_of(const ForeignConfig& config, const TensorNaming&) {
  config.only("layer_types", nullptr, "all layers of Mistral have the same attention");
  Settings settings = llama_settings(config, {32000, 14336, 131072, 8});
  // null: no window (Mistral 7B v0.2 and later).
  const bool is_null = config.json().contains("sliding_window") && !config.has("sliding_window");
  if (!is_null) settings.model.attention.window = config.size("sliding_window", 4096);
  return settings;
}

std::vector<Mapping> mappings_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  return llama_mappings(model, naming, Layout::interleaved);
}

nlohmann::ordered_json config_of(const layers::ModelConfig& model) {
  nlohmann::ordered_json config = llama_config(model);
  config["sliding_window"] = nullptr;
  if (model.attention.window > 0) config["sliding_window"] = model.attention.window;
  return config;
}

}  // namespace mistral

const Architecture& mistral_architecture() {
  using namespace mistral;
  static const Architecture architecture =
      llama_family("mistral", "MistralForCausalLM", settings_of, mappings_of, config_of);
  return architecture;
}

}  // namespace furlong
