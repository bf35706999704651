#pragma once
// Measures how far a converted model's attention is from the softmax attention that it replaces, on real data and
// before any training.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "evaluation/analyze/observed_model.h"

namespace furlong {

/// Inputs and outputs of one attention layer on a set of batches.
struct LayerSample {
  std::int64_t layer = 0;
  /// Queries, keys and values of the layer, and the output of exact softmax attention on them.
  AttentionData data;
  /// Outputs of another model's mechanism on the same queries, keys and values; empty without such a model.
  std::vector<Tensor> outputs;
};

/// Calls done(sample) for each layer in `wanted`, in order. Layers are processed in groups of at most 1 GiB; each group
/// takes one pass over the batches. `student` (may be null) is a model of the same shape. Its attention is applied to
/// the teacher's queries, keys and values.
void sample_layers(ObservedModel& teacher, const std::vector<bool>& wanted, Model* student,
                   const std::function<void(LayerSample&&)>& done);

/// Returns true if a model with these settings has constants that calibrate() sets.
bool has_constants(const Settings& settings);

/// Returns the number of tokens that estimate the constants well enough: 16 for each dimension of a head. With N tokens
/// the squared error of a center, summed over d dimensions, is d / N (here 1/16) of the variance of one token. The
/// scale Ψ, the fourth root of a ratio of second moments, has a relative error of 1 / (2 √N): 1.6% for d = 64. Tokens
/// of a text are not independent, so this number is a lower bound.
std::int64_t tokens_for_constants(const Settings& settings);
/// Logs a warning if the data has fewer tokens than tokens_for_constants(). `constants` starts the line.
void warn_of_few_tokens(const ObservedModel& observed, const char* constants);

/// Sets the centers, scales and constants of the feature maps of the student's layers in `wanted` from the teacher's
/// queries and keys, as training would. Does nothing if the feature maps have no constants.
void calibrate(ObservedModel& teacher, Model& student, const std::vector<bool>& wanted);

/// Approximation error of one head, measured on the teacher's queries, keys and values.
struct HeadApproximation {
  std::int64_t layer = 0, head = 0;
  std::string mechanism;
  bool is_exact = false;     ///< softmax over the same keys as in the source
  double error = 0;          ///< |output - softmax output| / |softmax output|
  double uniform_error = 0;  ///< the same error for uniform attention: the mean of the visible values
  RowNorms query_norm, key_norm;
};

/// Measures every head of the layers in `wanted`. `student` must be calibrated.
std::vector<HeadApproximation> measure_approximation(ObservedModel& teacher, Model& student,
                                                     const std::vector<bool>& wanted);

/// Returns a JSON array with one object for each head.
nlohmann::ordered_json as_json(const std::vector<HeadApproximation>& heads);

}  // namespace furlong
