// Large norms, long sequences, opposite and huge keys, flush-to-zero, zero denominators.
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

/// Parameters: device, map, causal.
class EveryPositiveMap : public ComposedKernelCase<FeatureMap, bool> {
 protected:
  FeatureMap map() const { return std::get<1>(GetParam()); }
  bool causal() const { return std::get<2>(GetParam()); }
};
std::vector<FeatureMap> positive_maps() {
  std::vector<FeatureMap> maps;
  for (const FeatureMap map : every_feature_map()) {
    AttentionProblem p;
    p.options.feature_map = map;
    if (is_positive(p)) maps.push_back(map);
  }
  return maps;
}
std::string name_of_map(const ::testing::TestParamInfo<std::tuple<DeviceType, FeatureMap, bool>>& info) {
  return name_of_engine(std::get<0>(info.param)) + "_" + feature_map_info(std::get<1>(info.param)).name +
         (std::get<2>(info.param) ? "_causal" : "_bidirectional");
}
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryPositiveMap,
                         ::testing::Combine(::testing::ValuesIn(available({DeviceType::cpu, DeviceType::cuda})),
                                            ::testing::ValuesIn(positive_maps()), ::testing::Bool()),
                         name_of_map);
// The simulator tests one map of each kind: random projections, element-wise, whole rows, and values.
INSTANTIATE_TEST_SUITE_P(LinearAttentionSimulated, EveryPositiveMap,
                         ::testing::Combine(::testing::ValuesIn(available({DeviceType::simulated})),
                                            ::testing::Values(FeatureMap::favor_positive, FeatureMap::elu1,
                                                              FeatureMap::hedgehog, FeatureMap::favor_relu),
                                            ::testing::Bool()),
                         name_of_map);

/// Returns a shape with a length and widths that the simulator can run in reasonable time.
ProblemShape reduced(ProblemShape shape) {
  if (on_simulator())
    shape.n = 70, shape.d_value = 8, shape.random_projection = std::min<std::int64_t>(shape.random_projection, 32);
  return shape;
}

/// Flushes subnormal results and inputs to zero on this thread during its lifetime.
class FlushToZero {
 public:
  FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushToZero() { _mm_setcsr(before_); }
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;

 private:
  unsigned before_;
};

/// Rounds the inputs to float32, so that the float64 run gets the same values.
void rounded_inputs(AttentionProblem& p) {
  for (auto* values : {&p.query, &p.key, &p.value, &p.gate}) *values = stored(*values, DType::float32);
}
void make_hybrid(AttentionProblem& p, std::int64_t softmax_window) {
  p.options.softmax_window = softmax_window;
  p.gate = normal_values(p.heads(), 24, 0.5);
  p.n_key = p.n;
  p.key.resize(static_cast<std::size_t>(p.key_shape().elements()));
  p.value.resize(static_cast<std::size_t>(p.value_shape().elements()));
}
void expect_close(const AttentionProblem& p, double bound, const std::string& what) {
  const Outcome expected = run_on_cpu(p, DType::float64);
  const auto compare = [&](const Outcome& found, const char* how) {
    EXPECT_LT(scaled_error(found.output, expected.output), bound) << what << how;
    EXPECT_LT(scaled_error(found.d_query, expected.d_query), bound) << what << how;
    EXPECT_LT(scaled_error(found.d_key, expected.d_key), bound) << what << how;
    EXPECT_LT(scaled_error(found.d_value, expected.d_value), bound) << what << how;
    // A sum over all rows, whose terms of size 1 cancel where the window has all the weight.
    EXPECT_LT(scaled_error(found.d_gate, expected.d_gate, 1), bound) << what << how;
  };
  compare(run_attention(p, DType::float32), "");
  if (on_gpu()) return;
  const WithThreads one(1);
  const FlushToZero flush;
  compare(run_attention(p, DType::float32), ", flush to zero");
}

TEST_P(EveryPositiveMap, Float32MatchesFloat64ForNormsUpToForty) {
  for (const double norm : {8.0, 40.0}) {
    // The norm of a Gaussian row of d = 64 entries with standard deviation s is about 8 s.
    AttentionProblem p = attention_problem(map(), causal(), reduced({1, 1, 1, 200, 64, 32, 128, 64}), norm / 8);
    rounded_inputs(p);
    expect_close(p, 1e-4, fmt::format("norm {}", norm));
  }
}

