#include "framework/ops/attention/positions/rotary_scaling.h"

#include <cmath>

#include "framework/autodiff/gradient_check.h"
#include "framework/ops/attention/positions/rotary.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;
using ops::RotaryScaling;
using ops::RotaryScalingKind;

/// Results of transformers 5.23 (ROPE_INIT_FUNCTIONS) for a config, in float32.
struct Published {
  const char* name;
  std::int64_t d_head;
  double base;
  RotaryScaling scaling;
  std::vector<double> frequencies;
  double attention_factor;
};

RotaryScaling llama3(double factor, std::int64_t original, double low, double high) {
  return {.kind = RotaryScalingKind::llama3,
          .factor = factor,
          .original_length = original,
          .low_frequency_factor = low,
          .high_frequency_factor = high};
}
RotaryScaling yarn(double factor, std::int64_t original, double fast = 32, double slow = 1, double attention = 0) {
  return {.kind = RotaryScalingKind::yarn,
          .factor = factor,
          .original_length = original,
          .beta_fast = fast,
          .beta_slow = slow,
          .attention_factor = attention};
}

const std::vector<Published> published{
    {"linear",
     16,
     10000,
     {.kind = RotaryScalingKind::linear, .factor = 4},
     {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
     1},
    {"llama3 (as Llama 3.1)",
     32,
     500000,
     llama3(8, 8192, 1, 4),
     {1, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508, 0.00321144611,
      0.000524846022, 7.78465546e-05, 3.42810235e-05, 1.50962178e-05, 6.64786967e-06, 2.92749974e-06, 1.28917316e-06,
      5.6770881e-07},
     1},
    {"yarn",
     32,
     10000,
     yarn(4, 4096),
     {1, 0.562341332, 0.316227764, 0.177827939, 0.100000001, 0.0562341288, 0.0282346234, 0.0139721958, 0.00678571407,
      0.00321337907, 0.00146820047, 0.00063509983, 0.000250000012, 0.000140585325, 7.90569466e-05, 4.44569851e-05},
     1.138629436111989},
    {"yarn with all of its numbers",
     24,
     1000,
     yarn(2.5, 256, 8, 2, 1.3),
     {1, 0.562341332, 0.316227764, 0.151153743, 0.0699999928, 0.0309287757, 0.0126491114, 0.00711311866, 0.00399999972,
      0.00224936521, 0.00126491114, 0.000711311644},
     1.3},
};

TEST(RotaryScaling, FrequenciesMatchTransformers) {
  for (const Published& p : published) {
    const std::vector<double> found = ops::rotary_frequencies(p.d_head, p.base, p.scaling);
    ASSERT_EQ(found.size(), p.frequencies.size()) << p.name;
    // The power, two products and their blend are each rounded to float32.
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i] / p.frequencies[i], 1, 6 * 0x1p-24) << p.name << ", pair " << i;
    EXPECT_NEAR(ops::rotary_attention_factor(p.scaling), p.attention_factor, 1e-15) << p.name;
  }
}

TEST(RotaryScaling, FrequenciesMatchFormulas) {
  constexpr std::int64_t d = 64;
  const double pi = std::acos(-1.0);
  for (const double base : {100.0, 10000.0, 1e6}) {
    const auto plain = ops::rotary_frequencies(d, base, {});
    const auto by_wavelength = ops::rotary_frequencies(d, base, llama3(5, 300, 1.5, 6));
    const auto by_pair = ops::rotary_frequencies(d, base, yarn(5, 300, 20, 0.5));
    // The pairs at the ends of YaRN's ramp: those that rotate 20 times and half a time in 300 tokens.
    const double first = std::max(std::floor(d * std::log(300 / (20 * 2 * pi)) / (2 * std::log(base))), 0.0);
    const double last = std::min(std::ceil(d * std::log(300 / (0.5 * 2 * pi)) / (2 * std::log(base))), d - 1.0);
    for (std::int64_t i = 0; i < d / 2; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double theta = 1 / std::pow(base, 2.0 * static_cast<double>(i) / d), wavelength = 2 * pi / theta;
      EXPECT_NEAR(plain[at] / theta, 1, 1e-14);
      double expected = theta;
      if (wavelength > 300 / 1.5) {
        expected = theta / 5;
      } else if (wavelength >= 300 / 6.0) {
        const double smooth = (300 / wavelength - 1.5) / (6 - 1.5);
        expected = (1 - smooth) * theta / 5 + smooth * theta;
      }
      EXPECT_NEAR(by_wavelength[at] / expected, 1, 1e-13) << base << ", pair " << i;
      const double ramp = std::min(std::max((static_cast<double>(i) - first) / (last - first), 0.0), 1.0);
      EXPECT_NEAR(by_pair[at] / (theta / 5 * ramp + theta * (1 - ramp)), 1, 1e-13) << base << ", pair " << i;
    }
  }
  EXPECT_EQ(ops::rotary_attention_factor(yarn(5, 300)), 0.1 * std::log(5.0) + 1);
  EXPECT_EQ(ops::rotary_attention_factor({}), 1);
}

