// Llama (Touvron et al. 2023): LlamaModel and LlamaForCausalLM.
#include "conversion/architectures/llama_like.h"

namespace furlong {
namespace llama {

Settings settings_of(const ForeignConfig& config, const TensorNaming&) {
  config.only("attention_bias", false, "linear maps without biases");
  config.only("mlp_bias", false, "linear maps without biases");
  config.only("sliding_window", nullptr, "Llama's attention has no window");
  config.only("use_sliding_window", false, "Llama's attention has no window");
  return llama_settings(config, {32000, 11008, 2048});
}

/// llama.cpp rotates neighboring rows of Llama, and so reorders them.
std::vector<Mapping> mappings_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  return llama_mappings(model, naming, Layout::interleaved);
}

nlohmann::ordered_json config_of(const layers::ModelConfig& model) {
  nlohmann::ordered_json config = llama_config(model);
  config["attention_bias"] = config["mlp_bias"] = false;
  return config;
}

}  // namespace llama

const Architecture& llama_architecture() {
  using namespace llama;
  static const Architecture architecture =
      llama_family("llama", "LlamaForCausalLM", settings_of, mappings_of, config_of);
  return architecture;
}

}  // namespace furlong
