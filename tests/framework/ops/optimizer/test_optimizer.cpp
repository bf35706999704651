#include "framework/ops/optimizer/optimizer.h"

#include "tests/framework/ops/op_testing.h"
#include "tests/reference/optimizer.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ops::AdamWStep;

class AdamW : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(AdamW);
class Ema : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Ema);

struct State {
  Tensor values, first_moment, second_moment;
  State(const std::vector<double>& start, DType dtype)
      : values(tensor_of(start, {static_cast<std::int64_t>(start.size())}, dtype)),
        first_moment(Tensor::zeros(values.shape(), dtype, device())),
        second_moment(Tensor::zeros(values.shape(), dtype, device())) {}
};

TEST_P(AdamW, FollowsTheReferenceOverManySteps) {
  for_each_instruction_set([] {
    for (DType dtype : {DType::float32, DType::float64}) {
      for (std::int64_t n : {1, 7, 100}) {
        const auto start = stored(normal_values(n, "start"), dtype);
        State state(start, dtype);
        reference::AdamW expected(start);
        for (int step = 1; step <= 20; ++step) {
          const auto d_values = stored(normal_values(n, fmt::format("gradient {}", step), 0.02), dtype);
          auto scaled = d_values;
          for (double& value : scaled) value *= 0.25;
          const double learning_rate = 1e-2 / step;
          ops::adamw_step(stream(), state.values, tensor_of(d_values, {n}, dtype), state.first_moment,
                          state.second_moment, {learning_rate, 0.9, 0.95, 1e-8, 0.1, step, 0.25});
          expected.step(scaled, step, learning_rate, 0.9, 0.95, 1e-8, 0.1);
        }
        // Twenty steps of a few roundings each, with independent errors; a moment that nearly cancels has a larger
        // relative error.
        const double tolerance = 20 * rounding_unit(dtype);
        EXPECT_LT(relative_error(values_of(state.values), expected.values), tolerance) << n;
        EXPECT_LT(relative_error(values_of(state.first_moment), expected.first_moment), tolerance) << n;
        EXPECT_LT(relative_error(values_of(state.second_moment), expected.second_moment), tolerance) << n;
      }
    }
  });
}

TEST_P(AdamW, FirstStepMovesEachValueByTheLearningRate) {
  // At step 1 m_hat / sqrt(v_hat) = sign(g) for any betas, because of the bias corrections.
  State state({1, 1, 1}, DType::float64);
  ops::adamw_step(stream(), state.values, Tensor::from<double>({1e-3, -5, 40}, {3}, device()), state.first_moment,
                  state.second_moment, {.learning_rate = 0.01, .epsilon = 0, .step = 1});
  const auto values = state.values.to_vector<double>();
  EXPECT_NEAR(values[0], 0.99, 1e-15);
  EXPECT_NEAR(values[1], 1.01, 1e-15);
  EXPECT_NEAR(values[2], 0.99, 1e-15);
}

TEST_P(AdamW, DecayIsDecoupledFromTheGradient) {
  State state({2, -3}, DType::float64);
  ops::adamw_step(stream(), state.values, Tensor::zeros({2}, DType::float64, device()), state.first_moment,
                  state.second_moment, {.learning_rate = 0.1, .weight_decay = 0.5, .step = 1});
  EXPECT_EQ(state.values.to_vector<double>(), (std::vector<double>{2 * 0.95, -3 * 0.95}));
  EXPECT_EQ(state.first_moment.to_vector<double>(), (std::vector<double>{0, 0}));
}

TEST_P(AdamW, Bfloat16CopyIsTheRoundedNewValue) {
  for_each_instruction_set([] {
    for (std::int64_t n : {1, 33, 1003}) {
      State state(normal_values(n, "start"), DType::float32), without(normal_values(n, "start"), DType::float32);
      const Tensor d_values = tensor_of(normal_values(n, "gradient"), {n}, DType::float32),
                   copy = Tensor::zeros({n}, DType::bfloat16, device());
      const AdamWStep settings{.learning_rate = 1e-3, .weight_decay = 0.01, .step = 3};
      ops::adamw_step(stream(), state.values, d_values, state.first_moment, state.second_moment, settings, &copy);
      ops::adamw_step(stream(), without.values, d_values, without.first_moment, without.second_moment, settings);
      EXPECT_TRUE(same_bits(state.values, without.values));
      EXPECT_EQ(values_of(copy), stored(values_of(state.values), DType::bfloat16));
    }
  });
}

