#pragma once
// What BERT and its kin share: encoders with learned positions and segments, norms behind each half of a block, and a
// head that fills in tokens.
#include <utility>

#include "conversion/architecture.h"

namespace furlong {

/// What a key that is missing in config.json stands for.
struct EncoderDefaults {
  std::int64_t vocabulary_size, d_model, n_heads, d_feedforward;
  const char* activation;
};
Settings encoder_settings(const ForeignConfig& config, const Spelling& spelling, const EncoderDefaults& defaults);
nlohmann::ordered_json encoder_config(const layers::ModelConfig& model);

/// The table of an encoder's tensors. Each name of ours comes before the foreign one.
class EncoderTable {
 public:
  EncoderTable(const layers::ModelConfig& model, const Spelling& spelling, std::int64_t d_embedding)
      : model_(model), spelling_(spelling), d_embedding_(d_embedding) {}

  void norm(const std::string& ours, const std::string& theirs, std::int64_t width);
  void linear(const std::string& ours, const std::string& theirs, std::int64_t in, std::int64_t out);
  /// Three tables of vectors as wide as the embedding, and their norm.
  void embeddings();
  /// `theirs` goes before "query", "key" and "value".
  void query_key_value(const std::string& ours, const std::string& theirs);
  /// `predictions` goes before the output layer's tensors, `transform` before what comes ahead of it: "dense" and
  /// "LayerNorm".
  void head(const std::string& predictions, const std::string& transform);
  std::vector<Mapping> take() { return std::move(table_); }

 private:
  const layers::ModelConfig& model_;
  const Spelling& spelling_;
  std::int64_t d_embedding_;
  std::vector<Mapping> table_;
};

/// The output layer's tensors that repeat others.
std::vector<Duplicate> encoder_duplicates(const layers::ModelConfig& model, const Spelling& spelling,
                                          const std::string& predictions);

}  // namespace furlong
