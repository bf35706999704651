#pragma once
// Scaling of rotary frequencies for texts longer than the original training length. The arithmetic is that of Hugging
// Face transformers (modeling_rope_utils.py), in double precision.
//
// θ_i = base^(-2i / d_head), for i in [0, d_head / 2), is the unscaled frequency of dimension pair i, in radians per
// token; `base` is Hugging Face's rope_theta. λ_i = 2π / θ_i is its wavelength in tokens, so pair i makes
// original_length / λ_i rotations in the original training length.
#include <cstdint>
#include <vector>

#include "framework/core/enum_names.h"

namespace furlong::ops {

/// How the frequencies are scaled.
enum class RotaryScalingKind : std::uint8_t {
  none,
  /// θ_i / factor for all pairs: position interpolation (Chen et al. 2023, "Extending Context Window of Large Language
  /// Models via Positional Interpolation").
  linear,
  /// θ_i / factor if λ_i > original_length / low_frequency_factor; θ_i if λ_i < original_length /
  /// high_frequency_factor. In between, the two are interpolated, linearly in original_length / λ_i (Llama 3.1).
  llama3,
  /// θ_i / factor if original_length / λ_i < beta_slow; θ_i if original_length / λ_i > beta_fast. In between, the two
  /// are interpolated, linearly in i. Both limits are first rounded to whole pairs, away from each other (Peng et al.
  /// 2023, "YaRN", section 3.2).
  yarn
};

constexpr auto names_of(RotaryScalingKind) { return std::array{"none", "linear", "llama3", "yarn"}; }

/// Kind and parameters of the scaling. A kind ignores the parameters of the others.
struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::none;
  double factor = 1;                                           ///< all but none: new / original length; at least 1
  std::int64_t original_length = 0;                            ///< llama3, yarn: original training length in tokens
  double low_frequency_factor = 1, high_frequency_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;                        ///< yarn: rotations in original_length
  /// yarn: factor of cosines and sines. 0 (the default) computes it from `factor` as 0.1 ln(factor) + 1.
  double attention_factor = 0;

  /// Returns whether the kind requires original_length.
  bool uses_original_length() const { return kind == RotaryScalingKind::llama3 || kind == RotaryScalingKind::yarn; }
  bool operator==(const RotaryScaling&) const = default;
};

/// Returns the scaled frequencies, d_head / 2 of them, in radians per token. Throws ContractError unless d_head is even
/// and positive, base > 0 and factor >= 1. Also throws if the kind uses original_length and it is not positive, if
/// llama3 has high_frequency_factor <= low_frequency_factor, or if yarn has beta_fast <= beta_slow or base <= 1.
std::vector<double> rotary_frequencies(std::int64_t d_head, double base, const RotaryScaling& scaling);

/// Returns the factor of cosines and sines: 1 except for yarn. It applies to queries and keys, so scores are multiplied
/// by its square.
double rotary_attention_factor(const RotaryScaling& scaling);

}  // namespace furlong::ops
