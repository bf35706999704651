#include "framework/ops/optimizer.h"

#include "tests/framework/ops/op_testing.h"
#include "tests/reference/optimizer.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ops::AdamWStep;

struct State {
  Tensor values, first_moment, second_moment;
  State(const std::vector<double>& start, DType dtype)
      : values(tensor_of(start, {static_cast<std::int64_t>(start.size())}, dtype)),
        first_moment(Tensor::zeros(values.shape(), dtype)),
        second_moment(Tensor::zeros(values.shape(), dtype)) {}
};

TEST(AdamW, FollowsTheReferenceOverManySteps) {
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
          ops::adamw_step(Stream{}, state.values, tensor_of(d_values, {n}, dtype), state.first_moment, state.second_moment,
                          {learning_rate, 0.9, 0.95, 1e-8, 0.1, step, 0.25});
          expected.step(scaled, step, learning_rate, 0.9, 0.95, 1e-8, 0.1);
        }
        // Twenty steps of a few roundings each, whose errors are independent; a moment that nearly cancels adds to its own relative error.
        const double tolerance = 20 * rounding_unit(dtype);
        EXPECT_LT(relative_error(values_of(state.values), expected.values), tolerance) << n;
        EXPECT_LT(relative_error(values_of(state.first_moment), expected.first_moment), tolerance) << n;
        EXPECT_LT(relative_error(values_of(state.second_moment), expected.second_moment), tolerance) << n;
      }
    }
  });
}

TEST(AdamW, TheFirstStepMovesEachValueByTheLearningRate) {
  // m_hat / sqrt(v_hat) = sign(g) at step 1, whatever the betas: what the bias corrections are for.
  State state({1, 1, 1}, DType::float64);
  ops::adamw_step(Stream{}, state.values, Tensor::from<double>({1e-3, -5, 40}, {3}), state.first_moment, state.second_moment,
                  {.learning_rate = 0.01, .epsilon = 0, .step = 1});
  const auto values = state.values.to_vector<double>();
  EXPECT_NEAR(values[0], 0.99, 1e-15);
  EXPECT_NEAR(values[1], 1.01, 1e-15);
  EXPECT_NEAR(values[2], 0.99, 1e-15);
}

TEST(AdamW, DecayIsDecoupledFromTheGradient) {
  State state({2, -3}, DType::float64);
  ops::adamw_step(Stream{}, state.values, Tensor::zeros({2}, DType::float64), state.first_moment, state.second_moment,
                  {.learning_rate = 0.1, .weight_decay = 0.5, .step = 1});
  EXPECT_EQ(state.values.to_vector<double>(), (std::vector<double>{2 * 0.95, -3 * 0.95}));
  EXPECT_EQ(state.first_moment.to_vector<double>(), (std::vector<double>{0, 0}));
}

TEST(AdamW, TheBfloat16CopyIsTheNewValuesRounded) {
  for_each_instruction_set([] {
    for (std::int64_t n : {1, 33, 1000}) {
      State state(normal_values(n, "start"), DType::float32), without(normal_values(n, "start"), DType::float32);
      const Tensor d_values = tensor_of(normal_values(n, "gradient"), {n}, DType::float32), copy = Tensor::zeros({n}, DType::bfloat16);
      const AdamWStep settings{.learning_rate = 1e-3, .weight_decay = 0.01, .step = 3};
      ops::adamw_step(Stream{}, state.values, d_values, state.first_moment, state.second_moment, settings, &copy);
      ops::adamw_step(Stream{}, without.values, d_values, without.first_moment, without.second_moment, settings);
      EXPECT_TRUE(same_bits(state.values, without.values));
      EXPECT_EQ(values_of(copy), stored(values_of(state.values), DType::bfloat16));
    }
  });
}

TEST(AdamW, ThreadsDoNotChangeABit) {
  const std::int64_t n = 200003;
  std::vector<Tensor> results;
  for (int threads : {1, 3}) {
    const WithThreads guard(threads);
    State state(normal_values(n, "start"), DType::float32);
    ops::adamw_step(Stream{}, state.values, tensor_of(normal_values(n, "gradient"), {n}, DType::float32), state.first_moment,
                    state.second_moment, {.learning_rate = 1e-3, .weight_decay = 0.01, .step = 2});
    results.push_back(state.values);
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

TEST(AdamW, TensorsThatDoNotFitAreRefused) {
  const Tensor a = Tensor::zeros({4}, DType::float32), shorter = Tensor::zeros({3}, DType::float32),
               half = Tensor::zeros({4}, DType::bfloat16);
  EXPECT_THROW(ops::adamw_step(Stream{}, a, shorter, a, a, {}), ContractError);
  EXPECT_THROW(ops::adamw_step(Stream{}, a, half, a, a, {}), ContractError);
  EXPECT_THROW(ops::adamw_step(Stream{}, half, half, half, half, {}), ContractError);
  EXPECT_THROW(ops::adamw_step(Stream{}, a, a, a, a, {}, &a), ContractError);
  EXPECT_THROW(ops::adamw_step(Stream{}, a, a, a, a, {.step = 0}), ContractError);
  EXPECT_THROW(ops::ema_update(Stream{}, a, shorter, 0.9), ContractError);
  EXPECT_THROW(ops::ema_update(Stream{}, a, a, 1.1), ContractError);
}

TEST(Ema, FollowsItsDefinition) {
  for_each_instruction_set([] {
    for (DType dtype : {DType::float32, DType::float64}) {
      for (std::int64_t n : {1, 41}) {
        const auto start = stored(normal_values(n, "start"), dtype);
        const Tensor average = tensor_of(start, {n}, dtype);
        auto expected = start;
        for (int step = 0; step < 10; ++step) {
          const auto values = stored(normal_values(n, fmt::format("values {}", step)), dtype);
          ops::ema_update(Stream{}, average, tensor_of(values, {n}, dtype), 0.99);
          for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = 0.99 * expected[i] + (1 - 0.99) * values[i];
        }
        EXPECT_LT(relative_error(values_of(average), expected), 10 * rounding_unit(dtype));
      }
    }
  });
}

TEST(Ema, DecayZeroCopiesAndDecayOneKeeps) {
  const Tensor average = Tensor::from<float>({1, 2, 3}, {3}), values = Tensor::from<float>({4, 5, 6}, {3});
  ops::ema_update(Stream{}, average, values, 1);
  EXPECT_EQ(average.to_vector<float>(), (std::vector<float>{1, 2, 3}));
  ops::ema_update(Stream{}, average, values, 0);
  EXPECT_EQ(average.to_vector<float>(), (std::vector<float>{4, 5, 6}));
}

}  // namespace
}  // namespace furlong
