#pragma once
// Parses the options --attention, --layers and --heads-keep-softmax of furlong convert, and applies them to the
// settings of a model. Layers and heads are numbered from 0.
#include <optional>
#include <string>
#include <vector>

#include "evaluation/analyze/analyze_attention.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// A parsed --attention. Its forms:
///   softmax         exact attention
///   MAP             linear attention with the feature map MAP, written NAME[:ORDER][+centering][+saderf], such as
///                   favor_positive, taylor:2 or oprf+centering
///   windowed:W      exact for the W nearest tokens, favor_positive for the others; windowed:W+MAP with another map
///   linformer       Linformer; linformer:R projects the sequence to R rows
struct AttentionRequest {
  std::string mechanism = layers::softmax_attention;
  std::int64_t size = 0;                        ///< windowed: W; linformer: R, or 0 for the default
  std::optional<AttentionCandidate> candidate;  ///< the feature map of linear and windowed; otherwise empty
};
/// Parses the value of --attention. Throws UserError if it does not have one of these forms.
AttentionRequest attention_request(const std::string& text);

/// Names of mechanisms [n_layers][n_heads].
using HeadMechanisms = std::vector<std::vector<std::string>>;
/// Returns the mechanism of every head of a model.
HeadMechanisms head_mechanisms(const layers::ModelConfig& model);
/// Sets the mechanism of every head in `model`, under the key that needs the fewest names: mechanism if all heads are
/// equal, heads if all layers are equal, otherwise layers. Throws UserError if layers that share one block (ALBERT)
/// have different mechanisms.
void set_head_mechanisms(layers::ModelConfig& model, const HeadMechanisms& mechanisms);

/// Parses a selection such as "0,1,5-7" among `count` items and returns, for each item, whether it is selected. An
/// empty text selects all. Throws UserError if the text is invalid or a number is out of range. The message names
/// `option`, such as "--layers", and `things`, such as "layers".
std::vector<bool> parse_selection(const std::string& text, std::int64_t count, const std::string& option,
                                  const std::string& things);
/// Parses --heads-keep-softmax, such as "0:3,2:1-2": head 3 of layer 0, heads 1 and 2 of layer 2. Returns
/// [n_layers][n_heads], true for these heads; an empty text selects none. Throws UserError if the text is invalid or a
/// number is out of range.
std::vector<std::vector<bool>> parse_head_selection(const std::string& text, const layers::ModelConfig& model);

/// Returns the feature map of layers outside `layers`, such as "favor_positive (m = 64)"; empty if they have none.
std::string features_of_others(const layers::ModelConfig& model, const std::vector<bool>& layers);

/// Warns if the new attention does not have the sliding window of the source, `before` tokens; 0 is none.
void warn_of_lost_window(std::int64_t before, const layers::AttentionConfig& after);

/// Sets the requested attention in `model` for the selected layers, except that heads in `keep_softmax` use softmax.
/// Other layers stay unchanged. `features` is the number m of random features per head; 0 is that of unchanged
/// layers, or the default. Throws UserError if unchanged layers have another feature map, window or projected length,
/// because all heads of a model share them.
void apply_request(const AttentionRequest& request, std::int64_t features, const std::vector<bool>& layers,
                   const std::vector<std::vector<bool>>& keep_softmax, layers::ModelConfig& model);

/// Sets the keys of model.attention that describe a feature map: the map, its order, centering, scaling and number of
/// features (`features`, 0 for the default).
void set_features(const AttentionCandidate& candidate, std::int64_t features, layers::AttentionConfig& attention);

}  // namespace furlong
