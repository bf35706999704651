#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "framework/ops/attention/feature_maps/feature_map.h"

namespace furlong::layers {

/// Exact attention, from which approximations are converted.
inline constexpr const char* softmax_attention = "softmax";
/// Attention through the features of a map alone.
inline constexpr const char* linear_attention = "linear";

/// The keys under model.attention, whose table fills them, and what the rest of the model says about its attention.
struct AttentionConfig {
  std::string mechanism = softmax_attention;
  std::vector<std::string> layer_mechanisms{};  ///< empty, or the mechanism of each layer
  std::vector<std::string> head_mechanisms{};   ///< empty, or the mechanism of each head
  std::int64_t window = 0;                      ///< keys farther away are not seen, 0 = all are
  std::int64_t softmax_window = 0;              ///< windowed: how many of the nearest keys have exact weights
  std::string feature_map = "favor_positive";   ///< of mechanisms with features
  std::int64_t n_features = 0;                  ///< with random features: m; 0 = 2 d_head
  ops::FeatureMapOptions map_options{};
  std::string normalizer = "sum";  ///< sum, none
  bool centering = false;
  std::string scaling = "none";  ///< none, saderf
  double denominator_guard = 0x1p-20;
  std::string directions = "orthogonal";
  std::int64_t redraw_every = 0;  ///< optimizer steps; 0 = never
  std::int64_t chunk_size = 64;
  std::int64_t projected_length = 0;  ///< linformer: r
  std::string projection = "linear";  ///< linformer: linear, mean, convolution
  std::string sharing = "key_value";  ///< linformer: none, heads, key_value, layers

  // From the rest of the model.
  std::int64_t max_sequence_length = 0;
  std::int64_t n_heads = 1, n_kv_heads = 1, d_head = 0;
  std::int64_t d_value = 0;  ///< width of a value head; 0 = d_head
  bool causal = true;
  bool rotate_numerator = false;  ///< rotary positions in the numerator's features (ops::LinearAttentionOptions)
  double rotary_base = 10000;     ///< with rotate_numerator

  std::int64_t value_width() const { return d_value > 0 ? d_value : d_head; }
  bool operator==(const AttentionConfig&) const = default;
};

}  // namespace furlong::layers
