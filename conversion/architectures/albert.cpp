// ALBERT (Lan et al. 2020) as Hugging Face keeps it: AlbertModel, AlbertForMaskedLM. One block is used n_layers times,
// and the embedding is narrower than the block.
#include "conversion/architecture.h"

namespace furlong {
namespace {

constexpr const char* head_anchor = "predictions.dense.weight";

Settings settings_of(const ForeignConfig& config, const Spelling& spelling) {
  config.only("position_embedding_type", "absolute", "learned positions, added to the embedding");
  config.only("num_hidden_groups", 1, "one block for all layers");
  config.only("inner_group_num", 1, "one block in a group");
  config.only("is_decoder", false, "an encoder, each of whose tokens sees all others");
  config.only("down_scale_factor", 1, "all tokens in all layers");
  config.only("gap_size", 0, "no pass over layers");
  config.only("num_memory_blocks", 0, "no memory");
  Settings settings;
  settings.objective.name = "masked_tokens";
  ModelSettings& model = settings.model;
  model.architecture = "encoder";
  model.vocabulary_size = config.size("vocab_size", 30000);
  model.n_layers = config.size("num_hidden_layers", 12);
  model.shared_layers = true;
  model.d_model = config.size("hidden_size", 4096);
  const std::int64_t d_embedding = config.size("embedding_size", 128);
  model.d_embedding = d_embedding;
  model.n_heads = config.size("num_attention_heads", 64);
  model.d_feedforward = config.size("intermediate_size", 16384);
  model.max_sequence_length = config.size("max_position_embeddings", 512);
  model.n_segments = config.size("type_vocab_size", 2);
  model.activation = config.activation("hidden_act", "gelu_new", false);
  model.norm = "layernorm";
  model.norm_epsilon = config.real("layer_norm_eps", 1e-12);
  model.norm_placement = "after";
  model.embedding_norm = true;
  model.bias = true;
  model.position = "learned";
  model.prediction_head = spelling.head ? "transform" : "none";
  model.output_bias = spelling.head;
  model.tied_embeddings = !spelling.head || config.boolean("tie_word_embeddings", true);
  return settings;
}

std::vector<Mapping> mappings_of(const ModelSettings& model, const Spelling& spelling) {
  const std::int64_t d = model.d_model, e = model.d_embedding > 0 ? model.d_embedding : d, inner = model.d_feedforward,
                     V = model.vocabulary_size;
  const std::string embeddings = spelling.prefix + "embeddings.", encoder = spelling.prefix + "encoder.",
                    block = encoder + "albert_layer_groups.0.albert_layers.0.", attention = block + "attention.";
  std::vector<Mapping> table{
      {"token_embedding.weight", {{embeddings + "word_embeddings.weight", {V, e}}}},
      {"position_embedding.weight", {{embeddings + "position_embeddings.weight", {model.max_sequence_length, e}}}},
      {"segment_embedding.weight", {{embeddings + "token_type_embeddings.weight", {model.n_segments, e}}}}};
  const auto norm = [&](const std::string& ours, const std::string& theirs, std::int64_t width) {
    table.push_back({ours + ".gain", {{spelling.norm(theirs, false), {width}}}});
    table.push_back({ours + ".bias", {{spelling.norm(theirs, true), {width}}}});
  };
  const auto linear = [&](const std::string& ours, const std::string& theirs, std::int64_t in, std::int64_t out) {
    table.push_back({ours + ".weight", {{theirs + ".weight", {out, in}}}});
    table.push_back({ours + ".bias", {{theirs + ".bias", {out}}}});
  };
  norm("embedding_norm", embeddings + "LayerNorm", e);
  linear("embedding_projection", encoder + "embedding_hidden_mapping_in", e, d);
  table.push_back({"blocks.0.attention.query_key_value.weight",
                   {{attention + "query.weight", {d, d}},
                    {attention + "key.weight", {d, d}},
                    {attention + "value.weight", {d, d}}}});
  table.push_back({"blocks.0.attention.query_key_value.bias",
                   {{attention + "query.bias", {d}}, {attention + "key.bias", {d}}, {attention + "value.bias", {d}}}});
  linear("blocks.0.attention.output", attention + "dense", d, d);
  norm("blocks.0.attention_norm", attention + "LayerNorm", d);
  linear("blocks.0.feedforward.input", block + "ffn", d, inner);
  linear("blocks.0.feedforward.output", block + "ffn_output", inner, d);
  norm("blocks.0.feedforward_norm", block + "full_layer_layer_norm", d);
  if (!spelling.head) return table;
  if (model.prediction_head == "transform") {
    linear("prediction.transform", "predictions.dense", d, e);
    norm("prediction.norm", "predictions.LayerNorm", e);
  }
  // Where embeddings are not tied, the output layer has a bias of its own.
  const char* const bias = model.tied_embeddings ? "predictions.bias" : "predictions.decoder.bias";
  if (model.output_bias) table.push_back({"output_bias", {{bias, {V}}}});
  if (!model.tied_embeddings) table.push_back({"classifier.weight", {{"predictions.decoder.weight", {V, e}}}});
  return table;
}

std::vector<Duplicate> duplicates_of(const ModelSettings& model, const Spelling& spelling) {
  std::vector<Duplicate> list;
  if (!spelling.head) return list;
  if (!model.output_bias || !model.tied_embeddings) return list;
  list.push_back({"predictions.decoder.bias", "predictions.bias"});
  list.push_back({"predictions.decoder.weight", spelling.prefix + "embeddings.word_embeddings.weight"});
  return list;
}

/// The pooler, the head of sentence order over it, numbered positions, and, where embeddings are not tied, a bias that
/// nothing reads.
bool is_carried(std::string_view name) {
  return name.starts_with("albert.pooler.") || name.starts_with("pooler.") || name.starts_with("sop_classifier.") ||
         name == "predictions.bias" || name.ends_with("embeddings.position_ids") ||
         name.ends_with("embeddings.token_type_ids");
}

nlohmann::ordered_json config_of(const ModelSettings& model) {
  return {{"vocab_size", model.vocabulary_size},
          {"num_hidden_layers", model.n_layers},
          {"num_hidden_groups", 1},
          {"inner_group_num", 1},
          {"hidden_size", model.d_model},
          {"embedding_size", model.d_embedding > 0 ? model.d_embedding : model.d_model},
          {"num_attention_heads", model.n_heads},
          {"intermediate_size", model.d_feedforward},
          {"max_position_embeddings", model.max_sequence_length},
          {"type_vocab_size", model.n_segments},
          {"hidden_act", foreign_activation(model.activation)},
          {"layer_norm_eps", model.norm_epsilon},
          {"initializer_range", model.initializer_range},
          {"position_embedding_type", "absolute"},
          {"tie_word_embeddings", model.tied_embeddings}};
}

}  // namespace

const Architecture& albert_architecture() {
  static const Architecture architecture{
      "albert",    "AlbertForMaskedLM", "AlbertModel", {"albert.", ""}, "embeddings.word_embeddings.weight",
      head_anchor, settings_of,         mappings_of,   duplicates_of,   is_carried,
      config_of};
  return architecture;
}

}  // namespace furlong
