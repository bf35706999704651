// ESM-2 (Lin et al. 2023) in Hugging Face's format: EsmModel, EsmForMaskedLM. Proteins; pre-norm, rotary positions, and
// embeddings that are scaled by token dropout.
#include "conversion/architectures/encoder.h"
#include "framework/core/printable.h"

namespace furlong {
namespace esm {

constexpr const char *predictions = "lm_head.", *head_anchor = "lm_head.dense.weight";

Settings settings_of(const ForeignConfig& config, const TensorNaming& naming) {
  const std::string position = config.text("position_embedding_type", "absolute");
  if (position != "rotary")
    config.fail("position_embedding_type",
                fmt::format("found {}; expected rotary, as in ESM-2", foreign::printable(position)));
  config.only("hidden_act", "gelu", "ESM always has gelu");
  config.only("is_decoder", false, "an encoder, in which each token attends to all others");
  config.only("add_cross_attention", false, "an encoder without cross-attention");
  config.only("is_folding_model", false, "the language model without the structure module of ESMFold");
  config.only("tie_word_embeddings", true, "the output layer repeats the token embedding");
  Settings settings;
  settings.objective.name = Objective::masked_tokens;
  layers::ModelConfig& model = settings.model;
  model.architecture = layers::Architecture::encoder;
  model.vocabulary_size = config.size("vocab_size");
  model.n_layers = config.size("num_hidden_layers", 12);
  model.d_model = config.size("hidden_size", 768);
  model.attention.n_heads = config.size("num_attention_heads", 12);
  model.d_feedforward = config.size("intermediate_size", 3072);
  model.max_sequence_length = config.size("max_position_embeddings", 1026);
  model.activation = layers::Activation::gelu;
  model.norm_epsilon = config.real("layer_norm_eps", 1e-12);
  model.embedding_norm = config.boolean("emb_layer_norm_before", false);
  model.position = layers::Position::rotary;
  model.rotary_base = config.real("rope_theta", 10000);
  model.token_dropout = config.boolean("token_dropout", false);
  if (model.token_dropout) model.mask_token = config.size("mask_token_id");
  model.prediction_head = naming.head ? layers::PredictionHead::transform : layers::PredictionHead::none;
  model.output_bias = naming.head;
  return settings;
}

std::vector<Mapping> mappings_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  const std::int64_t d = model.d_model, inner = model.d_feedforward;
  EncoderTable table(model, naming, d);
  table.vectors("token_embedding.weight", naming.prefix + "embeddings.word_embeddings.weight", model.vocabulary_size);
  if (model.embedding_norm) table.norm("embedding_norm", naming.prefix + "embeddings.layer_norm", d);
  for (std::int64_t layer = 0; layer < model.n_layers; ++layer) {
    const std::string ours = "blocks." + std::to_string(layer) + ".",
                      theirs = naming.prefix + "encoder.layer." + std::to_string(layer) + ".";
    table.norm(ours + "attention_norm", theirs + "attention.LayerNorm", d);
    table.query_key_value(ours + "attention.query_key_value", theirs + "attention.self.");
    table.linear(ours + "attention.output", theirs + "attention.output.dense", d, d);
    table.norm(ours + "feedforward_norm", theirs + "LayerNorm", d);
    table.linear(ours + "feedforward.input", theirs + "intermediate.dense", d, inner);
    table.linear(ours + "feedforward.output", theirs + "output.dense", inner, d);
  }
  table.norm("final_norm", naming.prefix + "encoder.emb_layer_norm_after", d);
  table.head(predictions, predictions, "layer_norm");
  return table.take();
}

std::vector<Duplicate> duplicates_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  return encoder_duplicates(model, naming, predictions);
}

/// The head of contacts, the pooler, rotary frequencies, and the position embeddings that some files of ESM-2 have.
bool is_carried(std::string_view name) {
  for (const char* part : {"contact_head.regression.", "pooler.dense.", "rotary_embeddings.inv_freq",
                           "embeddings.position_ids", "embeddings.position_embeddings.weight"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

nlohmann::ordered_json config_of(const layers::ModelConfig& model) {
  nlohmann::ordered_json config{{"vocab_size", model.vocabulary_size},
                                {"num_hidden_layers", model.n_layers},
                                {"hidden_size", model.d_model},
                                {"num_attention_heads", model.attention.n_heads},
                                {"intermediate_size", model.d_feedforward},
                                {"max_position_embeddings", model.max_sequence_length},
                                {"hidden_act", "gelu"},
                                {"layer_norm_eps", model.norm_epsilon},
                                {"initializer_range", model.initializer_range},
                                {"position_embedding_type", "rotary"},
                                {"rope_theta", model.rotary_base},
                                {"emb_layer_norm_before", model.embedding_norm},
                                {"token_dropout", model.token_dropout}};
  if (model.token_dropout) config["mask_token_id"] = model.mask_token;
  return config;
}

}  // namespace esm

const Architecture& esm_architecture() {
  using namespace esm;
  static const Architecture architecture{
      "esm",       "EsmForMaskedLM", "EsmModel",  {"esm.", ""},  "embeddings.word_embeddings.weight",
      head_anchor, settings_of,      mappings_of, duplicates_of, is_carried,
      config_of};
  return architecture;
}

}  // namespace furlong
