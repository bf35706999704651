#pragma once
// Any attention mechanism on tensors of one's own, without a model around it: what `furlong attend` and `furlong bench
// attention` run.
#include <memory>

#include "layers/attention/mechanism.h"

namespace furlong {

/// Throws UserError, in terms of the command line's options, when the parts of `config` do not go together.
void check_attention(const layers::AttentionConfig& config);

/// Query [batch, n, n_heads·d], key and value [batch, n_key, n_kv_heads·width].
struct AttentionOperands {
  Variable query, key, value;
  ops::AttentionMask mask{};
  ops::DenominatorReport* denominators = nullptr;  ///< as ForwardContext's
};

class BareAttention {
 public:
  /// `config` with its heads and widths; `tensors` in the place of what a layer keeps. A mechanism that takes no
  /// tensors has its parameters' initial values, drawn from seed 0.
  BareAttention(const layers::AttentionConfig& config, const layers::AttentionTensors& tensors, DType dtype,
                const Device& device);
  /// All tokens at once, recorded on the tape -> [batch, n, n_heads·d_value].
  Variable in_parallel(Tape& tape, const AttentionOperands& operands) const;
  /// The same for the first `prefill` tokens at once and the others one by one, each from the state that the earlier
  /// ones left. Nothing is recorded. Causal mechanisms with a past, without documents.
  Tensor in_steps(const Stream& stream, const AttentionOperands& operands, std::int64_t prefill) const;

 private:
  layers::AttentionConfig config_;
  ParameterStore store_;
  std::unique_ptr<layers::AttentionMechanism> mechanism_;
};

/// The directions that `m` features take (0: twice d_head features, or what the map has), none for maps without. Throws
/// UserError where m does not fit the map.
std::int64_t attend_direction_count(const layers::AttentionConfig& config, std::int64_t m);
/// m of config.map_options. Throws UserError, in terms of the command line's options, where the map cannot have so many
/// or not that order.
std::int64_t attend_feature_count(const layers::AttentionConfig& config, std::int64_t n_directions);

}  // namespace furlong
