// Rotary positions in the numerator: far positions, large norms, pairs that underflow, denominators that vanish
// compared with their numerators.
#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "framework/core/error.h"
#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

class LinearAttentionRotation : public ComposedKernelTest {};
FURLONG_INSTANTIATE_ENGINES(LinearAttentionRotation);

AttentionProblem rotated_problem(FeatureMap map, bool causal, const ProblemShape& shape, double scale = 1) {
  AttentionProblem p = attention_problem(map, causal, shape, scale);
  p.options.rotate_numerator = true;
  for (auto* values : {&p.query, &p.key, &p.value}) *values = stored(*values, DType::float32);
  return p;
}
/// Makes keys opposite to the queries at the same position.
void turn_keys_away(AttentionProblem& p) {
  p.n_key = p.n;
  p.key = p.query;
  for (double& value : p.key) value = -value;
  p.value.resize(static_cast<std::size_t>(p.value_shape().elements()));
}

TEST_P(LinearAttentionRotation, Float32MatchesFloat64AtLayerNormNorms) {
  for (const FeatureMap map :
       {FeatureMap::favor_positive, FeatureMap::favor_hyperbolic, FeatureMap::exp, FeatureMap::hedgehog}) {
    for (const bool causal : {true, false}) {
      const AttentionProblem p = rotated_problem(map, causal,
                                                 {1, 1, 1, on_simulator() ? 70 : 300, 64, on_simulator() ? 8 : 32,
                                                  on_simulator() ? 32 : 128, 64});  // |q| about 8
      const Outcome expected = run_on_cpu(p, DType::float64), found = run_attention(p, DType::float32);
      const char* name = feature_map_info(map).name;
      EXPECT_LT(relative_error(found.output, expected.output), 1e-5) << name;
      EXPECT_LT(relative_error(found.d_query, expected.d_query), 1e-5) << name;
      EXPECT_LT(relative_error(found.d_key, expected.d_key), 1e-5) << name;
      EXPECT_LT(relative_error(found.d_value, expected.d_value), 1e-5) << name;
      EXPECT_EQ(found.report.guarded, 0) << name;
      EXPECT_GT(found.report.least, 1e-4) << name;
    }
  }
}

TEST_P(LinearAttentionRotation, DependsOnlyOnDistanceUpToMillionthToken) {
  const AttentionProblem p = rotated_problem(FeatureMap::favor_positive, true, {1, 2, 1, 40, 8, 8, 16, 16});
  for (const DType dtype : {DType::float32, DType::float64}) {
    const auto found = [&](std::int64_t first_token) {
      auto state = ops::empty_linear_attention_state(p.options, p.batch, p.features(), p.d_value, dtype, device());
      state.tokens = first_token;
      Tape tape{stream()};
      ops::LinearAttentionInputs inputs = inputs_of(p, dtype);
      inputs.state = &state;
      return outcome_of(tape, inputs, attend(tape, inputs, p.options));
    };
    const Outcome first = found(0);
    for (const std::int64_t token : {4095, 1000003}) {
      // In double an angle of 1e6 radians has an error of half a unit in the last place, 6e-11.
      const Outcome later = found(token);
      EXPECT_LT(relative_error(later.output, first.output), dtype == DType::float32 ? 2e-6 : 1e-9) << token;
      EXPECT_LT(relative_error(later.d_key, first.d_key), dtype == DType::float32 ? 4e-6 : 1e-9) << token;
    }
  }
}

TEST_P(LinearAttentionRotation, SingleVisibleKeyGivesItsOwnValue) {
  // At norm 40 with k = -q the features of query and key are so far apart that rotated sums would be rounding noise.
  for (const FeatureMap map : {FeatureMap::favor_positive, FeatureMap::hedgehog}) {
    AttentionProblem p = rotated_problem(map, true, {1, 2, 2, 3, 64, 16, 128, 64}, 5);
    turn_keys_away(p);
    p.documents = {1, 2, 3};
    const Outcome found = run_attention(p, DType::float32);
    EXPECT_LT(relative_error(found.output, p.value), 1e-6) << feature_map_info(map).name;
    for (const auto* gradient : {&found.d_query, &found.d_key}) {
      for (double value : *gradient) EXPECT_LT(std::fabs(value), 2e-5) << feature_map_info(map).name;
    }
  }
}

