#pragma once
// furlong analyze attention on a trained model: errors, weights and norms of each layer and head.
#include <functional>
#include <optional>

#include "datasets/dataset.h"
#include "evaluation/analyze/analyze_advice.h"
#include "trainers/model/model.h"

namespace furlong {

/// Options of analyze_model().
struct ModelAnalysisOptions {
  std::filesystem::path run;    ///< a run directory or a checkpoint
  std::filesystem::path store;  ///< tokenized dataset; empty: that of the model's training
  Split split = Split::validation;
  Weights weights = Weights::ema_if_present;
  std::int64_t sequence_length = 0;  ///< 0: as in training
  std::int64_t batch_size = 1, batches = 1;
  std::vector<AttentionCandidate> candidates;  ///< empty: favor_positive for softmax layers, none for others
  /// Given options that apply only to candidates. They are an error if there are no candidates.
  std::vector<std::string> candidate_options;
  std::vector<layers::RandomProjectionKind> kinds{layers::RandomProjectionKind::orthogonal};
  std::vector<std::int64_t> features{256};
  std::int64_t draws = 3;
  std::uint64_t seed = 0;
  AdviceOptions advice;
  bool find_features = false, advise = false;  ///< with advice.target_error
};

/// An attention evaluated on the queries, keys and values of one head.
struct HeadAttention {
  std::string name;               ///< of a candidate, or the model's own: "softmax", "linear favor_positive", ...
  bool own = false;               ///< whether it is the model's
  std::string random_projection;  ///< kind of random projection; empty if there is none
  std::int64_t m = 0;             ///< 0 if it has no features
  double error = 0;               ///< ‖output − softmax(q k) v‖ / ‖softmax(q k) v‖ on this head's q, k, v
  /// Total variation distances of the weights on the first sequence. Empty if weights can be negative (linformer,
  /// signed features) or need not sum to 1 (normalizer none, rotary positions in the numerator).
  std::optional<double> total_variation_to_softmax, total_variation_to_uniform;
  std::optional<RequiredFeatures> required;  ///< if requested and m can be chosen
};

/// The attentions measured on one head.
struct HeadAnalysis {
  std::int64_t head = 0;
  RowNorms query_norm, key_norm;
  double uniform_error = 0;
  std::vector<HeadAttention> attentions;
  std::optional<Advice> advice;
};

/// The heads of one layer.
struct LayerAnalysis {
  std::string layer;
  std::int64_t d = 0, n = 0;
  std::vector<HeadAnalysis> heads;
};

/// What was analyzed.
struct ModelAnalysis {
  std::filesystem::path checkpoint;
  std::int64_t step = 0;
  std::string data;
  std::optional<bool> data_changed;  ///< since training, as has_changed_since_training() tells
  std::int64_t sequence_length = 0, tokens = 0;
  bool causal = true;
};

/// Runs the model on batches of evaluation_source(), on the CPU, and analyzes the queries, keys and values of each
/// layer. Calls `begin` once, before the analysis, and `done` with each layer, in the calling thread. With
/// data.stateful, each segment is analyzed separately. Throws UserError for invalid options, checkpoints or datasets.
void analyze_model(const ModelAnalysisOptions& options, const std::function<void(const ModelAnalysis&)>& begin,
                   const std::function<void(const LayerAnalysis&)>& done);

}  // namespace furlong
