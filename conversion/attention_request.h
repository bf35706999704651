#pragma once
// What a user asks for with --attention, --layers and --heads-keep-softmax, as settings.
#include <optional>
#include <string>
#include <vector>

#include "evaluation/analyze/analyze_attention.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// MAP, windowed:W, windowed:W+MAP, linformer, linformer:R or softmax, where MAP is NAME[:ORDER][+centering][+saderf]
/// of a feature map.
struct AttentionRequest {
  std::string mechanism = layers::softmax_attention;
  std::int64_t size = 0;                        ///< windowed: W; linformer: R, 0 for its default
  std::optional<AttentionCandidate> candidate;  ///< linear, windowed
};
/// Throws UserError for a text that is not of that form.
AttentionRequest attention_request(const std::string& text);

/// Mechanisms by layer and head.
using HeadMechanisms = std::vector<std::vector<std::string>>;
/// Those that settings say.
HeadMechanisms head_mechanisms(const layers::ModelConfig& model);
/// Says them in as few words as there are. Throws UserError for layers that share one block and differ.
void set_head_mechanisms(layers::ModelConfig& model, const HeadMechanisms& mechanisms);

/// "0,1,5-7" as a choice among `count` things, numbered from 0; empty text: all. Throws UserError, in terms of
/// `option`.
std::vector<bool> chosen_numbers(const std::string& text, std::int64_t count, const std::string& option,
                                 const std::string& things);
/// "0:3,2:1-2": of each layer the heads that are named. Throws UserError, in terms of --heads-keep-softmax.
std::vector<std::vector<bool>> chosen_heads(const std::string& text, const layers::ModelConfig& model);

/// Gives the chosen layers, but for the heads in `keep_softmax`, the attention asked for, and others what they have.
/// `features`: m of random features, 0 for the default. Throws UserError where layers that stay as they are need
/// another feature map than those that change.
void apply_request(const AttentionRequest& request, std::int64_t features, const std::vector<bool>& layers,
                   const std::vector<std::vector<bool>>& keep_softmax, layers::ModelConfig& model);

/// Sets the keys of a feature map.
void set_features(const AttentionCandidate& candidate, std::int64_t features, layers::AttentionConfig& attention);

}  // namespace furlong
