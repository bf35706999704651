// The kernels of linear attention on GPUs for the plain case: bfloat16, causal, no masks or documents, widths 64 and
// 128. Bounds are those of test_linear_attention_fused.cpp. On the CPU the same tests check its own kernels.
#include <array>

#include <gtest/gtest.h>

#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

using Plain = std::tuple<FeatureMap, std::int64_t>;  // map, width
constexpr double output_bound = 0x1p-7, gradient_bound = 0x1p-6;

class LinearAttentionPlain : public EngineTest {
 protected:
  void TearDown() override {
    gpu_settings() = {};
    EngineTest::TearDown();
  }
};
FURLONG_INSTANTIATE_ENGINES(LinearAttentionPlain);
class LinearAttentionPlainOnGpus : public LinearAttentionPlain {};  // the CPU has no other kernels for masked calls
FURLONG_INSTANTIATE_GPUS(LinearAttentionPlainOnGpus);

const std::vector<Plain>& plain_cases() {
  static const std::vector<Plain> cases{{FeatureMap::favor_positive, 64}, {FeatureMap::favor_positive, 128},
                                        {FeatureMap::elu1, 64},           {FeatureMap::elu1, 128},
                                        {FeatureMap::hedgehog, 64},       {FeatureMap::hedgehog, 128}};
  return cases;
}
/// `n` tokens of two query heads, which share one key head; 192 projections are three feature tiles.
AttentionProblem problem_of(const Plain& plain, std::int64_t n, double scale = 1, std::int64_t projections = 192,
                            std::int64_t kv_heads = 1) {
  const auto [map, width] = plain;
  AttentionProblem p = attention_problem(map, true, {1, 2, kv_heads, n, width, width, projections, 64}, scale);
  for (auto* values : {&p.query, &p.key, &p.value}) *values = stored(*values, DType::bfloat16);
  return p;
}
std::string name_of(const Plain& plain) {
  return fmt::format("{}, width {}", feature_map_info(std::get<0>(plain)).name, std::get<1>(plain));
}
/// `norm`: of queries and keys. With projections gradients of log features, which have the rounding of g·output, are
/// multiplied by ω and by keys (-|k'|²/2), so that the error grows with the norm. elu1 and hedgehog multiply them by at
/// most 1.
void expect_close(const AttentionProblem& p, const std::string& what, double norm = 0) {
  const Outcome found = run_attention(p, DType::bfloat16);
  const OnDevice cpu{Device{}};
  const Outcome expected = run_attention(p, DType::float64);
  const bool grows = feature_map_info(p.options.feature_map).needs_random_projection;
  const double of_inputs = gradient_bound * (grows ? std::max(1.0, norm / 40) : 1.0);
  EXPECT_LT(scaled_error(found.output, expected.output, 1e-3), output_bound) << what;
  EXPECT_LT(scaled_error(found.d_query, expected.d_query, 1e-3), of_inputs) << what;
  EXPECT_LT(scaled_error(found.d_key, expected.d_key, 1e-3), of_inputs) << what;
  EXPECT_LT(scaled_error(found.d_value, expected.d_value, 1e-3), gradient_bound) << what;
}

TEST_P(LinearAttentionPlain, MatchesFloat64Reference) {
  for (const Plain& plain : plain_cases()) {
    for (const std::int64_t segments : {1, 2}) {
      gpu_settings().segments = segments;
      expect_close(problem_of(plain, 200), fmt::format("{}, {} segments", name_of(plain), segments));
    }
  }
}

TEST_P(LinearAttentionPlainOnGpus, KernelsDifferFromThoseOfMaskedCalls) {
  // A mask of ones selects the general kernels. Their other order of roundings shows that the plain ones are launched.
  for (const Plain& plain : plain_cases()) {
    AttentionProblem p = problem_of(plain, 140);
    const Outcome found = run_attention(p, DType::bfloat16);
    p.mask.assign(static_cast<std::size_t>(p.batch * p.n_key), 1);
    const Outcome general = run_attention(p, DType::bfloat16);
    EXPECT_FALSE(found.output == general.output) << name_of(plain);
    if (std::get<1>(plain) != 64) continue;  // backward has plain kernels for width 64 only
    EXPECT_FALSE(found.d_query == general.d_query) << name_of(plain);
    EXPECT_FALSE(found.d_key == general.d_key) << name_of(plain);
    EXPECT_FALSE(found.d_value == general.d_value) << name_of(plain);
  }
}

