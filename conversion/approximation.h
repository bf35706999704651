#pragma once
// How far a converted model's attention is from the softmax attention that it replaces, on real data, before any
// training.
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "evaluation/analyze/observed_model.h"

namespace furlong {

/// One attention layer of a model on some batches.
struct LayerSample {
  std::int64_t layer = 0;
  AttentionData data;           ///< its queries, keys and values, and what exact softmax makes of them
  std::vector<Tensor> outputs;  ///< what another model's mechanism makes of them, where there is one
};

/// Calls done(sample) for each of the wanted layers, in order. Layers are gathered as many at a time as fit in a
/// gigabyte; each group takes one pass over the batches. `student`, where given, is a model of the same shape whose
/// attention of each layer is applied to the teacher's queries, keys and values.
void sample_layers(ObservedModel& teacher, const std::vector<bool>& wanted, Model* student,
                   const std::function<void(LayerSample&&)>& done);

/// Whether a model of these settings has anything that calibrate() finds.
bool has_constants(const Settings& settings);

/// How many tokens steady constants take: 16 for each dimension of a head. The squared error of a centre from N tokens,
/// summed over d dimensions, is d / N times the variance of one: a sixteenth of it; and a scale Ψ, the fourth root of a
/// ratio of second moments, is off by 1 / (2 √N), 1.6% for d = 64. Tokens of a text are not independent, so that this
/// is the least that may be called enough.
std::int64_t tokens_for_constants(const Settings& settings);
/// Warns where there are fewer; `constants` begins the line.
void warn_of_few_tokens(const ObservedModel& observed, const char* constants);

/// Centres, scales and constants of the student's feature maps from the teacher's queries and keys, as training would
/// find them; nothing where its maps have none.
void calibrate(ObservedModel& teacher, Model& student);

struct HeadApproximation {
  std::int64_t layer = 0, head = 0;
  std::string mechanism;
  double error = 0;          ///< |output - softmax output| / |softmax output| on the teacher's queries, keys and values
  double uniform_error = 0;  ///< the same of the mean of the visible values
  RowNorms query_norm, key_norm;
};

/// Of every head of the wanted layers; the student is calibrated.
std::vector<HeadApproximation> measure_approximation(ObservedModel& teacher, Model& student,
                                                     const std::vector<bool>& wanted);

nlohmann::ordered_json as_json(const std::vector<HeadApproximation>& heads);

}  // namespace furlong
