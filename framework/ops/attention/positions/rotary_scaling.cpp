#include "framework/ops/attention/positions/rotary_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "framework/core/error.h"

namespace furlong::ops {
namespace {

constexpr double two_pi = 2 * std::numbers::pi;

double llama3_frequency(double theta, const RotaryScaling& scaling) {
  const double turns = static_cast<double>(scaling.original_length) * theta / two_pi;  // within the original length
  if (turns < scaling.low_frequency_factor) return theta / scaling.factor;
  if (turns > scaling.high_frequency_factor) return theta;
  const double kept =
      (turns - scaling.low_frequency_factor) / (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - kept) * theta / scaling.factor + kept * theta;
}

/// Position of each pair on the ramp from unchanged (0) to interpolated (1) frequencies.
class YarnRamp {
 public:
  YarnRamp(std::int64_t d_head, double base, const RotaryScaling& scaling) {
    const double width = static_cast<double>(d_head);
    // The pair, as a real number, that rotates `turns` times in the original length.
    const auto pair_of = [&](double turns) {
      return width * std::log(static_cast<double>(scaling.original_length) / (turns * two_pi)) / (2 * std::log(base));
    };
    first_ = std::max(std::floor(pair_of(scaling.beta_fast)), 0.0);
    last_ = std::min(std::ceil(pair_of(scaling.beta_slow)), width - 1);
    if (first_ == last_) last_ += 0.001;  // as in the reference implementation, to avoid a ramp of width 0
  }
  double at(std::int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - first_) / (last_ - first_), 0.0, 1.0);
  }

 private:
  double first_, last_;
};

void check(std::int64_t d_head, double base, const RotaryScaling& scaling) {
  require(d_head > 0 && d_head % 2 == 0, "rotary: heads have {} dimensions, expected a positive even number", d_head);
  require(base > 0, "rotary: base is {}, expected a positive number", base);
  require(scaling.factor >= 1, "rotary: the scaling factor is {}, expected at least 1", scaling.factor);
  require(!scaling.uses_original_length() || scaling.original_length > 0,
          "rotary: the original length is {}, expected a positive number", scaling.original_length);
  require(scaling.kind != RotaryScalingKind::llama3 || scaling.high_frequency_factor > scaling.low_frequency_factor,
          "rotary: the high frequency factor is {}, expected more than the low frequency factor {}",
          scaling.high_frequency_factor, scaling.low_frequency_factor);
  require(
      scaling.kind != RotaryScalingKind::yarn || (scaling.beta_fast > scaling.beta_slow && base > 1),
      "rotary: yarn has beta_fast {}, beta_slow {} and base {}, expected beta_fast above beta_slow and base above 1",
      scaling.beta_fast, scaling.beta_slow, base);
}

}  // namespace

std::vector<double> rotary_frequencies(std::int64_t d_head, double base, const RotaryScaling& scaling) {
  check(d_head, base, scaling);
  const std::int64_t half = d_head / 2;
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < half; ++i)
    frequencies.push_back(std::pow(base, -static_cast<double>(i) / static_cast<double>(half)));
  switch (scaling.kind) {
    case RotaryScalingKind::none:
      break;
    case RotaryScalingKind::linear:
      for (double& theta : frequencies) theta /= scaling.factor;
      break;
    case RotaryScalingKind::llama3:
      for (double& theta : frequencies) theta = llama3_frequency(theta, scaling);
      break;
    case RotaryScalingKind::yarn: {
      const YarnRamp ramp(d_head, base, scaling);
      for (std::int64_t i = 0; i < half; ++i) {
        double& theta = frequencies[static_cast<std::size_t>(i)];
        const double interpolated = ramp.at(i);
        theta = interpolated * theta / scaling.factor + (1 - interpolated) * theta;
      }
      break;
    }
  }
  return frequencies;
}

double rotary_attention_factor(const RotaryScaling& scaling) {
  if (scaling.kind != RotaryScalingKind::yarn) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  return 0.1 * std::log(scaling.factor) + 1;
}

}  // namespace furlong::ops
