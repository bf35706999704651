// GPT-2 (Radford et al. 2019) in Hugging Face's format: GPT2Model and GPT2LMHeadModel. Weights are [inner, outer]
// (Conv1D).
#include "conversion/architecture.h"

namespace furlong {
namespace gpt2 {

Settings settings_of(const ForeignConfig& config, const TensorNaming&) {
  config.only("scale_attn_weights", true, "scores are divided by the square root of the head width");
  config.only("scale_attn_by_inverse_layer_idx", false, "scores do not depend on the layer index");
  config.only("add_cross_attention", false, "a decoder without cross-attention");
  config.only("is_causal", true, "a token attends to itself and to those before it");
  Settings settings;
  settings.objective.name = Objective::next_token;
  layers::ModelConfig& model = settings.model;
  model.architecture = layers::Architecture::decoder;
  model.vocabulary_size = config.size("vocab_size", 50257);
  // transformers accepts the names of other families too.
  model.n_layers = config.size("n_layer", config.size("num_hidden_layers", 12));
  model.d_model = config.size("n_embd", config.size("hidden_size", 768));
  model.attention.n_heads = config.size("n_head", config.size("num_attention_heads", 12));
  model.d_feedforward = config.size("n_inner", 4 * model.d_model);
  model.max_sequence_length =
      config.size("n_positions", config.size("n_ctx", config.size("max_position_embeddings", 1024)));
  model.activation = config.activation("activation_function", "gelu_new", false);
  model.norm = ops::NormKind::layernorm;
  model.norm_epsilon = config.real("layer_norm_epsilon", 1e-5);
  model.bias = true;
  model.position = layers::Position::learned;
  model.tied_embeddings = config.boolean("tie_word_embeddings", true);
  return settings;
}

std::vector<Mapping> mappings_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  const std::int64_t d = model.d_model, inner = model.d_feedforward, V = model.vocabulary_size;
  const std::string& prefix = naming.prefix;
  std::vector<Mapping> table{{"token_embedding.weight", {{prefix + "wte.weight", {V, d}}}},
                             {"position_embedding.weight", {{prefix + "wpe.weight", {model.max_sequence_length, d}}}},
                             {"final_norm.gain", {{prefix + "ln_f.weight", {d}}}},
                             {"final_norm.bias", {{prefix + "ln_f.bias", {d}}}}};
  for (std::int64_t layer = 0; layer < model.n_layers; ++layer) {
    const std::string ours = "blocks." + std::to_string(layer) + ".",
                      theirs = prefix + "h." + std::to_string(layer) + ".";
    const auto linear = [&](const char* name, const char* foreign, std::int64_t in, std::int64_t out) {
      table.push_back({ours + name + ".weight", {{theirs + foreign + ".weight", {in, out}, Layout::transposed}}});
      table.push_back({ours + name + ".bias", {{theirs + foreign + ".bias", {out}}}});
    };
    const auto norm = [&](const char* name, const char* foreign) {
      table.push_back({ours + name + ".gain", {{theirs + foreign + ".weight", {d}}}});
      table.push_back({ours + name + ".bias", {{theirs + foreign + ".bias", {d}}}});
    };
    norm("attention_norm", "ln_1");
    linear("attention.query_key_value", "attn.c_attn", d, 3 * d);
    linear("attention.output", "attn.c_proj", d, d);
    norm("feedforward_norm", "ln_2");
    linear("feedforward.input", "mlp.c_fc", d, inner);
    linear("feedforward.output", "mlp.c_proj", inner, d);
  }
  if (!model.tied_embeddings) table.push_back({"classifier.weight", {{"lm_head.weight", {V, d}}}});
  return table;
}

std::vector<Duplicate> duplicates_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  if (!model.tied_embeddings) return {};
  return {{"lm_head.weight", naming.prefix + "wte.weight"}};
}

/// The causal mask and the value of masked scores, which old checkpoints contain.
bool is_carried(std::string_view name) { return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"); }

nlohmann::ordered_json config_of(const layers::ModelConfig& model) {
  return {{"vocab_size", model.vocabulary_size},
          {"n_layer", model.n_layers},
          {"n_embd", model.d_model},
          {"n_head", model.attention.n_heads},
          {"n_inner", model.d_feedforward},
          {"n_positions", model.max_sequence_length},
          {"n_ctx", model.max_sequence_length},
          {"activation_function", foreign_activation(model.activation)},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"initializer_range", model.initializer_range},
          {"tie_word_embeddings", model.tied_embeddings}};
}

}  // namespace gpt2

const Architecture& gpt2_architecture() {
  using namespace gpt2;
  static const Architecture architecture{"gpt2",   "GPT2LMHeadModel", nullptr,     {"transformer.", ""}, "wte.weight",
                                         "",       settings_of,       mappings_of, duplicates_of,        is_carried,
                                         config_of};
  return architecture;
}

}  // namespace furlong
