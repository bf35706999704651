#pragma once
// What centring, SADERF scaling and FAVOR++ know about the queries and keys of each head: constants from the statistics
// of earlier optimizer steps, so that no output depends on a later token.
#include "framework/autodiff/parameter_store.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Share of the statistics that is left after each optimizer step: they remember about a hundred.
inline constexpr double statistics_decay = 0.99;

/// Moments of one head over tokens, each [d].
struct HeadMoments {
  std::vector<double> query_mean, key_mean, query_square, key_square;
};

/// Ψ_l = (E k_l² / E q_l²)^(1/4) (Likhosherstov et al. 2023, "FAVOR#", which calls the features SADERF), of centred
/// moments where `centering`; 1 where either moment is zero, and within [1/64, 64], so that one dead dimension cannot
/// spoil the others.
std::vector<double> saderf_scaling(const HeadMoments& moments, bool centering);
/// A = (1 - 2φ - √((2φ+1)² + 8φ)) / 16, φ = mean over pairs of |q'+k'|² / d (Likhosherstov et al. 2022, "Chefs' Random
/// Tables", theorem 3.1), where q' and k' are centred, scaled by Ψ (null: 1) and carry d^(-1/4): at most 0, and 0,
/// which is favor_positive, where φ is.
double oprf_constant(const HeadMoments& moments, bool centering, const std::vector<double>* scaling);

/// Buffers of one layer: `name`.statistics [n_heads, 1 + 4 d] and of the constants those that the config asks for:
/// `name`.query_center and `name`.key_center [n_heads, d], `name`.scaling [n_heads, d], `name`.oprf_a [n_heads].
class HeadConstants {
 public:
  /// Declares nothing where the config needs no constants. Throws UserError where centring or scaling would change what
  /// the feature map means.
  HeadConstants(ParameterStore& store, const std::string& name, const AttentionConfig& config);

  /// In training: adds the sums of these queries and keys to the statistics; once where a segment runs twice.
  void observe(const ForwardContext& context, const Tensor& query, const Tensor& key) const;
  /// Before an optimizer step: constants from what was observed in earlier ones; neutral ones where that is nothing.
  /// Each call makes what was seen weigh less: it belongs after steps that have observed something.
  void update();
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
