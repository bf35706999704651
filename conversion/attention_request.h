#pragma once
// Turns --attention, --layers and --heads-keep-softmax into settings.
#include <optional>
#include <string>
#include <vector>

#include "evaluation/analyze/analyze_attention.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// A parsed --attention: MAP, windowed:W, windowed:W+MAP, linformer, linformer:R or softmax. MAP is a feature map:
/// NAME[:ORDER][+centering][+saderf].
struct AttentionRequest {
  std::string mechanism = layers::softmax_attention;
  std::int64_t size = 0;                        ///< windowed: W; linformer: R, 0 for the default
  std::optional<AttentionCandidate> candidate;  ///< the feature map of linear and windowed
};
/// Parses --attention. Throws UserError if the text does not have one of these forms.
AttentionRequest attention_request(const std::string& text);

/// Names of mechanisms, indexed by layer and head.
using HeadMechanisms = std::vector<std::vector<std::string>>;
/// Returns the mechanism of every head of a model.
HeadMechanisms head_mechanisms(const layers::ModelConfig& model);
/// Stores the mechanisms in the shortest form: one for the model, one for each head, or a list for each layer. Throws
/// UserError if layers share one block but have different mechanisms.
void set_head_mechanisms(layers::ModelConfig& model, const HeadMechanisms& mechanisms);

/// Parses a selection such as "0,1,5-7" among `count` items numbered from 0. An empty text selects all. Throws
/// UserError naming `option` and `things` if the text is invalid or a number is out of range.
std::vector<bool> parse_selection(const std::string& text, std::int64_t count, const std::string& option,
                                  const std::string& things);
/// Parses a selection of heads by layer, such as "0:3,2:1-2". Throws UserError naming --heads-keep-softmax.
std::vector<std::vector<bool>> parse_head_selection(const std::string& text, const layers::ModelConfig& model);

/// Sets the requested attention for the selected layers, except the heads in `keep_softmax`, which keep softmax. Other
/// layers stay unchanged. `features` is the number m of random features, 0 for the default. Throws UserError if
/// unchanged layers need another feature map than the requested one.
void apply_request(const AttentionRequest& request, std::int64_t features, const std::vector<bool>& layers,
                   const std::vector<std::vector<bool>>& keep_softmax, layers::ModelConfig& model);

/// Sets the keys of a feature map in `attention`.
void set_features(const AttentionCandidate& candidate, std::int64_t features, layers::AttentionConfig& attention);

}  // namespace furlong
