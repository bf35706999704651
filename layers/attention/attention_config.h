#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "framework/core/enum_names.h"
#include "framework/ops/attention/feature_maps/feature_map.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "framework/ops/attention/linformer/sequence_projection.h"
#include "layers/attention/linear/random_projection.h"

namespace furlong::ops {
constexpr auto names_of(Normalizer) { return std::array{"sum", "none"}; }
}  // namespace furlong::ops

namespace furlong::layers {

/// Exact attention; the mechanism that conversions start from.
inline constexpr const char* softmax_attention = "softmax";
/// Linear attention: a feature map of queries and keys, without softmax.
inline constexpr const char* linear_attention = "linear";

/// Scaling of queries and keys that leaves q·k unchanged.
enum class Scaling : std::uint8_t { none, saderf };
constexpr auto names_of(Scaling) { return std::array{"none", "saderf"}; }

/// Which parts of the model have their own Linformer projections E (of keys) and F (of values).
enum class ProjectionSharing : std::uint8_t {
  none,       ///< each head has its own E and F
  heads,      ///< each layer has its own E and F
  key_value,  ///< each layer has its own E = F
  layers      ///< the model has one E = F
};
constexpr auto names_of(ProjectionSharing) { return std::array{"none", "heads", "key_value", "layers"}; }

/// Settings of attention: the keys under model.attention, the head counts and widths, and what attention_config() adds
/// from the rest of the model.
struct AttentionConfig {
  std::string mechanism = softmax_attention;    ///< of all layers and heads that the next two do not name
  std::vector<std::string> layer_mechanisms{};  ///< empty, or the mechanism of each layer
  std::vector<std::string> head_mechanisms{};   ///< empty, or the mechanism of each head
  std::int64_t window = 0;            ///< sliding window: query i attends to keys j with |i - j| < window; 0 = all keys
  std::int64_t softmax_window = 0;    ///< windowed: the nearest keys, |i - j| < softmax_window, have exact weights
  bool drops_softmax_window = false;  ///< windowed: computes its linear part alone, from the same parameters; no key
  std::string feature_map = "favor_positive";  ///< of mechanisms with features
  std::int64_t n_features = 0;                 ///< number m of random features; 0 = 2 d_head
  ops::FeatureMapOptions map_options{};
  ops::Normalizer normalizer = ops::Normalizer::sum;
  bool centering = false;  ///< subtract means from queries and keys before the feature map (HeadConstants)
  Scaling scaling = Scaling::none;
  double denominator_guard = 0x1p-20;  ///< ops::LinearAttentionOptions::denominator_guard
  RandomProjectionKind random_projection = RandomProjectionKind::orthogonal;
  std::int64_t redraw_every = 0;      ///< optimizer steps; 0 = never
  std::int64_t chunk_size = 64;       ///< tokens per chunk of causal linear attention
  std::int64_t projected_length = 0;  ///< linformer: r
  ops::SequenceProjection projection = ops::SequenceProjection::linear;
  ProjectionSharing sharing = ProjectionSharing::key_value;

  std::int64_t n_heads = 1, n_kv_heads = 1, d_head = 0;  ///< model.n_heads, n_key_value_heads, d_head
  std::int64_t d_value = 0;                              ///< width of a value head; 0 = d_head

  // From the rest of the model.
  std::int64_t max_sequence_length = 0;
  bool causal = true;
  bool rotate_numerator = false;  ///< rotary positions in the numerator's features (ops::LinearAttentionOptions)
  double rotary_base = 10000;     ///< used with rotate_numerator

  /// Returns a config with the same heads and every key under model.attention at its default.
  AttentionConfig plain() const { return {.n_heads = n_heads, .n_kv_heads = n_kv_heads, .d_head = d_head}; }
  /// Returns the width of a value head.
  std::int64_t value_width() const { return d_value > 0 ? d_value : d_head; }
  bool operator==(const AttentionConfig&) const = default;
};

}  // namespace furlong::layers