/// k = -q at norms for which the products of normalized features are below 1e-30: such pairs are computed from their
/// logarithms.
AttentionProblem underflowing_problem(std::int64_t n) {
  AttentionProblem p = rotated_problem(FeatureMap::exp, true, {1, 1, 1, n, 5, 3, 1, 64});
  turn_keys_away(p);
  for (std::int64_t i = 0; i < n * p.d; ++i) {
    // Logarithms between 0 and 100; about equal within the pairs (0, 2) and (1, 3), so that numerators stay close to
    // denominators.
    const std::int64_t f = i % p.d;
    const double x = (f % 2 == 0 ? 75.0 : -75.0) + p.query[static_cast<std::size_t>(i)];
    p.query[static_cast<std::size_t>(i)] = x;
    p.key[static_cast<std::size_t>(i)] = -x;
  }
  p.options.rotary_base = 3;
  return p;
}

TEST_P(LinearAttentionRotation, UnderflowingPairsAreRecomputedFromLogarithms) {
  AttentionProblem p = underflowing_problem(24);
  EXPECT_LT(relative_error(run_attention(p, DType::float64).output, definition_of(p, DType::float64)), 1e-11);
  EXPECT_LT(relative_error(run_attention(p, DType::float32).output, definition_of(p, DType::float32)), 1e-4);
  const Outcome pairs = run_attention(p, DType::float64);
  p.options.chunk_size = 1;  // all keys except a token's own through the state
  const Outcome states = run_attention(p, DType::float64);
  EXPECT_LT(relative_error(states.output, pairs.output), 1e-11);
  EXPECT_LT(relative_error(states.d_query, pairs.d_query), 1e-10);
  EXPECT_LT(relative_error(states.d_key, pairs.d_key), 1e-10);
  EXPECT_LT(relative_error(states.d_value, pairs.d_value), 1e-11);

  if (on_gpu()) {  // compared with the CPU's gradients, which are checked against finite differences below
    const Outcome expected = run_on_cpu(p, DType::float64);
    EXPECT_LT(relative_error(pairs.d_query, expected.d_query), 1e-10);
    EXPECT_LT(relative_error(pairs.d_key, expected.d_key), 1e-10);
    return;
  }
  p = underflowing_problem(5);
  const auto result = check_gradients(
      [&](Tape& tape, const std::vector<Variable>& in) {
        ops::LinearAttentionInputs call;
        call.query = in[0], call.key = in[1], call.value = in[2];
        return attend(tape, call, p.options);
      },
      {tensor_of(p.query, p.query_shape(), DType::float64), tensor_of(p.key, p.key_shape(), DType::float64),
       tensor_of(p.value, p.value_shape(), DType::float64)});
  EXPECT_LT(result.worst_relative_error, 5e-7) << result.where;
}

TEST_P(LinearAttentionRotation, UnderflowingDenominatorGivesZeroAndIsCounted) {
  // Query (0, 150), keys (150, 0), as logarithms: the rotated product is exp(300), the denominator exp(150).
  AttentionProblem p = rotated_problem(FeatureMap::exp, true, {1, 1, 1, 3, 2, 4, 1, 16});
  const double far = 150 * std::pow(2.0, 0.25);
  p.query = {0, far, 0, far, 0, 0};
  p.key = {far, 0, far, 0, 0, 0};
  for (const std::int64_t chunk : {16, 1}) {
    p.options.chunk_size = chunk;
    const Outcome found = run_attention(p, DType::float32);
    EXPECT_EQ(found.report.guarded, 1);
    EXPECT_LT(found.report.least, 1e-30);
    for (std::size_t f = 0; f < 4; ++f) {
      // Only its own key is visible. Its weight is not exactly 1, and tensor cores truncate the product with it.
      const double value = stored(p.value, DType::float32)[f];
      EXPECT_NEAR(found.output[f], value, on_gpu() ? 0x1p-22 * std::abs(value) : 0);
      EXPECT_EQ(found.output[4 + f], 0);
      EXPECT_NE(found.output[8 + f], 0);
    }
    for (std::size_t f = 0; f < 2; ++f) EXPECT_EQ(found.d_query[2 + f], 0);
    for (const auto* values : {&found.output, &found.d_query, &found.d_key, &found.d_value}) {
      for (double value : *values) EXPECT_TRUE(std::isfinite(value));
    }
  }
}

TEST_P(LinearAttentionRotation, RejectsSoftmaxWindowAndNonPositiveBase) {
  AttentionProblem p = rotated_problem(FeatureMap::elu1, true, {1, 1, 1, 8, 4, 4, 1, 4});
  p.options.softmax_window = 3;
  EXPECT_THROW(run_attention(p, DType::float32), ContractError);
  p.options.softmax_window = 0;
  p.options.rotary_base = 0;
  EXPECT_THROW(run_attention(p, DType::float32), ContractError);
}

}  // namespace
}  // namespace furlong::testing
