#pragma once
#include <cmath>
#include <filesystem>

#include "framework/core/dtype.h"
#include "framework/ops/attention/positions/rotary_scaling.h"
#include "framework/ops/normalization/norm.h"
#include "framework/primitives/activation_kind.h"
#include "layers/attention/attention_config.h"

namespace furlong::layers {

enum class Architecture : std::uint8_t {
  decoder,  ///< causal
  encoder   ///< each token sees all others
};
constexpr auto names_of(Architecture) { return std::array{"decoder", "encoder"}; }

/// swiglu and geglu are gated (Shazeer 2020, "GLU Variants Improve Transformer").
enum class Activation : std::uint8_t { gelu, gelu_tanh, relu, silu, swiglu, geglu };
constexpr auto names_of(Activation) { return std::array{"gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu"}; }
constexpr bool is_gated(Activation activation) {
  return activation == Activation::swiglu || activation == Activation::geglu;
}
/// Of a gated one, the nonlinearity of its gate.
ops::ActivationKind kind_of(Activation activation);

/// Where norms stand: before attention and feedforward, whose outputs are added to a residual stream that no norm
/// touches (GPT-2, Llama), or after the additions, on the stream itself (BERT; Vaswani et al. 2017).
enum class NormPlacement : std::uint8_t { before, after };
constexpr auto names_of(NormPlacement) { return std::array{"before", "after"}; }

enum class QueryKeyNorm : std::uint8_t { none, rmsnorm };
constexpr auto names_of(QueryKeyNorm) { return std::array{"none", "rmsnorm"}; }

enum class PredictionHead : std::uint8_t {
  linear,     ///< the output product alone
  transform,  ///< a linear map, the activation and a norm in front of it
  none        ///< no output layer over tokens
};
constexpr auto names_of(PredictionHead) { return std::array{"linear", "transform", "none"}; }

enum class Position : std::uint8_t { none, learned, sinusoidal, rotary };
constexpr auto names_of(Position) { return std::array{"none", "learned", "sinusoidal", "rotary"}; }

enum class RotaryPlacement : std::uint8_t {
  before_features,  ///< queries and keys are rotated
  numerator         ///< only the features that weigh values (linear attention)
};
constexpr auto names_of(RotaryPlacement) { return std::array{"before_features", "numerator"}; }

/// What backward computes again instead of keeping it: the same bits.
enum class Recompute : std::uint8_t {
  none,
  elementwise,  ///< norms and activations
  blocks        ///< blocks, from the residual stream between them, and inside each what elementwise does
};
constexpr auto names_of(Recompute) { return std::array{"none", "elementwise", "blocks"}; }

/// Low-rank adapters beside frozen weights (Hu et al. 2021, "LoRA").
struct AdapterConfig {
  std::int64_t rank = 0;  ///< 0: none
  double alpha = 16;
  double scale() const { return alpha / static_cast<double>(rank); }
  bool operator==(const AdapterConfig&) const = default;
};

/// A model: the keys under `model`, whose table (trainers/settings/model_keys.cpp) fills it, with the member
/// initialisers for defaults, and says what each means. Layers read it as it is. GPT-2 (layernorm, biases, gelu_tanh,
/// learned positions, tied embeddings), Llama (rmsnorm, swiglu, rotary, grouped key-value heads), BERT (norms after, of
/// embeddings too, segments, a transform in front of the output) and ALBERT (one block for all layers, narrow
/// embeddings) are just values of this. Layers need every size resolved: nothing is 0 that has to be known.
struct ModelConfig {
  Architecture architecture = Architecture::decoder;
  std::int64_t vocabulary_size = 0, n_layers = 4, d_model = 128, d_feedforward = 0, max_sequence_length = 0;
  AttentionConfig attention{.n_heads = 4, .n_kv_heads = 0};
  Activation activation = Activation::gelu;
  ops::NormKind norm = ops::NormKind::layernorm;
  double norm_epsilon = 1e-5;
  NormPlacement norm_placement = NormPlacement::before;
  bool embedding_norm = false;
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  bool bias = true;
  bool shared_layers = false;
  std::int64_t d_embedding = 0;
  std::int64_t n_segments = 0;
  bool tied_embeddings = true;
  PredictionHead prediction_head = PredictionHead::linear;
  bool output_bias = false;
  Position position = Position::rotary;
  double rotary_base = 10000;
  RotaryPlacement rotary_placement = RotaryPlacement::before_features;
  ops::RotaryScaling rotary_scaling;
  double dropout = 0;
  std::int64_t short_convolution = 0;
  double initializer_range = 0.02;
  AdapterConfig adapter;
  DType dtype = DType::float32;   ///< of the parameter store that the model is declared in
  std::filesystem::path weights;  ///< the checkpoint that training starts from, if any

  bool rotates(RotaryPlacement placement) const {
    return position == Position::rotary && rotary_placement == placement;
  }
  /// Width of the embeddings, which a linear map brings to d_model where d_embedding is set.
  std::int64_t embedding_width() const { return d_embedding > 0 ? d_embedding : d_model; }
  /// Each layer adds two branches to the residual stream; scaled so that its variance does not grow with depth (Radford
  /// et al. 2019, section 2.3).
  double branch_initializer_range() const { return initializer_range / std::sqrt(2.0 * static_cast<double>(n_layers)); }
  bool operator==(const ModelConfig&) const = default;
};

/// config.attention with what attention has to know of the rest of the model.
AttentionConfig attention_config(const ModelConfig& config);
/// The same with the mechanism, or those of the heads, that layer_mechanisms names for `layer`, where it names any.
AttentionConfig attention_of_layer(const ModelConfig& config, std::int64_t layer);

}  // namespace furlong::layers