TEST_P(EveryPositiveMap, AccurateForOppositeKeysAndHugeKey) {
  for (const double scale : {1.0, 5.0}) {
    AttentionProblem p = attention_problem(map(), causal(), reduced({1, 1, 1, 150, 64, 16, 128, 64}), scale);
    rounded_inputs(p);
    p.key.resize(p.query.size());
    p.value.resize(static_cast<std::size_t>(p.n * p.d_value));
    p.n_key = p.n;
    for (std::size_t i = 0; i < p.query.size(); ++i) p.key[i] = -p.query[i];
    expect_close(p, 1e-4, fmt::format("k = -q, scale {}", scale));
    for (std::int64_t f = 0; f < 64; ++f) p.key[static_cast<std::size_t>(40 * 64 + f)] *= 1000;
    rounded_inputs(p);
    const Outcome expected = run_on_cpu(p, DType::float64), found = run_attention(p, DType::float32);
    EXPECT_LT(scaled_error(found.output, expected.output), 1e-4) << scale;
    EXPECT_LT(scaled_error(found.d_query, expected.d_query, 0.3), 1e-4) << scale;
    EXPECT_LT(scaled_error(found.d_value, expected.d_value), 1e-4) << scale;
    // The huge key's own gradient is as large as its entries. The others are small in comparison and are compared
    // separately.
    EXPECT_LT(scaled_error(found.d_key, expected.d_key, 0.3), 1e-4) << scale;
  }
}

TEST_P(EveryPositiveMap, HybridMatchesFloat64ForNormsUpToForty) {
  for (const double norm : {8.0, 40.0}) {
    AttentionProblem p = attention_problem(map(), causal(), reduced({1, 1, 1, 200, 64, 32, 128, 64}), norm / 8);
    make_hybrid(p, 20);
    rounded_inputs(p);
    expect_close(p, 1e-4, fmt::format("norm {}", norm));
  }
}

TEST_P(EveryPositiveMap, AccurateFor65536Tokens) {  // a few hundred on the simulator
  AttentionProblem p =
      attention_problem(map(), causal(), {1, 1, 1, on_simulator() ? 300 : 65536, 8, 8, 16, 64}, 40 / std::sqrt(8.0));
  rounded_inputs(p);
  const Outcome expected = run_on_cpu(p, DType::float64), found = run_attention(p, DType::float32);
  EXPECT_LT(relative_error(found.output, expected.output), 1e-4);
  EXPECT_LT(relative_error(found.d_query, expected.d_query), 1e-4);
  EXPECT_LT(relative_error(found.d_key, expected.d_key), 1e-4);
  EXPECT_LT(relative_error(found.d_value, expected.d_value), 1e-4);
}

class LongSums : public ComposedKernelTest {};
FURLONG_INSTANTIATE_ENGINES(LongSums);
class RootMeanSquare : public ComposedKernelTest {};
FURLONG_INSTANTIATE_ENGINES(RootMeanSquare);
class LinearAttentionDenominators : public ComposedKernelTest {};
FURLONG_INSTANTIATE_ENGINES(LinearAttentionDenominators);
class LinearAttention : public ComposedKernelTest {};
FURLONG_INSTANTIATE_ENGINES(LinearAttention);

TEST_P(LongSums, NearlyEqualWeightsKeepPrecision) {
  // The mean of 65,536 values with mean zero: each output is 256 times smaller than its terms, and has the rounding
  // error of the whole sum.
  for (const FeatureMap map :
       {FeatureMap::favor_relu, FeatureMap::hedgehog, FeatureMap::relu, FeatureMap::favor_positive}) {
    for (const std::int64_t softmax_window : {0, 32}) {  // one sum, and two sums that are joined
      SCOPED_TRACE(fmt::format("{}, softmax_window {}", feature_map_info(map).name, softmax_window));
      AttentionProblem p =
          attention_problem(map, false, {1, 1, 1, on_simulator() ? 300 : 65536, 16, 8, 32, 64}, 2 / std::sqrt(16.0));
      if (softmax_window > 0) make_hybrid(p, softmax_window);
      rounded_inputs(p);
      const Outcome expected = run_on_cpu(p, DType::float64), found = run_attention(p, DType::float32);
      EXPECT_LT(relative_error(found.output, expected.output), 1e-4);
      EXPECT_LT(relative_error(found.d_query, expected.d_query), 1e-4);
      EXPECT_LT(relative_error(found.d_key, expected.d_key), 1e-4);
      EXPECT_LT(relative_error(found.d_value, expected.d_value), 1e-4);
    }
  }
}

