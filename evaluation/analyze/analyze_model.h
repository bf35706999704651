#pragma once
// furlong analyze attention on a trained model and data: what its attention is like, layer by layer and head by head.
#include <functional>
#include <optional>

#include "datasets/dataset.h"
#include "evaluation/analyze/analyze_advice.h"
#include "trainers/model/model.h"

namespace furlong {

struct ModelAnalysisOptions {
  std::filesystem::path run;    ///< a run directory or a checkpoint
  std::filesystem::path store;  ///< empty: the one that it was trained on
  Split split = Split::validation;
  Weights weights = Weights::averaged_if_present;
  std::int64_t sequence_length = 0;  ///< 0: as in training
  std::int64_t batch_size = 1, batches = 1;
  std::vector<AttentionCandidate> candidates;  ///< empty: favor_positive where a layer is softmax, none elsewhere
  std::vector<std::string>
      candidate_options;  ///< options given that belong to candidates: refused where there are none
  std::vector<layers::DirectionsKind> kinds{layers::DirectionsKind::orthogonal};
  std::vector<std::int64_t> features{256};
  std::int64_t draws = 3;
  std::uint64_t seed = 0;
  AdviceOptions advice;
  bool find_features = false, advise = false;  ///< under advice.target_error
};

/// One attention in the place of a head's.
struct HeadAttention {
  std::string name;        ///< of a candidate, or what the model has: "softmax", "linear favor_positive", ...
  bool own = false;        ///< the model's
  std::string directions;  ///< kind of random directions; empty without
  std::int64_t m = 0;      ///< 0 without features
  double error = 0;        ///< ‖output − softmax(q k)‖ / ‖softmax(q k) v‖ on this head's own q, k, v
  /// Of its weights, on the first sequence; none where weights can be negative (linformer, maps of signed features) or
  /// do not sum to 1 (normalizer none, rotary positions in the numerator).
  std::optional<double> total_variation_to_softmax, total_variation_to_uniform;
  std::optional<RequiredFeatures> required;  ///< where asked for and m can be chosen
};

struct HeadAnalysis {
  std::int64_t head = 0;
  RowNorms query_norm, key_norm;
  double uniform_error = 0;
  std::vector<HeadAttention> attentions;
  std::optional<Advice> advice;
};

struct LayerAnalysis {
  std::string layer;
  std::int64_t d = 0, n = 0;
  std::vector<HeadAnalysis> heads;
};

struct ModelAnalysis {
  std::filesystem::path checkpoint;
  std::int64_t step = 0;
  std::string data;
  std::int64_t sequence_length = 0, tokens = 0;
  bool causal = true;
};

/// Runs the model on the split's first batches, on the CPU, and analyzes each layer's queries, keys and values; `begin`
/// is called once what is analyzed is known, `done` with each layer. With data.carry_state each segment is taken by
/// itself. Throws UserError.
void analyze_model(const ModelAnalysisOptions& options, const std::function<void(const ModelAnalysis&)>& begin,
                   const std::function<void(const LayerAnalysis&)>& done);

}  // namespace furlong
