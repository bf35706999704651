#pragma once
// Constants of centering, SADERF scaling and FAVOR++ for each head. They come from statistics of queries and keys in
// earlier optimizer steps, so no output depends on a later token.
#include "framework/autodiff/parameter_store.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Decay factor of the statistics at each optimizer step; they cover about 100 steps.
inline constexpr double statistics_decay = 0.99;

/// First and second moments of one head's queries and keys over tokens, each [d].
struct HeadMoments {
  std::vector<double> query_mean, key_mean, query_square, key_square;
};

/// Returns Ψ_l = (E k_l² / E q_l²)^(1/4) for each dimension l (Likhosherstov et al. 2023, "FAVOR#", features SADERF).
/// With `centering` the moments are those of centered queries and keys. Ψ is 1 if either moment is zero, and is clamped
/// to [1/64, 64] so that one dead dimension does not spoil the others.
std::vector<double> saderf_scaling(const HeadMoments& moments, bool centering);
/// Returns A = (1 - 2φ - √((2φ+1)² + 8φ)) / 16, where φ is the mean over pairs of |q'+k'|² / d (Likhosherstov et al.
/// 2022, "Chefs' Random Tables", theorem 3.1). q' and k' are centered if `centering`, scaled by Ψ (null: 1), and
/// include the factor d^(-1/4). A is at most 0; A = 0, the feature map favor_positive, if φ = 0.
double oprf_constant(const HeadMoments& moments, bool centering, const std::vector<double>* scaling);

/// The constants of one layer. Its buffers are `name`.statistics [n_heads, 1 + 4 d] and, if the config needs them,
/// `name`.query_center and `name`.key_center [n_heads, d], `name`.scaling [n_heads, d] and `name`.oprf_a [n_heads].
class HeadConstants {
 public:
  /// Declares the buffers in `store`; none if the config needs no constants. Throws UserError if centering or scaling
  /// would change the meaning of the feature map.
  HeadConstants(ParameterStore& store, const std::string& name, const AttentionConfig& config);

  /// Adds the sums of these queries and keys to the statistics, in place, on the context's stream. Does nothing outside
  /// training. A segment that is recomputed in backward counts once.
  void observe(const ForwardContext& context, const Tensor& query, const Tensor& key) const;
  /// Sets the constants from the statistics of earlier optimizer steps; without statistics they are neutral. Call it
  /// before an optimizer step, and only after steps that called observe(): each call lets older statistics decay.
  void update();
  /// Sets the tensors of `constants` to the buffers, without a copy; a constant that the config does not need stays
  /// undefined.
  void put_into(ops::LinearAttentionConstants& constants) const;

 private:
  AttentionConfig config_;
  Parameter* statistics_ = nullptr;  // null: no constants
  Parameter* query_center_ = nullptr;
  Parameter* key_center_ = nullptr;
  Parameter* scaling_ = nullptr;
  Parameter* oprf_a_ = nullptr;
};

}  // namespace furlong::layers
