// ALBERT (Lan et al. 2020) in Hugging Face's format: AlbertModel, AlbertForMaskedLM. All layers share one block, and
// the embedding is narrower than the block.
#include "conversion/architectures/encoder.h"

namespace furlong {
namespace albert {

constexpr const char *predictions = "predictions.", *head_anchor = "predictions.dense.weight";

Settings settings_of(const ForeignConfig& config, const TensorNaming& naming) {
  config.only("num_hidden_groups", 1, "one block for all layers");
  config.only("inner_group_num", 1, "one block in a group");
  config.only("down_scale_factor", 1, "all tokens pass through all layers");
  config.only("gap_size", 0, "no layer is skipped");
  config.only("num_memory_blocks", 0, "no memory blocks");
  Settings settings = encoder_settings(config, naming, {30000, 4096, 64, 16384, "gelu_new"});
  settings.model.shared_layers = true;
  settings.model.d_embedding = config.size("embedding_size", 128);
  return settings;
}

std::vector<Mapping> mappings_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  const std::int64_t d = model.d_model, e = model.embedding_width(), inner = model.d_feedforward;
  const std::string encoder = naming.prefix + "encoder.", block = encoder + "albert_layer_groups.0.albert_layers.0.",
                    attention = block + "attention.";
  EncoderTable table(model, naming, e);
  table.embeddings();
  table.linear("embedding_projection", encoder + "embedding_hidden_mapping_in", e, d);
  table.query_key_value("blocks.0.attention.query_key_value", attention);
  table.linear("blocks.0.attention.output", attention + "dense", d, d);
  table.norm("blocks.0.attention_norm", attention + "LayerNorm", d);
  table.linear("blocks.0.feedforward.input", block + "ffn", d, inner);
  table.linear("blocks.0.feedforward.output", block + "ffn_output", inner, d);
  table.norm("blocks.0.feedforward_norm", block + "full_layer_layer_norm", d);
  if (naming.head) table.head(predictions, predictions);
  return table.take();
}

std::vector<Duplicate> duplicates_of(const layers::ModelConfig& model, const TensorNaming& naming) {
  if (!naming.head) return {};
  return encoder_duplicates(model, naming, predictions);
}

/// The pooler, the sentence-order head, position ids, and the bias that is unused without tied embeddings.
bool is_carried(std::string_view name) {
  return name.starts_with("albert.pooler.") || name.starts_with("pooler.") || name.starts_with("sop_classifier.") ||
         name == "predictions.bias" || name.ends_with("embeddings.position_ids") ||
         name.ends_with("embeddings.token_type_ids");
}

nlohmann::ordered_json config_of(const layers::ModelConfig& model) {
  nlohmann::ordered_json config = encoder_config(model);
  config["num_hidden_groups"] = config["inner_group_num"] = 1;
  config["embedding_size"] = model.embedding_width();
  return config;
}

}  // namespace albert

const Architecture& albert_architecture() {
  using namespace albert;
  static const Architecture architecture{
      "albert",    "AlbertForMaskedLM", "AlbertModel", {"albert.", ""}, "embeddings.word_embeddings.weight",
      head_anchor, settings_of,         mappings_of,   duplicates_of,   is_carried,
      config_of};
  return architecture;
}

}  // namespace furlong
