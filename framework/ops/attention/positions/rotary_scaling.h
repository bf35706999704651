#pragma once
// How rotary frequencies are changed for texts longer than those that a model was first trained on. The arithmetic is
// that of Hugging Face transformers (modeling_rope_utils.py), in double.
#include <cstdint>
#include <vector>

#include "framework/core/enum_names.h"

namespace furlong::ops {

enum class RotaryScalingKind : std::uint8_t {
  none,
  linear,  ///< θ / factor: positions are interpolated (Chen et al. 2023, "Extending Context Window of Large Language
           ///< Models via Positional Interpolation")
  llama3,  ///< θ / factor for wavelengths above original_length / low_frequency_factor, θ below original_length /
           ///< high_frequency_factor, a blend between (Llama 3.1)
  yarn  ///< θ / factor for pairs that turn less than beta_slow times in original_length, θ for those that turn more
        ///< than beta_fast times, a ramp over the pairs between (Peng et al. 2023, "YaRN", section 3.2)
};

constexpr auto names_of(RotaryScalingKind) { return std::array{"none", "linear", "llama3", "yarn"}; }

struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::none;
  double factor = 1;                                           ///< how many times longer texts are to be; at least 1
  std::int64_t original_length = 0;                            ///< llama3, yarn: tokens of the texts before
  double low_frequency_factor = 1, high_frequency_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;                        ///< yarn: turns in original_length
  double attention_factor = 0;                                 ///< yarn: of cosines and sines; 0: 0.1 ln(factor) + 1

  bool counts_original_length() const { return kind == RotaryScalingKind::llama3 || kind == RotaryScalingKind::yarn; }
  bool operator==(const RotaryScaling&) const = default;
};

/// θ_i for i in [0, d_head / 2): base^(-2i / d_head), scaled. Throws ContractError for a factor below 1, and, where
/// they count, for an original_length that is not positive and factors that are not in order.
std::vector<double> rotary_frequencies(std::int64_t d_head, double base, const RotaryScaling& scaling);

/// What cosines and sines are multiplied by, queries' and keys' alike, so that scores are by its square: 1 but for
/// yarn.
double rotary_attention_factor(const RotaryScaling& scaling);

}  // namespace furlong::ops
