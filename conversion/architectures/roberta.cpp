// RoBERTa (Liu et al. 2019) in Hugging Face's format: RobertaModel, RobertaForMaskedLM. A BERT whose first token has
// the position pad_token_id + 1; padding has the position pad_token_id.
#include "conversion/architectures/encoder.h"

namespace furlong {
namespace roberta {

constexpr const char *predictions = "lm_head.", *head_anchor = "lm_head.dense.weight";
constexpr std::int64_t padding_id = 1, unused_positions = padding_id + 1;

Settings settings_of(const ForeignConfig& config, const TensorNaming& naming) {
  config.only("add_cross_attention", false, "an encoder without cross-attention");
  config.only("pad_token_id", padding_id, "positions start in row 2 of the position embeddings");
  if (naming.head) config.only("hidden_act", "gelu", "the head of RoBERTa always has gelu");
  Settings settings = encoder_settings(config, naming, {50265, 768, 12, 3072, "gelu"});
  std::int64_t& positions = settings.model.max_sequence_length;
  if (positions <= unused_positions)
    config.fail("max_position_embeddings", fmt::format("found {}; expected more than {}, because positions start in "
                                                       "row {} of the position embeddings",
                                                       positions, unused_positions, unused_positions));
  positions -= unused_positions;
  return settings;
}

std::vector<Mapping> mappings_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  EncoderTable table(model, naming, model.d_model);
  table.embeddings(unused_positions);
  table.bert_layers();
  table.head(predictions, predictions, "layer_norm");
  return table.take();
}

std::vector<Duplicate> duplicates_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  return encoder_duplicates(model, naming, predictions);
}

/// The pooler, position ids, and the bias that is unused without tied embeddings.
bool is_carried(std::string_view name) {
  return name.find("pooler.dense.") != std::string_view::npos || name.ends_with("embeddings.position_ids") ||
         name.ends_with("embeddings.token_type_ids") || name == "lm_head.bias";
}

nlohmann::ordered_json config_of(const layers::ModelConfig& model) {
  nlohmann::ordered_json config = encoder_config(model);
  config["max_position_embeddings"] = model.max_sequence_length + unused_positions;
  config["pad_token_id"] = padding_id;
  return config;
}

}  // namespace roberta

const Architecture& roberta_architecture() {
  using namespace roberta;
  static const Architecture architecture{
      "roberta",   "RobertaForMaskedLM", "RobertaModel", {"roberta.", ""}, "embeddings.word_embeddings.weight",
      head_anchor, settings_of,          mappings_of,    duplicates_of,    is_carried,
      config_of};
  return architecture;
}

}  // namespace furlong