TEST_P(LinearAttentionPlain, SupportsEveryNumberOfTiles) {
  for (const std::int64_t width : {64, 128}) {
    for (const std::int64_t projections : {64, 128, 320})
      expect_close(problem_of({FeatureMap::favor_positive, width}, 140, 1, projections),
                   fmt::format("width {}, {} projections", width, projections));
  }
}

/// Makes keys `factor` times the queries of the same token.
void set_keys(AttentionProblem& p, double factor) {
  p.options.n_kv_heads = p.options.n_heads, p.key = p.query;
  p.value = stored(normal_values(p.value_shape().elements(), 3), DType::bfloat16);
  for (double& x : p.key) x *= factor;
}

TEST_P(LinearAttentionPlain, AccurateForLargeNormsAndOppositeKeys) {
  for (const Plain& plain : plain_cases()) {
    const double to_norm = 1 / std::sqrt(static_cast<double>(std::get<1>(plain)));
    for (const double norm : {8.0, 40.0, 200.0}) {
      AttentionProblem p = problem_of(plain, 140, norm * to_norm);
      expect_close(p, fmt::format("{}, norm {}", name_of(plain), norm), norm);
      set_keys(p, -1);
      expect_close(p, fmt::format("{}, norm {}, k = -q", name_of(plain), norm), norm);
    }
  }
}

TEST_P(LinearAttentionPlain, AccurateAtEveryNorm) {
  // From a norm of about 60 on scales of rows and of the sum are further apart than float32 and bfloat16 reach.
  for (const FeatureMap map : {FeatureMap::favor_positive, FeatureMap::favor_hyperbolic}) {
    for (const double norm : {40.0, 60.0, 80.0, 120.0, 200.0}) {
      const std::int64_t projections = map == FeatureMap::favor_hyperbolic ? 64 : norm == 80 ? 256 : 128;
      AttentionProblem p = problem_of({map, 64}, 140, norm / 8, projections);
      const std::string what = fmt::format("{}, norm {}", feature_map_info(map).name, norm);
      expect_close(p, what, norm);
      set_keys(p, 1);
      expect_close(p, what + ", k = q", norm);
      gpu_settings().segments = 2;
      set_keys(p, -1);
      expect_close(p, what + ", k = -q, 2 segments", norm);
      gpu_settings() = {};
    }
  }
}

/// Keys have a norm of 200, queries of even tokens one of 1 and those of odd tokens one of 200, beyond the scales.
AttentionProblem mixed_problem(std::int64_t projections = 192, std::int64_t kv_heads = 1) {
  AttentionProblem p = problem_of({FeatureMap::favor_positive, 64}, 150, 1, projections, kv_heads);
  const auto set_norm = [](double* row, double norm) {
    double square = 0;
    for (int c = 0; c < 64; ++c) square += row[c] * row[c];
    for (int c = 0; c < 64; ++c) row[c] *= norm / std::sqrt(square);
  };
  for (std::int64_t i = 0; i < p.n; ++i) {
    for (std::int64_t h = 0; h < kv_heads; ++h)
      set_norm(&p.key[static_cast<std::size_t>((kv_heads * i + h) * 64)], 200);
    for (std::int64_t h = 0; h < 2; ++h)
      set_norm(&p.query[static_cast<std::size_t>((2 * i + h) * 64)], i % 2 ? 200 : 1);
  }
  for (auto* values : {&p.query, &p.key}) *values = stored(*values, DType::bfloat16);
  return p;
}

TEST_P(LinearAttentionPlainOnGpus, GeneralKernelsComputeRowsBeyondScales) {
  AttentionProblem p = mixed_problem();
  expect_close(p, "mixed", 200);
  const Outcome found = run_attention(p, DType::bfloat16);
  p.mask.assign(static_cast<std::size_t>(p.batch * p.n_key), 1);
  const Outcome general = run_attention(p, DType::bfloat16);
  std::array<int, 2> equal{};  // outputs of even and odd tokens
  for (std::int64_t i = 64 * 128; i < p.n * 128; ++i)
    equal[i / 128 % 2] += found.output[static_cast<std::size_t>(i)] == general.output[static_cast<std::size_t>(i)];
  EXPECT_GT(equal[1], 43 * 128 * 0.99);
  EXPECT_LT(equal[0], 43 * 128 * 0.9);
}

