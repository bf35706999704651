#pragma once
// Linear attention as two Python libraries compute it, epsilons, scaling, stabilisers and masking exactly as theirs, so
// that a model trained with them goes on here. Same meaning as linear_attention where no epsilon matters; new models
// have no reason to use it:
//  - a stabiliser that is a maximum over all keys lets a later token change earlier outputs, so there is no recurrent
//    mode;
//  - what a library gets wrong by its epsilons at large norms is wrong here too: features lost beside them count as
//    equal.
// Features are made tile by tile; neither direction stores an n × m tensor.
#include <string>

#include "framework/autodiff/tape.h"
#include "framework/ops/attention/attention_mask.h"
#include "framework/ops/attention/feature_maps/feature_map.h"

namespace furlong::ops {

enum class Compat : std::uint8_t {
  /// performer-pytorch: favor_positive (`softmax_kernel`), favor_relu (`generalized_kernel` with ReLU). Features of
  /// queries subtract their row's maximum, those of keys the maximum of all keys of the head; favor_positive adds
  /// kernel_epsilon to every feature. A key mask empties values only: masked keys still count in the denominator.
  performer_pytorch,
  /// pytorch-fast-transformers: elu1 (`elu_feature_map`), favor_hyperbolic (`Favor`: exp(±u), so two features a
  /// direction), favor_relu (`GeneralizedRandomFeatures`, which neither scales x nor adds to the features). A key mask
  /// keeps keys out of both sums.
  fast_transformers
};
/// "performer_pytorch" or "fast_transformers". Throws UserError naming them.
Compat compat_library(const std::string& name);
/// Throws UserError, naming what the library has, where it has no such map.
void check_compat(Compat library, FeatureMap map);

struct CompatAttentionOptions {
  std::int64_t n_heads = 1;
  std::int64_t n_kv_heads = 1;  ///< query head h reads key-value head h / (n_heads / n_kv_heads)
  Compat library = Compat::performer_pytorch;
  FeatureMap feature_map = FeatureMap::favor_positive;
  bool causal = true;
  /// Added to features (performer_pytorch). Negative: the library's own, 1e-4 for favor_positive and 1e-3 for
  /// favor_relu.
  double kernel_epsilon = -1;
  /// Added to each sum of key features (performer_pytorch, causal only) or to the denominator (fast_transformers).
  /// Negative: the library's own, 1e-6.
  double denominator_epsilon = -1;
  /// fast_transformers' favor_hyperbolic, an argument of theirs: features divided by exp of the sequence's greatest
  /// |x|²/√d.
  bool stabilize = false;
};

/// query [batch, n, n_heads·d], key [batch, n_key, n_kv_heads·d], value [batch, n_key, n_kv_heads·d_value]; views with
/// contiguous rows are welcome. Returns [batch, n, n_heads·d_value]. `directions` ω [n_directions, d] float32 or
/// float64, undefined for elu1. Computes in float32 (float64 for float64 inputs), tile by tile; memory is O(n·d).
/// Maxima are constants in backward, as in performer-pytorch (`detach`), but for that of `stabilize`, which
/// fast-transformers differentiates. Throws UserError where the library has no such map or the mask has documents, and
/// on GPUs, which this is not for; ContractError on shapes that do not fit; causal needs n = n_key.
Variable compat_attention(Tape& tape, const Variable& query, const Variable& key, const Variable& value,
                          const Tensor& directions, const AttentionMask& mask, const CompatAttentionOptions& options);

}  // namespace furlong::ops
