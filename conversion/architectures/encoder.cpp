#include "conversion/architectures/encoder.h"

namespace furlong {

Settings encoder_settings(const ForeignConfig& config, const TensorNaming& naming, const EncoderDefaults& defaults) {
  config.only("position_embedding_type", "absolute", "learned positions, added to the embedding");
  config.only("is_decoder", false, "an encoder, in which each token attends to all others");
  Settings settings;
  settings.objective.name = Objective::masked_tokens;
  layers::ModelConfig& model = settings.model;
  model.architecture = layers::Architecture::encoder;
  model.vocabulary_size = config.size("vocab_size", defaults.vocabulary_size);
  model.n_layers = config.size("num_hidden_layers", 12);
  model.d_model = config.size("hidden_size", defaults.d_model);
  model.attention.n_heads = config.size("num_attention_heads", defaults.n_heads);
  model.d_feedforward = config.size("intermediate_size", defaults.d_feedforward);
  model.max_sequence_length = config.size("max_position_embeddings", 512);
  model.n_segments = config.size("type_vocab_size", 2);
  model.activation = config.activation("hidden_act", defaults.activation, false);
  model.norm = ops::NormKind::layernorm;
  model.norm_epsilon = config.real("layer_norm_eps", 1e-12);
  model.norm_placement = layers::NormPlacement::post;
  model.embedding_norm = true;
  model.bias = true;
  model.position = layers::Position::learned;
  model.prediction_head = naming.head ? layers::PredictionHead::transform : layers::PredictionHead::none;
  model.output_bias = naming.head;
  model.tied_embeddings = !naming.head || config.boolean("tie_word_embeddings", true);
  return settings;
}

nlohmann::ordered_json encoder_config(const layers::ModelConfig& model) {
  return {{"vocab_size", model.vocabulary_size},
          {"num_hidden_layers", model.n_layers},
          {"hidden_size", model.d_model},
          {"num_attention_heads", model.attention.n_heads},
          {"intermediate_size", model.d_feedforward},
          {"max_position_embeddings", model.max_sequence_length},
          {"type_vocab_size", model.n_segments},
          {"hidden_act", foreign_activation(model.activation)},
          {"layer_norm_eps", model.norm_epsilon},
          {"initializer_range", model.initializer_range},
          {"position_embedding_type", "absolute"},
          {"tie_word_embeddings", model.tied_embeddings}};
}

void EncoderTable::vectors(const std::string& ours, const std::string& theirs, std::int64_t count,
                           std::int64_t unused) {
  table_.push_back({ours, {{.name = theirs, .shape = {count + unused, d_embedding_}, .unused_rows = unused}}});
}

void EncoderTable::norm(const std::string& ours, const std::string& theirs, std::int64_t width) {
  table_.push_back({ours + ".gain", {{naming_.norm(theirs, false), {width}}}});
  table_.push_back({ours + ".bias", {{naming_.norm(theirs, true), {width}}}});
}

void EncoderTable::linear(const std::string& ours, const std::string& theirs, std::int64_t in, std::int64_t out) {
  table_.push_back({ours + ".weight", {{theirs + ".weight", {out, in}}}});
  table_.push_back({ours + ".bias", {{theirs + ".bias", {out}}}});
}

void EncoderTable::embeddings(std::int64_t unused_positions) {
  const std::string theirs = naming_.prefix + "embeddings.";
  vectors("token_embedding.weight", theirs + "word_embeddings.weight", model_.vocabulary_size);
  vectors("position_embedding.weight", theirs + "position_embeddings.weight", model_.max_sequence_length,
          unused_positions);
  vectors("segment_embedding.weight", theirs + "token_type_embeddings.weight", model_.n_segments);
  norm("embedding_norm", theirs + "LayerNorm", d_embedding_);
}

void EncoderTable::query_key_value(const std::string& ours, const std::string& theirs) {
  const std::int64_t d = model_.d_model;
  table_.push_back(
      {ours + ".weight",
       {{theirs + "query.weight", {d, d}}, {theirs + "key.weight", {d, d}}, {theirs + "value.weight", {d, d}}}});
  table_.push_back(
      {ours + ".bias", {{theirs + "query.bias", {d}}, {theirs + "key.bias", {d}}, {theirs + "value.bias", {d}}}});
}

void EncoderTable::bert_layers() {
  const std::int64_t d = model_.d_model, inner = model_.d_feedforward;
  for (std::int64_t layer = 0; layer < model_.n_layers; ++layer) {
    const std::string ours = "blocks." + std::to_string(layer) + ".",
                      theirs = naming_.prefix + "encoder.layer." + std::to_string(layer) + ".";
    query_key_value(ours + "attention.query_key_value", theirs + "attention.self.");
    linear(ours + "attention.output", theirs + "attention.output.dense", d, d);
    norm(ours + "attention_norm", theirs + "attention.output.LayerNorm", d);
    linear(ours + "feedforward.input", theirs + "intermediate.dense", d, inner);
    linear(ours + "feedforward.output", theirs + "output.dense", inner, d);
    norm(ours + "feedforward_norm", theirs + "output.LayerNorm", d);
  }
}

void EncoderTable::head(const std::string& predictions, const std::string& transform, const std::string& norm_name) {
  if (model_.prediction_head == layers::PredictionHead::transform) {
    linear("prediction.transform", transform + "dense", model_.d_model, d_embedding_);
    norm("prediction.norm", transform + norm_name, d_embedding_);
  }
  // Without tied embeddings the output layer has its own bias.
  const std::string bias = predictions + (model_.tied_embeddings ? "bias" : "decoder.bias");
  if (model_.output_bias) table_.push_back({"output_bias", {{bias, {model_.vocabulary_size}}}});
  if (!model_.tied_embeddings)
    table_.push_back({"classifier.weight", {{predictions + "decoder.weight", {model_.vocabulary_size, d_embedding_}}}});
}

std::vector<Duplicate> encoder_duplicates(const layers::ModelConfig& model, const TensorNaming& naming,
                                          const std::string& predictions) {
  if (!model.output_bias) return {};
  // transformers before version 5 uses one bias under both names, and writes "bias" alone.
  if (!model.tied_embeddings) return {{predictions + "bias", predictions + "decoder.bias", true}};
  return {{predictions + "decoder.bias", predictions + "bias"},
          {predictions + "decoder.weight", naming.prefix + "embeddings.word_embeddings.weight"}};
}

}  // namespace furlong
