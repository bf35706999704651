#pragma once
// --attention auto: which heads of a softmax model can do without softmax, and with what, by measurement.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "conversion/attention_request.h"
#include "evaluation/analyze/analyze_advice.h"
#include "evaluation/analyze/observed_model.h"

namespace furlong {

struct AutomaticOptions {
  double target_error = 0.1;
  std::int64_t most_features = 1024, draws = 3, length = 0;  ///< as AdviceOptions
  bool bounds_polynomials = false;                           ///< likewise
  std::uint64_t seed = 0;
  std::vector<bool> layers;                     ///< those that may change
  std::vector<std::vector<bool>> keep_softmax;  ///< heads that may not
};

/// What one head would take for itself, and what it gets.
struct HeadChoice {
  std::int64_t layer = 0, head = 0;
  std::string own;  ///< the cheapest under the target, or "softmax"
  double own_error = 0, own_flops = 0;
  bool linear = false;      ///< whether it leaves softmax
  double error = 0;         ///< of the model's feature map in this head, chosen or not
  std::string why_softmax;  ///< where it stays
};

struct AutomaticChoice {
  std::optional<LinearChoice> map;  ///< the one feature map and m of the model; none: every head stays softmax
  std::int64_t length = 0;          ///< n that costs are told for
  double softmax_flops = 0;  ///< floating point operations a token, all heads of the chosen layers together: as it was,
  double flops = 0;          ///< as chosen,
  double ideal_flops = 0;    ///< and if each head could have its own map and m
  std::vector<HeadChoice> heads;
  std::vector<HeadMechanisms::value_type> mechanisms;  ///< of all layers
  nlohmann::ordered_json json() const;
  std::string text() const;
};

/// A model has one feature map, m, centring and scaling for all of its heads, and heads that share keys and values one
/// mechanism. Each head's own cheapest choice is found first (advise()); every map and m that some head would take is
/// then measured in all heads, and the one taken that makes the whole cheapest, where a head (or group of heads) is
/// linear if its error is within the target and it costs less than softmax. Throws UserError for a model that has no
/// softmax head to change.
AutomaticChoice choose_attention(ObservedModel& teacher, const layers::ModelConfig& model,
                                 const AutomaticOptions& options);

}  // namespace furlong