TEST_P(RootMeanSquare, HandlesValuesOfAnyMagnitude) {
  for (const double magnitude : {1e-30, 1e20, 1e30}) {
    AttentionProblem p = attention_problem(FeatureMap::elu1, true, {1, 1, 1, 20, 8, 8, 1, 16});
    p.options.normalizer = ops::Normalizer::rms;
    for (double& value : p.value) value *= magnitude;
    EXPECT_LT(relative_error(run_attention(p, DType::float32).output, definition_of(p, DType::float32)), 6e-6)
        << magnitude;
  }
}

TEST_P(LinearAttentionDenominators, SubnormalDenominatorIsGuarded) {
  AttentionProblem p = attention_problem(FeatureMap::relu, true, {1, 1, 1, 20, 8, 4, 1, 16}, 1e-20);
  const Outcome found = run_attention(p, DType::float32);
  for (double value : found.output) EXPECT_EQ(value, 0);
  for (double value : found.d_query) EXPECT_EQ(value, 0);
  EXPECT_EQ(found.report.guarded, 20);
}

// Weights of pairs near 1e35, beyond what rounding by splitting can hold.
TEST(LinearAttentionOnCpu, HugeFeaturesGiveFiniteOutputs) {
  const AttentionProblem p = attention_problem(FeatureMap::relu, true, {1, 1, 1, 40, 8, 4, 1, 16}, 1e17);
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const double value : run_attention(p, dtype).output) EXPECT_TRUE(std::isfinite(value)) << name_of(dtype);
}

TEST_P(LinearAttentionDenominators, ZeroDenominatorGivesZeroOutputAndGradient) {
  AttentionProblem p = attention_problem(FeatureMap::relu, true, {1, 1, 1, 20, 8, 4, 1, 16});
  for (std::int64_t f = 0; f < 8; ++f) p.query[static_cast<std::size_t>(5 * 8 + f)] = -1;
  const Outcome found = run_attention(p, DType::float32);
  for (std::size_t f = 0; f < 4; ++f) EXPECT_EQ(found.output[5 * 4 + f], 0);
  for (std::size_t f = 0; f < 8; ++f) EXPECT_EQ(found.d_query[5 * 8 + f], 0);
  EXPECT_GE(found.report.guarded, 1);
  for (double value : found.d_key) EXPECT_TRUE(std::isfinite(value));
  p.mask.assign(20, 0);  // no key is visible to any query
  const Outcome blind = run_attention(p, DType::float32);
  for (const auto* values : {&blind.output, &blind.d_query, &blind.d_key, &blind.d_value}) {
    for (double value : *values) EXPECT_EQ(value, 0);
  }
  EXPECT_EQ(blind.report.guarded, 20);
  make_hybrid(p, 3);
  for (const bool causal : {true, false}) {
    p.options.causal = causal;
    const Outcome hybrid = run_attention(p, DType::float32);
    for (const auto* values : {&hybrid.output, &hybrid.d_query, &hybrid.d_key, &hybrid.d_value, &hybrid.d_gate}) {
      for (double value : *values) EXPECT_EQ(value, 0);
    }
    EXPECT_EQ(hybrid.report.guarded, 20);
  }
}

TEST_P(LinearAttentionDenominators, BidirectionalHybridGuardsSumOfBothSweeps) {
  // taylor of order 1 at d = 1: w = 1 + q k. Earlier keys weigh nothing compared with magnitudes of 2, and the own key
  // weighs e^-40. The last key weighs 1, so the sum is lost only for the last query, which has no later key.
  AttentionProblem p = attention_problem(FeatureMap::taylor, false, {1, 1, 1, 5, 1, 2, 1, 16});
  p.options.map_options.order = 1;
  make_hybrid(p, 1);
  p.gate = {-40};
  p.query = {1, 1, 1, 1, 1};
  p.key = {-1, -1, -1, -1, 0};
  for (const std::int64_t chunk : {16, 2, 1}) {
    p.options.chunk_size = chunk;
    const Outcome found = run_attention(p, DType::float32);
    EXPECT_EQ(found.report.rows, 5);
    EXPECT_EQ(found.report.guarded, 1);
    EXPECT_NEAR(found.report.least / (std::exp(-40) / 8), 1, 1e-5);
    for (std::size_t i = 0; i < 5; ++i) {
      for (std::size_t f = 0; f < 2; ++f)
        EXPECT_NEAR(found.output[2 * i + f], i < 4 ? p.value[8 + f] : 0, 1e-6) << i << ", chunk " << chunk;
    }
  }
}