TEST_P(LinearAttentionPlain, GradientsOfRowsBeyondScalesAddUp) {
  // Two equal gradients add up to exactly twice one of them. With one or two feature tiles and a key head for each
  // query head the kernels add to the gradient, otherwise they write parts that are added up later.
  const auto gradients_of = [&](const AttentionProblem& p, int calls) {
    Tape tape{stream()};
    const ops::LinearAttentionInputs inputs = inputs_of(p, DType::bfloat16);
    std::vector<Variable> outputs;
    std::vector<Tensor> d_outputs;
    for (int call = 0; call < calls; ++call) {
      outputs.push_back(attend(tape, inputs, p.options));
      const Shape& shape = outputs.back().shape();
      d_outputs.push_back(tensor_of(normal_values(shape.elements(), 5), shape, DType::bfloat16));
    }
    tape.backward(outputs, d_outputs);
    std::vector<double> all;
    for (const Variable* input : {&inputs.query, &inputs.key, &inputs.value}) {
      for (const double x : values_of(input->gradient())) all.push_back(x / calls);
    }
    return all;
  };
  for (const auto& [projections, kv_heads] : {std::pair<std::int64_t, std::int64_t>{64, 2}, {128, 2}, {192, 1}}) {
    const AttentionProblem p = mixed_problem(projections, kv_heads);
    EXPECT_EQ(gradients_of(p, 2), gradients_of(p, 1)) << projections << " projections, " << kv_heads << " key heads";
  }
}

TEST_P(LinearAttentionPlain, RaisesScalesInLaterTiles) {
  // Features of later tiles are far above those of the first, for some rows: scales of queries, keys and the sum rise.
  for (const std::int64_t width : {64, 128}) {
    AttentionProblem p = problem_of({FeatureMap::favor_positive, width}, 200, 2);
    for (std::int64_t i = 64 * width; i < 192 * width; ++i)
      p.random_projection[static_cast<std::size_t>(i)] *= i < 128 * width ? 4 : 6;
    p.random_projection = stored(p.random_projection, DType::bfloat16);
    for (std::int64_t i = 0; i < 30 * width; ++i) p.key[static_cast<std::size_t>(i)] *= 0.25;
    expect_close(p, fmt::format("width {}", width));
  }
}

TEST_P(LinearAttentionPlain, RaisesScalesOfSegmentsInLaterChunks) {
  // A segment's sum over keys begins with its first chunk, that over queries with its last, here a single query. Where
  // these have norms of 32, many of their features are far below those of the other chunk.
  gpu_settings().segments = 2;
  for (const std::int64_t width : {64, 128}) {
    AttentionProblem p =
        problem_of({FeatureMap::favor_positive, width}, 193, std::sqrt(64.0 / static_cast<double>(width)), 128);
    for (std::int64_t i = 0; i < p.n; ++i) {
      std::vector<double>& rows = i / 64 % 2 == 0 ? p.key : p.query;
      const std::int64_t entries = (i / 64 % 2 == 0 ? 1 : 2) * width;
      for (std::int64_t c = i * entries; c < (i + 1) * entries; ++c)
        rows[static_cast<std::size_t>(c)] *= 4;  // exact in bfloat16
    }
    expect_close(p, fmt::format("width {}", width), width == 64 ? 32 : 64);  // ω grows with the width, too
  }
}

TEST_P(LinearAttentionPlain, RaisesScalesOfSegmentsWithFeaturesOfEntries) {
  // As above. In the first chunk of a sum half of the entries are near -100: under the scales of their features,
  // 2^-144, those of later chunks would overflow.
  gpu_settings().segments = 2;
  for (const Plain& plain : plain_cases()) {
    const auto [map, width] = plain;
    if (feature_map_info(map).needs_random_projection) continue;
    AttentionProblem p = problem_of(plain, 193);
    for (std::int64_t i = 0; i < p.n; ++i) {
      std::vector<double>& rows = i / 64 % 2 == 0 ? p.key : p.query;
      const std::int64_t heads = i / 64 % 2 == 0 ? 1 : 2;
      for (std::int64_t row = i * heads; row < (i + 1) * heads; ++row) {
        for (std::int64_t c = 0; c < width / 2; ++c) rows[static_cast<std::size_t>(row * width + c)] -= 100;
      }
    }
    for (auto* values : {&p.query, &p.key}) *values = stored(*values, DType::bfloat16);
    expect_close(p, name_of(plain));
  }
}

TEST_P(LinearAttentionPlain, AddsUpManySegments) {
  for (const Plain& plain : {Plain{FeatureMap::favor_positive, 64}, Plain{FeatureMap::elu1, 128}}) {
    gpu_settings().segments = 18;  // more than twice as many as are read ahead
    expect_close(problem_of(plain, 18 * 64 - 30, 1, 64), name_of(plain));
  }
}

