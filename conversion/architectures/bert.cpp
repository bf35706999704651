// BERT (Devlin et al. 2019) as Hugging Face keeps it: BertModel, BertForMaskedLM, BertForPreTraining.
#include "conversion/architecture.h"

namespace furlong {
namespace {

constexpr const char* head_anchor = "cls.predictions.transform.dense.weight";

Settings settings_of(const ForeignConfig& config, const Spelling& spelling) {
  config.only("position_embedding_type", "absolute", "learned positions, added to the embedding");
  config.only("is_decoder", false, "an encoder, each of whose tokens sees all others");
  config.only("add_cross_attention", false, "an encoder alone");
  Settings settings;
  settings.objective.name = "masked_tokens";
  ModelSettings& model = settings.model;
  model.architecture = "encoder";
  model.vocabulary_size = config.size("vocab_size", 30522);
  model.n_layers = config.size("num_hidden_layers", 12);
  model.d_model = config.size("hidden_size", 768);
  model.n_heads = config.size("num_attention_heads", 12);
  model.d_feedforward = config.size("intermediate_size", 3072);
  model.max_sequence_length = config.size("max_position_embeddings", 512);
  model.n_segments = config.size("type_vocab_size", 2);
  model.activation = config.activation("hidden_act", "gelu", false);
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
  const std::int64_t d = model.d_model, inner = model.d_feedforward, V = model.vocabulary_size;
  const std::string embeddings = spelling.prefix + "embeddings.";
  std::vector<Mapping> table{
      {"token_embedding.weight", {{embeddings + "word_embeddings.weight", {V, d}}}},
      {"position_embedding.weight", {{embeddings + "position_embeddings.weight", {model.max_sequence_length, d}}}},
      {"segment_embedding.weight", {{embeddings + "token_type_embeddings.weight", {model.n_segments, d}}}}};
  const auto norm = [&](const std::string& ours, const std::string& theirs) {
    table.push_back({ours + ".gain", {{spelling.norm(theirs, false), {d}}}});
    table.push_back({ours + ".bias", {{spelling.norm(theirs, true), {d}}}});
  };
  const auto linear = [&](const std::string& ours, const std::string& theirs, std::int64_t in, std::int64_t out) {
    table.push_back({ours + ".weight", {{theirs + ".weight", {out, in}}}});
    table.push_back({ours + ".bias", {{theirs + ".bias", {out}}}});
  };
  norm("embedding_norm", embeddings + "LayerNorm");
  for (std::int64_t layer = 0; layer < model.n_layers; ++layer) {
    const std::string ours = "blocks." + std::to_string(layer) + ".",
                      theirs = spelling.prefix + "encoder.layer." + std::to_string(layer) + ".",
                      self = theirs + "attention.self.";
    table.push_back(
        {ours + "attention.query_key_value.weight",
         {{self + "query.weight", {d, d}}, {self + "key.weight", {d, d}}, {self + "value.weight", {d, d}}}});
    table.push_back({ours + "attention.query_key_value.bias",
                     {{self + "query.bias", {d}}, {self + "key.bias", {d}}, {self + "value.bias", {d}}}});
    linear(ours + "attention.output", theirs + "attention.output.dense", d, d);
    norm(ours + "attention_norm", theirs + "attention.output.LayerNorm");
    linear(ours + "feedforward.input", theirs + "intermediate.dense", d, inner);
    linear(ours + "feedforward.output", theirs + "output.dense", inner, d);
    norm(ours + "feedforward_norm", theirs + "output.LayerNorm");
  }
  if (model.prediction_head == "transform") {
    linear("prediction.transform", "cls.predictions.transform.dense", d, d);
    norm("prediction.norm", "cls.predictions.transform.LayerNorm");
  }
  // Where embeddings are not tied, the output layer has a bias of its own.
  const char* const bias = model.tied_embeddings ? "cls.predictions.bias" : "cls.predictions.decoder.bias";
  if (model.output_bias) table.push_back({"output_bias", {{bias, {V}}}});
  if (!model.tied_embeddings) table.push_back({"classifier.weight", {{"cls.predictions.decoder.weight", {V, d}}}});
  return table;
}

std::vector<Duplicate> duplicates_of(const ModelSettings& model, const Spelling& spelling) {
  std::vector<Duplicate> list;
  if (!model.output_bias || !model.tied_embeddings) return list;
  list.push_back({"cls.predictions.decoder.bias", "cls.predictions.bias"});
  list.push_back({"cls.predictions.decoder.weight", spelling.prefix + "embeddings.word_embeddings.weight"});
  return list;
}

/// The pooler, the heads over it (next sentence; AntiBERTy's species, chain and graft), numbered positions, and, where
/// embeddings are not tied, a bias that nothing reads.
bool is_carried(std::string_view name) {
  for (const char* part : {"pooler.dense.", "embeddings.position_ids", "embeddings.token_type_ids"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  for (const char* head :
       {"cls.predictions.bias", "cls.seq_relationship.", "cls.species.", "cls.chain.", "cls.graft."}) {
    if (name.starts_with(head)) return true;
  }
  return false;
}

nlohmann::ordered_json config_of(const ModelSettings& model) {
  return {{"vocab_size", model.vocabulary_size},
          {"num_hidden_layers", model.n_layers},
          {"hidden_size", model.d_model},
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

const Architecture& bert_architecture() {
  static const Architecture architecture{
      "bert",      "BertForMaskedLM", "BertModel", {"bert.", ""}, "embeddings.word_embeddings.weight",
      head_anchor, settings_of,       mappings_of, duplicates_of, is_carried,
      config_of};
  return architecture;
}

}  // namespace furlong