TEST_P(AdamW, Float32GivesTheBitsOfTheCpu) {
  if ((hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3 | HWY_NEON)) == 0)
    GTEST_SKIP() << "this CPU has no fused multiply-add";
  const std::int64_t n = 3001;
  const auto run = [&] {
    State state(normal_values(n, "start"), DType::float32);
    const Tensor copy = Tensor::zeros({n}, DType::bfloat16, device());
    for (std::int64_t step : {1, 2, 3}) {
      const Tensor d_values = tensor_of(normal_values(n, fmt::format("gradient {}", step)), {n}, DType::float32);
      const AdamWStep settings{.learning_rate = 1e-3,
                               .weight_decay = 0.1,
                               .step = step,
                               .gradient_scale = 0.7,
                               .stochastic_rounding = ops::StochasticRounding{.seed = 3, .first_element = 1}};
      ops::adamw_step(stream(), state.values, d_values, state.first_moment, state.second_moment, settings, &copy);
    }
    return std::vector<Tensor>{state.values.to(Device{}), state.first_moment.to(Device{}),
                               state.second_moment.to(Device{}), copy.to(Device{})};
  };
  const auto here = run();
  const OnDevice cpu(Device{});
  const auto there = run();
  for (std::size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(same_bits(here[i], there[i])) << i;
}

ops::AdamWDeviceStep device_step(double learning_rate, double step, double gradient_scale, double skipped) {
  return {Tensor::from<double>({learning_rate, step, gradient_scale, skipped}, {4}, device())};
}

TEST_P(AdamW, DeviceStepGivesTheSameBits) {
  for_each_instruction_set([] {
    for (DType dtype : {DType::float32, DType::float64}) {
      const std::int64_t n = 2111;
      const auto start = normal_values(n, "start");
      State given(start, dtype), read(start, dtype);
      const bool copies = dtype == DType::float32;
      const Tensor given_copy = Tensor::zeros({n}, DType::bfloat16, device()),
                   read_copy = Tensor::zeros({n}, DType::bfloat16, device());
      for (std::int64_t step : {1, 2, 3, 1000000}) {
        const Tensor d_values = tensor_of(normal_values(n, fmt::format("gradient {}", step)), {n}, dtype);
        AdamWStep settings{.learning_rate = 1e-3 / static_cast<double>(step),
                           .beta2 = 0.95,
                           .weight_decay = 0.1,
                           .step = step,
                           .gradient_scale = 0.3,
                           .stochastic_rounding = ops::StochasticRounding{.seed = 5, .first_element = 3}};
        ops::adamw_step(stream(), given.values, d_values, given.first_moment, given.second_moment, settings,
                        copies ? &given_copy : nullptr);
        const auto numbers = device_step(settings.learning_rate, static_cast<double>(step), settings.gradient_scale, 0);
        settings.learning_rate = 7;  // the settings' own values must not be used
        settings.step = 9;
        settings.gradient_scale = 11;
        ops::adamw_step(stream(), read.values, d_values, read.first_moment, read.second_moment, settings, numbers,
                        copies ? &read_copy : nullptr);
        EXPECT_TRUE(same_bits(given.values, read.values)) << step;
        EXPECT_TRUE(same_bits(given.first_moment, read.first_moment)) << step;
        EXPECT_TRUE(same_bits(given.second_moment, read.second_moment)) << step;
        EXPECT_TRUE(same_bits(given_copy, read_copy)) << step;
      }
      EXPECT_FALSE(same_bits(given.values, State(start, dtype).values));
    }
  });
}

TEST_P(AdamW, SkippedStepChangesNothing) {
  const std::int64_t n = 37;
  State state(normal_values(n, "start"), DType::float32);
  const Tensor d_values = tensor_of(normal_values(n, "gradient"), {n}, DType::float32),
               copy = Tensor::zeros({n}, DType::bfloat16, device());
  const auto run = [&](double skipped) {
    const auto numbers = device_step(0.1, 2, 1, skipped);
    ops::adamw_step(stream(), state.values, d_values, state.first_moment, state.second_moment, {}, numbers, &copy);
    ops::ema_update(stream(), state.second_moment, state.values, 0.5, &numbers);
  };
  const State before(normal_values(n, "start"), DType::float32);
  run(1);
  EXPECT_TRUE(same_bits(state.values, before.values));
  EXPECT_TRUE(same_bits(state.first_moment, before.first_moment));
  EXPECT_TRUE(same_bits(state.second_moment, before.second_moment));
  EXPECT_EQ(values_of(copy), std::vector<double>(static_cast<std::size_t>(n), 0.0));
  run(0);
  EXPECT_FALSE(same_bits(state.values, before.values));
  EXPECT_FALSE(same_bits(state.second_moment, before.second_moment));
  EXPECT_THROW(ops::adamw_step(stream(), state.values, d_values, state.first_moment, state.second_moment, {},
                               ops::AdamWDeviceStep{}),
               ContractError);
}

