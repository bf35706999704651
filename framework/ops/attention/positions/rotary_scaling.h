#pragma once
// Scaling of rotary frequencies for texts longer than the original training length. The arithmetic is that of Hugging
// Face transformers (modeling_rope_utils.py), in double precision.
#include <cstdint>
#include <vector>

#include "framework/core/enum_names.h"

namespace furlong::ops {

enum class RotaryScalingKind : std::uint8_t {
  none,
  /// θ / factor: positions are interpolated (Chen et al. 2023, "Extending Context Window of Large Language Models via
  /// Positional Interpolation").
  linear,
  /// θ / factor for wavelengths above original_length / low_frequency_factor, θ below original_length /
  /// high_frequency_factor, and a blend in between (Llama 3.1).
  llama3,
  /// θ / factor for pairs that rotate less than beta_slow times in original_length, θ for those that rotate more than
  /// beta_fast times, and a ramp for the pairs in between (Peng et al. 2023, "YaRN", section 3.2).
  yarn
};

constexpr auto names_of(RotaryScalingKind) { return std::array{"none", "linear", "llama3", "yarn"}; }

struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::none;
  double factor = 1;                                           ///< new length / original length; at least 1
  std::int64_t original_length = 0;                            ///< llama3, yarn: original training length in tokens
  double low_frequency_factor = 1, high_frequency_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;                        ///< yarn: rotations in original_length
  double attention_factor = 0;  ///< yarn: factor of cosines and sines; 0: 0.1 ln(factor) + 1

  bool uses_original_length() const { return kind == RotaryScalingKind::llama3 || kind == RotaryScalingKind::yarn; }
  bool operator==(const RotaryScaling&) const = default;
};

/// Returns θ_i for i in [0, d_head / 2): base^(-2i / d_head), scaled. Throws ContractError for a factor below 1. If the
/// kind uses them, also throws for an original_length that is not positive and for factors in the wrong order.
std::vector<double> rotary_frequencies(std::int64_t d_head, double base, const RotaryScaling& scaling);

/// Returns the factor of cosines and sines: 1 except for yarn. It applies to queries and keys, so scores are multiplied
/// by its square.
double rotary_attention_factor(const RotaryScaling& scaling);

}  // namespace furlong::ops
