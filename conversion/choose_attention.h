#pragma once
// --attention auto: measures which heads of a softmax model can use linear attention, and with which feature map.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "conversion/attention_request.h"
#include "evaluation/analyze/analyze_advice.h"
#include "evaluation/analyze/observed_model.h"

namespace furlong {

/// Options of choose_attention().
struct AutomaticOptions {
  double target_error = 0.1;  ///< largest HeadApproximation::error of a head that becomes linear
  std::int64_t max_features = 1024, draws = 3, length = 0;  ///< as in AdviceOptions
  bool limits_polynomials = false;                          ///< as in AdviceOptions
  std::uint64_t seed = 0;
  std::vector<bool> layers;                     ///< the layers that may change
  std::vector<std::vector<bool>> keep_softmax;  ///< the heads that must keep softmax
};

/// The best choice for one head alone, and the choice made for it.
struct HeadChoice {
  std::int64_t layer = 0, head = 0;
  std::string own;  ///< the cheapest map within the target error for this head alone, or "softmax"
  double own_error = 0, own_flops = 0;
  bool linear = false;      ///< true if the head changes to linear attention
  double error = 0;         ///< error of the model's feature map in this head, whether the head uses it or not
  std::string why_softmax;  ///< why the head keeps softmax; empty if it changes
};

/// The result of choose_attention().
struct AutomaticChoice {
  std::optional<LinearChoice> map;  ///< the model's one feature map and m; empty if every head keeps softmax
  std::int64_t length = 0;          ///< sequence length n that the costs hold for
  // Floating point operations per token, summed over all heads of the selected layers.
  double softmax_flops = 0;  ///< with softmax in every head
  double flops = 0;          ///< with the chosen attention
  double ideal_flops = 0;    ///< if each head could have its own map and m
  std::vector<HeadChoice> heads;
  std::vector<HeadMechanisms::value_type> mechanisms;  ///< of all layers and heads
  nlohmann::ordered_json json() const;
  std::string text() const;
};

/// Chooses one feature map and m for the model, and the heads that use it. A model has one feature map, m, centering
/// and scaling for all heads, and heads that share keys and values have one mechanism. First, advise() finds the
/// cheapest choice of each head alone. Then every map and m found is measured in all heads. The one with the lowest
/// total cost is chosen. A head (or group of heads) becomes linear if its error is within the target and it costs less
/// than softmax. Throws UserError if a selected layer is not a softmax layer.
AutomaticChoice choose_attention(ObservedModel& teacher, const layers::ModelConfig& model,
                                 const AutomaticOptions& options);

}  // namespace furlong
