#pragma once
// Runs an attention mechanism on given tensors, without a model, for `furlong attend` and `furlong bench attention`.
#include <memory>

#include "layers/attention/mechanism.h"

namespace furlong {

/// Throws UserError, with names of command-line options, if the settings of `config` are incompatible.
void check_attention(const layers::AttentionConfig& config);

/// Query [batch, n, n_heads·d], key and value [batch, n_key, n_kv_heads·width].
struct AttentionOperands {
  Variable query, key, value;
  ops::AttentionMask mask{};
  ops::DenominatorReport* denominators = nullptr;  ///< see ForwardContext
};

/// One attention mechanism with its own parameter store, outside a model.
class BareAttention {
 public:
  /// `config` includes heads and widths. `tensors` replaces the parameters of a layer. A mechanism that takes no
  /// tensors gets initial parameters, drawn with seed 0.
  BareAttention(const layers::AttentionConfig& config, const layers::AttentionTensors& tensors, DType dtype,
                const Device& device);
  /// Processes all tokens at once and records them on the tape. Returns [batch, n, n_heads·d_value].
  Variable in_parallel(Tape& tape, const AttentionOperands& operands) const;
  /// Processes the first `prefill` tokens at once and all others one by one, with a recurrent state. Returns the same
  /// output, without a tape. Requires a causal mechanism with a recurrent state, and no documents.
  Tensor in_steps(const Stream& stream, const AttentionOperands& operands, std::int64_t prefill) const;

 private:
  layers::AttentionConfig config_;
  ParameterStore store_;
  std::unique_ptr<layers::AttentionMechanism> mechanism_;
};

/// Returns the number of rows of the random projection for `m` features; m = 0: 2 d_head features. Returns 0 for
/// feature maps without a random projection. Throws UserError if the map cannot have m features.
std::int64_t attend_projection_count(const layers::AttentionConfig& config, std::int64_t m);
/// Returns the number of features m. Throws UserError, with names of command-line options, if the feature map cannot
/// have so many features, or not the order of config.map_options.
std::int64_t attend_feature_count(const layers::AttentionConfig& config, std::int64_t n_projections);

}  // namespace furlong