TEST_P(LinearAttentionDenominators, RoundingNoiseIsGuardedCountedAndReported) {
  // cosine: a key opposite to the query weighs 1 - 1 = 0; only rounding noise remains.
  AttentionProblem p = attention_problem(FeatureMap::cosine, true, {1, 1, 1, 12, 16, 4, 1, 16});
  p.key = p.query;
  for (double& value : p.key) value = -value;
  const Outcome found = run_attention(p, DType::float32);
  EXPECT_EQ(found.report.rows, 12);
  EXPECT_EQ(found.report.guarded, 1);  // only its own, opposite key is visible to the first token
  EXPECT_LT(found.report.least, 0x1p-20);
  for (std::size_t f = 0; f < 4; ++f) EXPECT_EQ(found.output[f], 0);
  // A positive map reports nothing.
  const Outcome positive =
      run_attention(attention_problem(FeatureMap::elu1, true, {1, 1, 1, 12, 16, 4, 1, 16}), DType::float32);
  EXPECT_EQ(positive.report.guarded, 0);
  EXPECT_EQ(positive.report.least, 1);
}

TEST_P(LinearAttentionDenominators, GuardThresholdSelectsRows) {
  // taylor of order 1 at d = 1: w = 1 + q k. Keys close to -1 give exactly the denominators 2^-22 and 2^-22 + 3·2^-22,
  // with a magnitude of 2 per key: the ratios are 2^-23 and 2^-22. The third query is zero, and its three weights
  // are 1.
  const double unit = 0x1p-22;
  AttentionProblem p = attention_problem(FeatureMap::taylor, true, {1, 1, 1, 3, 1, 2, 1, 16});
  p.options.map_options.order = 1;
  p.query = {1, 1, 0};
  p.key = {-1 + unit, -1 + 3 * unit, 0.5};
  // Powers of two, so that products with keys are exact in the state too, where their sums cancel.
  const std::vector<double> value = p.value = {1, -2, 0.5, 4, -1, 1};
  const struct {
    double guard;
    std::int64_t guarded;
  } cases[] = {{p.options.denominator_guard, 2}, {1.5 * 0x1p-23, 1}, {0, 0}};
  for (const std::int64_t chunk : {16, 1}) {  // pairs within one chunk, and keys in the state
    p.options.chunk_size = chunk;
    for (const auto& [guard, guarded] : cases) {
      p.options.denominator_guard = guard;
      const Outcome found = run_attention(p, DType::float32);
      EXPECT_EQ(found.report.guarded, guarded) << guard << ", chunk " << chunk;
      EXPECT_NEAR(found.report.least / 0x1p-23, 1, 1e-5);
      for (std::size_t f = 0; f < 2; ++f) {
        EXPECT_NEAR(found.output[f], guarded > 0 ? 0 : value[f], guarded > 0 ? 0 : 1e-6) << guard;
        EXPECT_NEAR(found.output[2 + f], guarded > 1 ? 0 : (value[f] + 3 * value[2 + f]) / 4, guarded > 1 ? 0 : 1e-6)
            << guard;
        EXPECT_NEAR(found.output[4 + f], (value[f] + value[2 + f] + value[4 + f]) / 3, 1e-6) << guard;
      }
      // d w_j / dq = k_j, so the gradient of the second row has a size of about 1 / 2^-20.
      EXPECT_EQ(found.d_query[1] == 0, guarded > 1) << guard;
      for (const auto* values : {&found.d_query, &found.d_key, &found.d_value}) {
        for (double each : *values) EXPECT_TRUE(std::isfinite(each)) << guard;
      }
    }
  }
}

TEST_P(LinearAttention, StateIsFloat32WithBfloat16Inputs) {
  AttentionProblem p =
      attention_problem(FeatureMap::favor_positive, true, {1, 1, 1, on_simulator() ? 300 : 3000, 16, 16, 32, 64});
  // A sum of 3000 terms with 8 bits would stop growing at 256.
  const auto found = run_attention(p, DType::bfloat16).output;
  EXPECT_LT(relative_error(found, definition_of(p, DType::bfloat16)),
            rounds_operands(p, DType::bfloat16) ? 0x1p-7 : 0x1p-8 * 1.05);
  EXPECT_EQ(ops::empty_linear_attention_state(p.options, 1, 32, 16, DType::bfloat16, device()).sum.dtype(),
            DType::float32);
}

}  // namespace
}  // namespace furlong::testing