TEST_P(LinearAttentionPlain, LaterTokensChangeNoEarlierBit) {
  // Map and width, size of the entries of queries and of keys, segments.
  std::vector<std::tuple<Plain, double, double, std::int64_t>> cases;
  for (const Plain& plain : plain_cases()) cases.emplace_back(plain, 1, 1, 1);
  // Keys of 25: rows beyond the scales are all, or those whose small queries are multiplied.
  for (const std::int64_t width : {64, 128}) {
    for (const double queries : {25.0, 0.125}) {
      for (const std::int64_t segments : {1, 3})
        cases.emplace_back(Plain{FeatureMap::favor_positive, width}, queries, 25, segments);
    }
  }
  for (const auto& [plain, queries, scale, segments] : cases) {
    SCOPED_TRACE(fmt::format("{}, queries {}, keys {}, {} segments", name_of(plain), queries, scale, segments));
    gpu_settings().segments = segments;
    const std::int64_t width = std::get<1>(plain);
    AttentionProblem p = problem_of(plain, 150, scale);
    p.options.n_heads = 1;
    p.query.resize(static_cast<std::size_t>(150 * width));
    for (double& x : p.query) x *= queries / scale;
    const AttentionProblem before = p;
    const std::vector<double> expected = output_of(p, DType::bfloat16);
    // Rows of the first chunk are never beyond the scales. The simulator takes a second for some outputs.
    std::vector<std::int64_t> cuts{20, 64, 100};
    if (scale > 1) cuts = width == 64 && segments == 1 ? std::vector<std::int64_t>{64, 100} : std::vector{cuts.back()};
    for (const std::int64_t from : cuts) {
      for (const double factor : {-40.0, HUGE_VAL, std::nan("")}) {
        p = before;
        for (std::int64_t i = from * width; i < p.n * width; ++i) {
          for (auto* values : {&p.query, &p.key, &p.value}) (*values)[static_cast<std::size_t>(i)] *= factor;
        }
        const std::vector<double> found = output_of(p, DType::bfloat16);
        for (std::int64_t i = 0; i < p.n * width; ++i) {
          const auto at = static_cast<std::size_t>(i);
          if (i < from * width) {
            ASSERT_EQ(found[at], expected[at]) << "token " << i / width << " of " << from << ", " << factor;
          } else if (std::isnan(factor)) {
            ASSERT_TRUE(std::isnan(found[at])) << "token " << i / width;
          }
        }
      }
    }
  }
}

TEST_P(LinearAttentionPlain, NonFiniteValuesAffectOnlyLaterRows) {
  AttentionProblem p = problem_of({FeatureMap::favor_positive, 64}, 150);
  const std::vector<double> expected = run_attention(p, DType::bfloat16).output;
  p.value[50 * 64 + 3] = HUGE_VAL;
  const std::vector<double> found = run_attention(p, DType::bfloat16).output;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (i / 128 >= 50 && i % 64 == 3) {
      ASSERT_FALSE(std::isfinite(found[i])) << i / 128;
    } else {
      ASSERT_EQ(found[i], expected[i]) << i / 128 << " " << i % 64;
    }
  }
}

TEST_P(LinearAttentionPlain, StateContinuesSequence) {
  for (const Plain& plain : plain_cases()) {
    const std::int64_t width = std::get<1>(plain);
    const AttentionProblem p = problem_of(plain, 170);
    ops::LinearAttentionState state =
        ops::empty_linear_attention_state(p.options, 1, p.features(), width, DType::bfloat16, device());
    std::vector<double> found;
    for (const auto& [start, count] : {std::pair<std::int64_t, std::int64_t>{0, 70}, {70, 100}}) {
      const auto rows = [&](const std::vector<double>& values, std::int64_t columns) {
        return Variable(tensor_of({values.begin() + start * columns, values.begin() + (start + count) * columns},
                                  {1, count, columns}, DType::bfloat16));
      };
      ops::LinearAttentionInputs inputs;
      inputs.query = rows(p.query, 2 * width), inputs.key = rows(p.key, width), inputs.value = rows(p.value, width);
      inputs.constants = constants_of(p, DType::bfloat16);
      inputs.state = &state;
      Tape tape{stream()};
      const std::vector<double> part = values_of(attend(tape, inputs, p.options).value());
      found.insert(found.end(), part.begin(), part.end());
    }
    const OnDevice cpu{Device{}};
    EXPECT_LT(relative_error(found, run_attention(p, DType::float64).output), output_bound) << name_of(plain);
    if (state.maximum.device().is_cpu()) continue;
    for (const double maximum : values_of(state.maximum)) {  // the plain kernel's scales are powers of two
      const double scale = maximum / std::log(2.0);
      ASSERT_NEAR(scale, std::round(scale), 1e-4) << name_of(plain);
    }
  }
}

}  // namespace
}  // namespace furlong::testing
