#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "framework/core/enum_names.h"
#include "framework/ops/attention/feature_maps/feature_map.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "framework/ops/attention/linformer/sequence_projection.h"
#include "layers/attention/linear/directions.h"

namespace furlong::ops {
constexpr auto names_of(Normalizer) { return std::array{"sum", "none"}; }
}  // namespace furlong::ops

namespace furlong::layers {

/// Exact attention, from which approximations are converted.
inline constexpr const char* softmax_attention = "softmax";
/// Attention through the features of a map alone.
inline constexpr const char* linear_attention = "linear";

/// Scaling of queries and keys that leaves q·k as it is.
enum class Scaling : std::uint8_t { none, saderf };
constexpr auto names_of(Scaling) { return std::array{"none", "saderf"}; }

/// Who has a Linformer projection of his own.
enum class ProjectionSharing : std::uint8_t {
  none,       ///< each head, E for keys and F for values
  heads,      ///< each layer, E and F
  key_value,  ///< each layer, E = F
  layers      ///< nobody: one E = F for the model
};
constexpr auto names_of(ProjectionSharing) { return std::array{"none", "heads", "key_value", "layers"}; }

/// The keys under model.attention and the heads, whose table fills them, and what the rest of the model says about its
/// attention (attention_config).
struct AttentionConfig {
  std::string mechanism = softmax_attention;
  std::vector<std::string> layer_mechanisms{};  ///< empty, or the mechanism of each layer
  std::vector<std::string> head_mechanisms{};   ///< empty, or the mechanism of each head
  std::int64_t window = 0;                      ///< keys farther away are not seen, 0 = all are
  std::int64_t softmax_window = 0;              ///< windowed: how many of the nearest keys have exact weights
  std::string feature_map = "favor_positive";   ///< of mechanisms with features
  std::int64_t n_features = 0;                  ///< with random features: m; 0 = 2 d_head
  ops::FeatureMapOptions map_options{};
  ops::Normalizer normalizer = ops::Normalizer::sum;
  bool centering = false;
  Scaling scaling = Scaling::none;
  double denominator_guard = 0x1p-20;
  DirectionsKind directions = DirectionsKind::orthogonal;
  std::int64_t redraw_every = 0;  ///< optimizer steps; 0 = never
  std::int64_t chunk_size = 64;
  std::int64_t projected_length = 0;  ///< linformer: r
  ops::SequenceProjection projection = ops::SequenceProjection::linear;
  ProjectionSharing sharing = ProjectionSharing::key_value;

  std::int64_t n_heads = 1, n_kv_heads = 1, d_head = 0;  ///< model.n_heads, n_key_value_heads, d_head
  std::int64_t d_value = 0;                              ///< width of a value head; 0 = d_head

  // From the rest of the model.
  std::int64_t max_sequence_length = 0;
  bool causal = true;
  bool rotate_numerator = false;  ///< rotary positions in the numerator's features (ops::LinearAttentionOptions)
  double rotary_base = 10000;     ///< with rotate_numerator

  /// The same heads, and every key under model.attention at its default.
  AttentionConfig plain() const { return {.n_heads = n_heads, .n_kv_heads = n_kv_heads, .d_head = d_head}; }
  std::int64_t value_width() const { return d_value > 0 ? d_value : d_head; }
  bool operator==(const AttentionConfig&) const = default;
};

}  // namespace furlong::layers
