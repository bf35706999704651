#pragma once
// Shared by BERT, RoBERTa, ALBERT and ESM-2: encoders with a masked-token head. All but ESM-2 have learned positions,
// segments and post-norm blocks.
#include <utility>

#include "conversion/architecture.h"

namespace furlong {

/// Values of keys that are missing in config.json.
struct EncoderDefaults {
  std::int64_t vocabulary_size, d_model, n_heads, d_feedforward;
  const char* activation;
};
/// Returns the settings of an encoder. Throws UserError as Architecture::settings does.
Settings encoder_settings(const ForeignConfig& config, const TensorNaming& naming, const EncoderDefaults& defaults);
/// Returns the keys of config.json that BERT, RoBERTa and ALBERT share.
nlohmann::ordered_json encoder_config(const layers::ModelConfig& model);

/// Builds the table of an encoder's tensors. In every function Furlong's name comes before the foreign name.
class EncoderTable {
 public:
  EncoderTable(const layers::ModelConfig& model, const TensorNaming& naming, std::int64_t d_embedding)
      : model_(model), naming_(naming), d_embedding_(d_embedding) {}

  /// Adds an embedding's vectors [count, d_embedding], which follow `unused` foreign rows that no parameter holds.
  void vectors(const std::string& ours, const std::string& theirs, std::int64_t count, std::int64_t unused = 0);
  /// Adds a norm's gain and bias [width].
  void norm(const std::string& ours, const std::string& theirs, std::int64_t width);
  /// Adds a linear map's weight [out, in] and bias [out].
  void linear(const std::string& ours, const std::string& theirs, std::int64_t in, std::int64_t out);
  /// Adds the token, position and segment embeddings, each [count, d_embedding], and their norm. The first
  /// `unused_positions` rows of the foreign position table belong to no position.
  void embeddings(std::int64_t unused_positions = 0);
  /// Adds the fused query-key-value projection. `theirs` is the prefix of "query", "key" and "value".
  void query_key_value(const std::string& ours, const std::string& theirs);
  /// Adds BERT's layers.
  void bert_layers();
  /// Adds the masked-token head. `predictions` is the prefix of the output layer's tensors, `transform` the prefix of
  /// the transform's "dense" and `norm`.
  void head(const std::string& predictions, const std::string& transform, const std::string& norm = "LayerNorm");
  /// Returns the table and leaves this object empty.
  std::vector<Mapping> take() { return std::move(table_); }

 private:
  const layers::ModelConfig& model_;
  const TensorNaming& naming_;
  std::int64_t d_embedding_;
  std::vector<Mapping> table_;
};

/// Returns the output layer's tensors that repeat other tensors.
std::vector<Duplicate> encoder_duplicates(const layers::ModelConfig& model, const TensorNaming& naming,
                                          const std::string& predictions);

}  // namespace furlong
