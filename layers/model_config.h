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
  encoder   ///< each token attends to all others
};
constexpr auto names_of(Architecture) { return std::array{"decoder", "encoder"}; }

/// swiglu and geglu are gated (Shazeer 2020, "GLU Variants Improve Transformer").
enum class Activation : std::uint8_t { gelu, gelu_tanh, relu, silu, swiglu, geglu };
constexpr auto names_of(Activation) { return std::array{"gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu"}; }
/// Returns whether the feedforward network has a gate, and so two input projections.
constexpr bool is_gated(Activation activation) {
  return activation == Activation::swiglu || activation == Activation::geglu;
}
/// Returns the activation function; for a gated activation, that of its gate.
ops::ActivationKind kind_of(Activation activation);

/// Placement of norms. Pre-norm: in front of attention and feedforward, whose outputs are added to a residual stream
/// without norms (GPT-2, Llama). Post-norm: on the residual stream, after each addition (BERT; Vaswani et al. 2017).
enum class NormPlacement : std::uint8_t { pre, post };
constexpr auto names_of(NormPlacement) { return std::array{"pre", "post"}; }

enum class QueryKeyNorm : std::uint8_t { none, rmsnorm };
constexpr auto names_of(QueryKeyNorm) { return std::array{"none", "rmsnorm"}; }

enum class PredictionHead : std::uint8_t {
  linear,     ///< the output projection alone
  transform,  ///< a linear map, an activation and a norm before the output projection
  none        ///< no output layer over tokens
};
constexpr auto names_of(PredictionHead) { return std::array{"linear", "transform", "none"}; }

enum class Position : std::uint8_t { none, learned, sinusoidal, rotary };
constexpr auto names_of(Position) { return std::array{"none", "learned", "sinusoidal", "rotary"}; }

enum class RotaryPlacement : std::uint8_t {
  before_features,  ///< queries and keys are rotated
  numerator         ///< only the features that weight the values are rotated (linear attention)
};
constexpr auto names_of(RotaryPlacement) { return std::array{"before_features", "numerator"}; }

/// Activation checkpointing: what backward recomputes instead of storing it. Results are bit-identical,
/// except with shared_layers and constants measured from queries and keys (oprf, centering): `blocks` adds the layers'
/// measurements in another order.
enum class ActivationCheckpointing : std::uint8_t {
  none,
  elementwise,  ///< norms and activations
  blocks        ///< whole blocks, from the residual stream between them; inside each block, also as elementwise
};
constexpr auto names_of(ActivationCheckpointing) { return std::array{"none", "elementwise", "blocks"}; }

/// Low-rank adapters of frozen weights (Hu et al. 2021, "LoRA").
struct AdapterConfig {
  std::int64_t rank = 0;  ///< 0: none
  double alpha = 16;
  /// Returns the factor of the adapter's output.
  double scale() const { return alpha / static_cast<double>(rank); }
  bool operator==(const AdapterConfig&) const = default;
};

/// A model: the keys under `model`. Their table (trainers/settings/model_keys.cpp) fills this struct, takes the
/// defaults from the member initializers, and documents each key. These models are values of it:
///  - GPT-2: layernorm, biases, gelu_tanh, learned positions, tied embeddings;
///  - Llama: rmsnorm, swiglu, rotary positions, grouped key-value heads;
///  - Mistral: as Llama, a window; Qwen2: as Llama, biases of queries, keys and values; Qwen3: as Llama, norms of
///    queries and keys;
///  - BERT and RoBERTa: post-norm, a norm of the embeddings, segments, a transform before the output;
///  - ALBERT: as BERT, one block for all layers, narrow embeddings;
///  - ESM-2: pre-norm, rotary positions, token dropout, a transform before the output.
/// Layers need resolved sizes: no required size may be 0.
struct ModelConfig {
  Architecture architecture = Architecture::decoder;
  std::int64_t vocabulary_size = 0, n_layers = 4, d_model = 128, d_feedforward = 0, max_sequence_length = 0;
  AttentionConfig attention{.n_heads = 4, .n_kv_heads = 0};
  Activation activation = Activation::gelu;
  ops::NormKind norm = ops::NormKind::layernorm;
  double norm_epsilon = 1e-5;
  NormPlacement norm_placement = NormPlacement::pre;
  bool embedding_norm = false;
  QueryKeyNorm query_key_norm = QueryKeyNorm::none;
  bool bias = true;
  bool query_key_value_bias = false;  ///< without `bias`: biases of queries, keys and values alone
  bool shared_layers = false;
  std::int64_t d_embedding = 0;
  std::int64_t n_segments = 0;
  bool tied_embeddings = true;
  bool token_dropout = false;    ///< ops::token_dropout of the token embeddings
  std::int64_t mask_token = -1;  ///< the vocabulary's; set by make_model
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
  std::filesystem::path weights;  ///< the checkpoint that training starts from; may be empty

  /// Returns whether the model has rotary positions at this placement.
  bool rotates(RotaryPlacement placement) const {
    return position == Position::rotary && rotary_placement == placement;
  }
  bool has_query_key_value_bias() const { return bias || query_key_value_bias; }
  /// Returns the width of the embeddings. If d_embedding is set, a linear map projects them to d_model.
  std::int64_t embedding_width() const { return d_embedding > 0 ? d_embedding : d_model; }
  /// Returns the standard deviation of the initial weights of residual branches. Each layer adds two branches; the
  /// scaling keeps the variance of the residual stream independent of depth (Radford et al. 2019, section 2.3).
  double branch_initializer_range() const { return initializer_range / std::sqrt(2.0 * static_cast<double>(n_layers)); }
  bool operator==(const ModelConfig&) const = default;
};

/// Returns config.attention, completed with the values that attention needs from the rest of the model.
AttentionConfig attention_config(const ModelConfig& config);
/// Returns attention_config() for one layer, with the mechanism (or the mechanisms of its heads) that layer_mechanisms
/// names for it.
AttentionConfig attention_of_layer(const ModelConfig& config, std::int64_t layer);

}  // namespace furlong::layers