TEST(RotaryScaling, RejectsInvalidParameters) {
  EXPECT_THROW(ops::rotary_frequencies(7, 100, {}), ContractError);
  EXPECT_THROW(ops::rotary_frequencies(8, 100, {.kind = RotaryScalingKind::linear, .factor = 0.5}), ContractError);
  EXPECT_THROW(ops::rotary_frequencies(8, 100, llama3(2, 0, 1, 4)), ContractError);
  EXPECT_THROW(ops::rotary_frequencies(8, 100, llama3(2, 100, 4, 4)), ContractError);
  EXPECT_THROW(ops::rotary_frequencies(8, 100, yarn(2, 100, 1, 1)), ContractError);
}

class ScaledRotary : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(ScaledRotary);

/// Angles of the scaled frequencies, and the factor of both cosines and sines, in consecutive rows, for individual
/// positions, and far out.
TEST_P(ScaledRotary, TableAppliesAttentionFactor) {
  for (const Published& p : published) {
    const auto theta = ops::rotary_frequencies(p.d_head, p.base, p.scaling);
    const double factor = ops::rotary_attention_factor(p.scaling);
    ops::RotaryTable table(p.d_head, p.base, p.scaling);
    const auto expect = [&](const Tensor& rows, const std::vector<std::int32_t>& positions) {
      const auto values = doubles(rows);
      const std::size_t half = theta.size();
      for (std::size_t row = 0; row < positions.size(); ++row) {
        for (std::size_t i = 0; i < half; ++i) {
          const double angle = positions[row] * theta[i];
          EXPECT_NEAR(values[2 * row * half + i], factor * std::cos(angle), 2 * 0x1p-24 * factor) << p.name;
          EXPECT_NEAR(values[(2 * row + 1) * half + i], factor * std::sin(angle), 2 * 0x1p-24 * factor) << p.name;
        }
      }
    };
    expect(table.get(testing::stream(), DType::float32, 0, 3), {0, 1, 2});
    expect(table.get(testing::stream(), DType::float32, 5, 2), {5, 6});
    expect(table.get(testing::stream(), DType::float32, 70000, 2), {70000, 70001});
    const std::vector<std::int32_t> far{90000, 3, 80000};
    expect(table.at(testing::stream(), DType::float32, Tensor::from(far, {1, 3}, testing::device())).table, far);
  }
}

TEST_P(ScaledRotary, GradientMatchesFiniteDifference) {
  ops::RotaryTable table(6, 100.0, yarn(3, 20, 4, 0.5));
  ASSERT_GT(table.attention_factor(), 1.1);
  const Tensor positions = integer_tensor({2, 5}, 0, 30, "positions");
  for (const bool own : {false, true}) {
    const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
      const Variable copy = tape.record_one("copy", {inputs[0]}, inputs[0].value().clone(), {},
                                            [](BackwardContext& context) { context.pass(0, context.d_output()); });
      return ops::rotary(tape, copy, 2, 6, own ? 0 : 7, table, own ? &positions : nullptr);
    };
    const auto result = check_gradients(function, {normal_tensor({2, 5, 14}, DType::float64, "x")});
    EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
  }
}

}  // namespace
}  // namespace furlong