/// Returns the bfloat16 copy of `values` made by one step with zero gradient and learning rate 0, which changes no
/// value.
Tensor stochastically_rounded(const Tensor& values, std::int64_t step, std::uint64_t first_element) {
  const Tensor zeros = Tensor::zeros(values.shape(), DType::float32, device()), first = zeros.clone(),
               second = zeros.clone();
  const Tensor copy = Tensor::zeros(values.shape(), DType::bfloat16, device());
  AdamWStep settings{.step = step,
                     .stochastic_rounding = ops::StochasticRounding{.seed = 17, .first_element = first_element}};
  ops::adamw_step(stream(), values, zeros, first, second, settings, &copy);
  return copy;
}

TEST_P(AdamW, StochasticRoundingIsTheDocumentedFunctionOfTheElement) {
  for_each_instruction_set([] {
    for (std::int64_t n : {1, 5, 64, 259, 1031}) {
      // A run across block 2^32 of the words carries into the upper half of the counter.
      for (std::uint64_t first :
           {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4098}, (std::uint64_t{1} << 34) - 27}) {
        std::vector<float> values;
        for (double value : normal_values(n, "values")) values.push_back(static_cast<float>(value));
        values[0] = std::numeric_limits<float>::infinity();
        if (n > 4) {
          values[3] = std::bit_cast<float>(0x7f800001u);  // a NaN whose payload does not fit in bfloat16
          values[4] = 1.5f;                               // representable in bfloat16
        }
        const auto found = stochastically_rounded(Tensor::from(values, {n}, device()), 6, first).to_vector<bfloat16>();
        const RandomKey key{17, 6, ops::StochasticRounding{}.stream};
        for (std::size_t i = 0; i < values.size(); ++i) {
          const auto bits = std::bit_cast<std::uint32_t>(values[i]);
          const auto expected = static_cast<std::uint16_t>((bits + (random_word(key, first + i) >> 16)) >> 16);
          if (std::isnan(values[i])) {
            EXPECT_TRUE(std::isnan(static_cast<float>(found[i])));
          } else {
            EXPECT_EQ(found[i].bits, std::isinf(values[i]) ? 0x7f80 : expected) << i;
          }
        }
        if (n > 4) {
          EXPECT_EQ(static_cast<float>(found[4]), 1.5f);
        }
      }
    }
  });
}

TEST_P(AdamW, RoundStochasticallyRecreatesTheCopyOfAStep) {
  for_each_instruction_set([] {
    for (std::int64_t n : {0, 1, 5, 259, 5003}) {
      // Includes views that are not aligned for vector accesses.
      const Tensor values = tensor_of(normal_values(n + 3, "values"), {n + 3}, DType::float32).narrow(0, 3, n);
      const Tensor copy = Tensor::zeros({n + 1}, DType::bfloat16, device()).narrow(0, 1, n);
      for (std::int64_t step : {1, 6}) {
        ops::StochasticRounding rounding;
        rounding.seed = 17;
        rounding.first_element = 7;
        ops::round_stochastically(stream(), copy, values, rounding, step);
        EXPECT_TRUE(same_bits(copy, stochastically_rounded(values, step, 7))) << n;
      }
    }
  });
  const Tensor values = Tensor::zeros({4}, DType::float32, device()),
               copy = Tensor::zeros({4}, DType::bfloat16, device());
  EXPECT_THROW(ops::round_stochastically(stream(), copy, values, {}, 0), ContractError);
  EXPECT_THROW(ops::round_stochastically(stream(), values, values, {}, 1), ContractError);
  EXPECT_THROW(ops::round_stochastically(stream(), copy.narrow(0, 0, 3), values, {}, 1), ContractError);
}

TEST_P(AdamW, StochasticRoundingKeepsTheMean) {
  // 1 + 2^-7 is bfloat16's next number after 1. The mean of n draws deviates by 2^-7 sqrt(p (1 - p) / n); p is exact to
  // 2^-16.
  const std::int64_t n = on_sanitized_simulator() ? 1 << 10 : on_simulator() ? 1 << 13 : 1 << 17;
  for (double p : {0.0, 0.01, 0.3, 0.5, 0.97}) {
    const double value = 1 + p * 0x1p-7;
    for (double sign : {1.0, -1.0}) {
      double sum = 0;
      for (std::int64_t step : {1, 2}) {
        const Tensor values =
            tensor_of(std::vector<double>(static_cast<std::size_t>(n), sign * value), {n}, DType::float32);
        for (double drawn : values_of(stochastically_rounded(values, step, 0))) {
          ASSERT_TRUE(drawn == sign || drawn == sign * (1 + 0x1p-7)) << drawn;
          sum += drawn;
        }
      }
      const double deviation = 0x1p-7 * std::sqrt(p * (1 - p) / static_cast<double>(2 * n));
      EXPECT_NEAR(sum / static_cast<double>(2 * n), sign * value, 4 * deviation + 0x1p-7 * 0x1p-16) << p;
    }
  }
  const Tensor values = tensor_of(std::vector<double>(64, 1 + 0x1p-8), {64}, DType::float32);
  EXPECT_FALSE(same_bits(stochastically_rounded(values, 1, 0), stochastically_rounded(values, 2, 0)))
      << "the step has to change what is drawn";
}

TEST(AdamWOnTheCpu, BitsDoNotDependOnThreadCount) {
  const std::int64_t n = 200003;
  std::vector<Tensor> results;
  for (int threads : {1, 3}) {
    const WithThreads guard(threads);
    State state(normal_values(n, "start"), DType::float32);
    ops::adamw_step(stream(), state.values, tensor_of(normal_values(n, "gradient"), {n}, DType::float32),
                    state.first_moment, state.second_moment, {.learning_rate = 1e-3, .weight_decay = 0.01, .step = 2});
    results.push_back(state.values);
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

TEST_P(AdamW, RejectsMismatchedTensors) {
  const Tensor a = Tensor::zeros({4}, DType::float32, device()), shorter = Tensor::zeros({3}, DType::float32, device()),
               half = Tensor::zeros({4}, DType::bfloat16, device());
  EXPECT_THROW(ops::adamw_step(stream(), a, shorter, a, a, {}), ContractError);
  EXPECT_THROW(ops::adamw_step(stream(), a, half, a, a, {}), ContractError);
  EXPECT_THROW(ops::adamw_step(stream(), half, half, half, half, {}), ContractError);
  EXPECT_THROW(ops::adamw_step(stream(), a, a, a, a, {}, &a), ContractError);
  EXPECT_THROW(ops::adamw_step(stream(), a, a, a, a, {.step = 0}), ContractError);
  EXPECT_THROW(ops::ema_update(stream(), a, shorter, 0.9), ContractError);
  EXPECT_THROW(ops::ema_update(stream(), a, a, 1.1), ContractError);
}

TEST_P(Ema, FollowsItsDefinition) {
  for_each_instruction_set([] {
    for (DType dtype : {DType::float32, DType::float64}) {
      for (std::int64_t n : {1, 41}) {
        const auto start = stored(normal_values(n, "start"), dtype);
        const Tensor average = tensor_of(start, {n}, dtype);
        auto expected = start;
        for (int step = 0; step < 10; ++step) {
          const auto values = stored(normal_values(n, fmt::format("values {}", step)), dtype);
          ops::ema_update(stream(), average, tensor_of(values, {n}, dtype), 0.99);
          for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = 0.99 * expected[i] + (1 - 0.99) * values[i];
        }
        EXPECT_LT(relative_error(values_of(average), expected), 10 * rounding_unit(dtype));
      }
    }
  });
}

TEST_P(Ema, DecayZeroCopiesAndDecayOneKeeps) {
  const Tensor average = Tensor::from<float>({1, 2, 3}, {3}, device()),
               values = Tensor::from<float>({4, 5, 6}, {3}, device());
  ops::ema_update(stream(), average, values, 1);
  EXPECT_EQ(average.to_vector<float>(), (std::vector<float>{1, 2, 3}));
  ops::ema_update(stream(), average, values, 0);
  EXPECT_EQ(average.to_vector<float>(), (std::vector<float>{4, 5, 6}));
}

}  // namespace
}  // namespace furlong
