// The fused kernels of linear attention on GPUs, against float64 on the CPU, which test_linear_attention.cpp compares
// with the definition. On the CPU the same tests check its own kernels, with the same bounds.
//
// Bounds. float32: 1e-4 of the largest value; operands have two bfloat16 parts, an error of 2^-17 per product.
// bfloat16: the query features, the key features and the pair's weight are rounded by at most 2^-9 each, equally in
// numerator and denominator, and the output is rounded once: 4 · 2^-9 = 2^-7 of the largest value. Gradients have two
// more roundings: of the gradient that is multiplied with features and projections, and of the output in δ = g ·
// output: 2^-6.
#include <gtest/gtest.h>

#include "framework/ops/elementwise/column_ranges.h"
#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

class LinearAttentionFused : public EngineTest {
 protected:
  void TearDown() override {
    gpu_settings() = {};
    EngineTest::TearDown();
  }
};
FURLONG_INSTANTIATE_ENGINES(LinearAttentionFused);
class LinearAttentionFusedOnGpu : public LinearAttentionFused {};
FURLONG_INSTANTIATE_GPUS(LinearAttentionFusedOnGpu);

std::vector<FeatureMap> fused_maps() {
  std::vector<FeatureMap> maps;
  for (const auto& info : ops::feature_maps()) {
    if (info.fused != ops::FusedForm::none) maps.push_back(info.map);
  }
  return maps;
}

/// Rounds the inputs to `dtype`, so that the reference gets the same values.
void store_as(AttentionProblem& p, DType dtype) {
  for (auto* values : {&p.query, &p.key, &p.value}) *values = stored(*values, dtype);
}
AttentionProblem problem_of(FeatureMap map, bool causal, const ProblemShape& shape, DType dtype, double scale = 1) {
  AttentionProblem p = attention_problem(map, causal, shape, scale);
  store_as(p, dtype);
  return p;
}
/// Three chunks, the last one partial; 72 projections are two feature tiles, the last one partial.
constexpr ProblemShape usual{1, 2, 1, 130, 16, 32, 72, 64};

Outcome reference_of(const AttentionProblem& p) {
  const OnDevice cpu{Device{}};
  return run_attention(p, DType::float64);
}
struct Bounds {
  double output, gradient;
};
Bounds bounds_of(DType dtype) { return dtype == DType::bfloat16 ? Bounds{0x1p-7, 0x1p-6} : Bounds{1e-4, 1e-4}; }
void expect_close(const Outcome& found, const Outcome& expected, const Bounds& bounds, const std::string& what,
                  double least = 1e-3) {
  EXPECT_LT(scaled_error(found.output, expected.output, least), bounds.output) << what;
  EXPECT_LT(scaled_error(found.d_query, expected.d_query, least), bounds.gradient) << what;
  EXPECT_LT(scaled_error(found.d_key, expected.d_key, least), bounds.gradient) << what;
  EXPECT_LT(scaled_error(found.d_value, expected.d_value, least), bounds.gradient) << what;
}
void expect_close(const AttentionProblem& p, DType dtype, const std::string& what) {
  expect_close(run_attention(p, dtype), reference_of(p), bounds_of(dtype), fmt::format("{} {}", what, name_of(dtype)));
}

TEST_P(LinearAttentionFused, MatchesFloat64Reference) {
  for (const FeatureMap map : fused_maps()) {
    for (const bool causal : {true, false}) {
      for (const DType dtype : {DType::float32, DType::bfloat16})
        expect_close(problem_of(map, causal, usual, dtype), dtype, feature_map_info(map).name);
    }
  }
}

TEST_P(LinearAttentionFusedOnGpu, IsPreferredToComposedKernels) {
  const AttentionProblem p = problem_of(FeatureMap::favor_positive, true, usual, DType::bfloat16);
  const Outcome fused = run_attention(p, DType::bfloat16);
  gpu_settings().composed_kernels = true;
  const Outcome general = run_attention(p, DType::bfloat16);
  EXPECT_NE(fused.output, general.output);  // the composed kernels do not round operands to bfloat16
  expect_close(fused, general, bounds_of(DType::bfloat16), "compared with the composed kernels");
}

TEST_P(LinearAttentionFused, SupportsEveryWidth) {
  const ProblemShape shapes[] = {{2, 1, 1, 1, 16, 16, 16, 64},   {1, 1, 1, 64, 48, 16, 64, 64},
                                 {1, 1, 1, 65, 80, 96, 33, 64},  {1, 1, 1, 70, 128, 128, 65, 64},
                                 {1, 1, 1, 66, 64, 64, 256, 64}, {1, 1, 1, 66, 32, 48, 400, 64}};
  for (const ProblemShape& shape : shapes) {
    for (const FeatureMap map : {FeatureMap::favor_positive, FeatureMap::hedgehog, FeatureMap::elu1}) {
      if (!feature_map_info(map).needs_random_projection && shape.random_projection > 100) continue;
      for (const bool causal : {true, false}) {
        const DType dtype = shape.n == 66 || causal ? DType::bfloat16 : DType::float32;
        expect_close(problem_of(map, causal, shape, dtype), dtype,
                     fmt::format("{}, n {}, d {}, d_value {}, {} directions, causal {}", feature_map_info(map).name,
                                 shape.n, shape.d, shape.d_value, shape.random_projection, causal));
      }
    }
  }
}

TEST_P(LinearAttentionFused, HandlesMasksAndDocuments) {
  for (const FeatureMap map : {FeatureMap::favor_positive, FeatureMap::relu, FeatureMap::hedgehog}) {
    for (const bool causal : {true, false}) {
      for (const DType dtype : {DType::float32, DType::bfloat16}) {
        if (map != FeatureMap::favor_positive && (dtype == DType::float32 || !causal)) continue;
        AttentionProblem p = problem_of(map, causal, {2, 1, 1, 200, 16, 16, 32, 64}, dtype);
        for (std::int64_t i = 0; i < p.batch * p.n_key; ++i)
          p.mask.push_back(i % 3 != 0 && (i % p.n_key < 20 || i % p.n_key > 90));
        const AttentionProblem masked = p;
        expect_close(masked, dtype, "masked");
        if (!causal) continue;
        // Borders inside chunks, at a chunk's edge, several in one chunk; document numbers repeat.
        const int borders[] = {0, 10, 64, 70, 75, 90, 191};
        for (std::int64_t i = 0; i < p.batch * p.n_key; ++i) {
          int document = 0;
          for (const int border : borders) document += i % p.n_key >= border ? 1 : 0;
          p.documents.push_back(document % 3);
        }
        expect_close(p, dtype, "documents and mask");
        p.mask.clear();
        for (const std::int64_t segments : {1, 2, 4}) {
          gpu_settings().segments = segments;
          expect_close(p, dtype, fmt::format("documents, {} segments", segments));
        }
        gpu_settings().segments = 0;
      }
    }
  }
}

TEST_P(LinearAttentionFused, HandlesCenteringAndScaling) {
  for (const FeatureMap map : {FeatureMap::favor_positive, FeatureMap::oprf}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      AttentionProblem p = problem_of(map, true, {1, 2, 2, 100, 16, 16, 48, 64}, dtype);
      p.query_center = stored(normal_values(p.heads() * p.d, 21, 0.3), DType::float32);
      p.key_center = stored(normal_values(p.heads() * p.d, 22, 0.3), DType::float32);
      expect_close(p, dtype, "centered");
      for (const double x : normal_values(p.heads() * p.d, 23, 0.3)) p.scaling.push_back(std::exp(x));
      p.scaling = stored(p.scaling, DType::float32);
      for (std::int64_t i = 0; i < p.n_key; ++i) p.mask.push_back(i % 7 != 0);
      expect_close(p, dtype, "centered, scaled, masked");
    }
  }
}

TEST_P(LinearAttentionFused, HandlesPerHeadProjections) {
  AttentionProblem p = problem_of(FeatureMap::favor_positive, true, {1, 2, 1, 80, 16, 16, 32, 64}, DType::bfloat16);
  const auto run = [&](DType dtype) {
    std::vector<double> random_projection = p.random_projection;
    for (const double w : p.random_projection) random_projection.push_back(-0.5 * w);
    Tape tape{stream()};
    ops::LinearAttentionInputs inputs = inputs_of(p, dtype);
    inputs.constants.random_projection = constant_of(random_projection, {2, 32, 16}, dtype);
    return outcome_of(tape, inputs, attend(tape, inputs, p.options));
  };
  Outcome expected;
  {
    const OnDevice cpu{Device{}};
    expected = run(DType::float64);
  }
  expect_close(run(DType::bfloat16), expected, bounds_of(DType::bfloat16), "");
}

TEST_P(LinearAttentionFused, SegmentsChangeOnlyRoundingAndRunsAreDeterministic) {
  for (const FeatureMap map : {FeatureMap::favor_positive, FeatureMap::elu1}) {
    for (const bool causal : {true, false}) {
      for (const DType dtype : {DType::float32, DType::bfloat16}) {
        const AttentionProblem p = problem_of(map, causal, {1, 1, 1, 260, 16, 16, 32, 64}, dtype, 3);
        const Outcome expected = reference_of(p);
        for (const std::int64_t segments : {1, 2, 5}) {
          gpu_settings().segments = segments;
          const Outcome found = run_attention(p, dtype), again = run_attention(p, dtype);
          expect_close(found, expected, bounds_of(dtype), fmt::format("{} segments, causal {}", segments, causal));
          EXPECT_EQ(found.output, again.output);
          EXPECT_EQ(found.d_query, again.d_query);
          EXPECT_EQ(found.d_key, again.d_key);
          EXPECT_EQ(found.d_value, again.d_value);
        }
        gpu_settings().segments = 0;
      }
    }
  }
}

TEST_P(LinearAttentionFused, AddsUpManySegments) {
  // More than a scan reads ahead, with documents that end within segments and at their borders, and not causal.
  for (const bool causal : {true, false}) {
    AttentionProblem p = problem_of(FeatureMap::elu1, causal, {1, 1, 1, 690, 16, 16, 16, 64}, DType::bfloat16);
    for (std::int64_t i = 0; causal && i < p.n; ++i)
      p.documents.push_back(i < 64 ? 1 : i < 300 ? 2 : i < 310 ? 3 : i < 640 ? 4 : 5);
    gpu_settings().segments = 11;
    expect_close(run_attention(p, DType::bfloat16), reference_of(p), bounds_of(DType::bfloat16),
                 causal ? "documents" : "not causal");
  }
}

TEST_P(LinearAttentionFused, LaterTokensChangeNoEarlierBit) {
  for (const FeatureMap map : {FeatureMap::favor_positive, FeatureMap::elu1, FeatureMap::relu}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (const std::int64_t segments : {1, 3}) {
        gpu_settings().segments = segments;
        AttentionProblem p = problem_of(map, true, {1, 1, 1, 150, 16, 16, 32, 64}, dtype);
        const std::vector<double> before = output_of(p, dtype), query = p.query, key = p.key, value = p.value;
        for (const std::int64_t from : {20, 64, 100}) {
          for (const double factor : {-40.0, HUGE_VAL, std::nan("")}) {
            p.query = query, p.key = key, p.value = value;
            for (std::int64_t i = from * 16; i < p.n * 16; ++i) {
              const auto at = static_cast<std::size_t>(i);
              p.query[at] *= factor, p.key[at] *= factor, p.value[at] *= factor;
            }
            const std::vector<double> after = output_of(p, dtype);
            for (std::int64_t i = 0; i < from * 16; ++i)
              ASSERT_EQ(before[static_cast<std::size_t>(i)], after[static_cast<std::size_t>(i)])
                  << feature_map_info(map).name << " " << name_of(dtype) << ", token " << i / 16 << ", changed from "
                  << from << " by " << factor;
            if (std::isnan(factor)) {
              for (std::int64_t i = from * 16; i < p.n * 16; ++i)
                EXPECT_TRUE(std::isnan(after[static_cast<std::size_t>(i)])) << i / 16;
            }
          }
        }
      }
    }
  }
}

TEST_P(LinearAttentionFused, NonFiniteValuesAffectOnlyVisibleRows) {
  for (const auto& [dtype, segments] : {std::pair{DType::float32, 1}, std::pair{DType::bfloat16, 1},
                                        std::pair{DType::bfloat16, 2}, std::pair{DType::bfloat16, 3}}) {
    gpu_settings().segments = segments;
    AttentionProblem p = problem_of(FeatureMap::favor_positive, true, {1, 1, 1, 150, 16, 16, 32, 64}, dtype);
    for (std::int64_t i = 0; i < p.n; ++i) p.documents.push_back(i < 40 ? 1 : i < 90 ? 2 : 3);
    p.mask.assign(150, 1);
    const Outcome before = run_attention(p, dtype);
    p.value[50 * 16 + 3] = HUGE_VAL;  // visible to tokens 50 to 89, in this column
    p.value[95 * 16 + 5] = std::nan("");
    p.mask[95] = 0;  // masked: visible to no token
    AttentionProblem clean = p;
    clean.value[50 * 16 + 3] = clean.value[95 * 16 + 5] = 0;
    const std::vector<double> expected = run_attention(clean, dtype).output, found = run_attention(p, dtype).output;
    for (std::int64_t i = 0; i < p.n; ++i) {
      for (std::int64_t c = 0; c < 16; ++c) {
        const auto at = static_cast<std::size_t>(i * 16 + c);
        if (c == 3 && i >= 50 && i < 90) {
          EXPECT_FALSE(std::isfinite(found[at])) << i << ", " << segments << " segments";
        } else {
          EXPECT_EQ(found[at], expected[at]) << i << " " << c << ", " << segments << " segments";
        }
      }
    }
  }
}

TEST_P(LinearAttentionFused, MaskedKeysChangeNoBit) {
  for (const bool causal : {true, false}) {
    AttentionProblem p =
        problem_of(FeatureMap::favor_positive, causal, {1, 1, 1, 100, 16, 16, 32, 64}, DType::bfloat16);
    p.mask.assign(static_cast<std::size_t>(p.n_key), 1);
    for (const std::size_t j : {0u, 30u, 64u, 99u}) p.mask[j] = 0;
    const Outcome before = run_attention(p, DType::bfloat16);
    for (const std::size_t j : {0u, 30u, 64u, 99u}) {
      for (std::size_t c = 0; c < 16; ++c) p.key[j * 16 + c] = std::nan(""), p.value[j * 16 + c] = HUGE_VAL;
    }
    const Outcome after = run_attention(p, DType::bfloat16);
    EXPECT_EQ(before.output, after.output);
    EXPECT_EQ(before.d_query, after.d_query);
    EXPECT_EQ(before.d_key, after.d_key);
    EXPECT_EQ(before.d_value, after.d_value);
    for (std::size_t c = 0; c < 16; ++c) EXPECT_EQ(after.d_key[30 * 16 + c], 0);
  }
}

TEST_P(LinearAttentionFused, AccurateForNormsUpToForty) {
  for (const FeatureMap map : fused_maps()) {
    for (const bool causal : {true, false}) {
      for (const double norm : {8.0, 40.0}) {
        if (norm < 40 && !causal) continue;
        const AttentionProblem p = problem_of(map, causal, {1, 1, 1, 130, 64, 16, 96, 64}, DType::float32, norm / 8);
        expect_close(p, DType::float32,
                     fmt::format("{}, norm {}, causal {}", feature_map_info(map).name, norm, causal));
      }
    }
  }
}

TEST_P(LinearAttentionFused, AccurateForOppositeKeysAndHugeKey) {
  for (const FeatureMap map : {FeatureMap::favor_positive, FeatureMap::favor_hyperbolic, FeatureMap::oprf,
                               FeatureMap::exp, FeatureMap::elu1, FeatureMap::hedgehog}) {
    for (const double scale : {1.0, 5.0}) {
      AttentionProblem p = problem_of(map, true, {1, 1, 1, 100, 64, 16, 96, 64}, DType::float32, scale);
      p.key = p.query;
      for (double& x : p.key) x = -x;
      expect_close(p, DType::float32, fmt::format("k = -q, {}, scale {}", feature_map_info(map).name, scale));
      for (std::int64_t f = 0; f < 64; ++f) p.key[static_cast<std::size_t>(40 * 64 + f)] *= 1000;
      store_as(p, DType::float32);
      // Gradients that are small compared with those of the huge key are lost in rounding.
      expect_close(run_attention(p, DType::float32), reference_of(p), bounds_of(DType::float32),
                   fmt::format("huge key, {}, scale {}", feature_map_info(map).name, scale), 0.3);
    }
  }
}

TEST_P(LinearAttentionFused, AccurateForOppositeKeysInBfloat16) {
  AttentionProblem p = problem_of(FeatureMap::favor_positive, true, {1, 1, 1, 100, 64, 16, 96, 64}, DType::bfloat16, 5);
  p.key = p.query;
  for (double& x : p.key) x = -x;
  expect_close(p, DType::bfloat16, "k = -q");
}

TEST_P(LinearAttentionFused, ContinuesFromState) {
  for (const FeatureMap map :
       {FeatureMap::favor_positive, FeatureMap::favor_hyperbolic, FeatureMap::elu1, FeatureMap::hedgehog}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const AttentionProblem p = problem_of(map, true, {1, 2, 2, 230, 16, 16, 40, 64}, dtype, 2);
      Tape tape{stream()};
      const Tape::NoGradient guard(tape);
      const std::vector<double> expected = reference_of(p).output;
      ops::LinearAttentionState state =
          ops::empty_linear_attention_state(p.options, p.batch, p.features(), p.d_value, dtype, device());
      std::vector<double> found;
      for (std::int64_t start = 0; start < p.n;) {
        const std::int64_t count = start == 0 ? 70 : start == 70 ? 5 : std::min<std::int64_t>(130, p.n - start);
        const auto rows = [&](const std::vector<double>& values, const Shape& shape) {
          const std::int64_t width = shape[2];
          const std::vector<double> own(values.begin() + start * width, values.begin() + (start + count) * width);
          return Variable(tensor_of(own, {1, count, width}, dtype));
        };
        ops::LinearAttentionInputs inputs;
        inputs.query = rows(p.query, p.query_shape()), inputs.key = rows(p.key, p.key_shape()),
        inputs.value = rows(p.value, p.value_shape());
        inputs.constants = constants_of(p, dtype);
        inputs.state = &state;
        const std::vector<double> part = values_of(attend(tape, inputs, p.options).value());
        found.insert(found.end(), part.begin(), part.end());
        start += count;
      }
      EXPECT_LT(relative_error(found, expected), bounds_of(dtype).output) << feature_map_info(map).name;
    }
  }
}

TEST_P(LinearAttentionFused, GradientWithStateMatchesReference) {
  const DType dtype = DType::float32;
  const AttentionProblem first = problem_of(FeatureMap::favor_positive, true, {1, 1, 1, 70, 16, 16, 40, 64}, dtype);
  AttentionProblem second = first;
  second.query = stored(normal_values(70 * 16, 31), dtype), second.key = stored(normal_values(70 * 16, 32), dtype);
  const auto run = [&](DType type) {
    Tape tape{stream()};
    ops::LinearAttentionState state =
        ops::empty_linear_attention_state(first.options, 1, first.features(), 16, type, device());
    ops::LinearAttentionInputs before = inputs_of(first, type, false), inputs = inputs_of(second, type);
    before.state = inputs.state = &state;
    attend(tape, before, first.options);
    return outcome_of(tape, inputs, attend(tape, inputs, second.options));
  };
  Outcome expected;
  {
    const OnDevice cpu{Device{}};
    expected = run(DType::float64);
  }
  expect_close(run(dtype), expected, bounds_of(dtype), "");
}

TEST_P(LinearAttentionFused, AccumulatesGradientsOfSharedTensorViews) {
  // query, key and value are column ranges of one tensor, used twice: rows are strided, aligned to 16 bytes or not, and
  // gradients accumulate.
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const std::int64_t before : {8, 1}) {
      const std::int64_t n = 70, d = 16;
      const auto run = [&](DType type) {
        Tape tape{stream()};
        const std::vector<double> values = stored(normal_values(n * (before + 4 * d), 41), dtype);
        const Variable all = Variable::leaf(tensor_of(values, {1, n, before + 4 * d}, type));
        const std::vector<Variable> parts = ops::column_ranges(tape, all, {before, 2 * d, d, d});
        ops::LinearAttentionInputs inputs;
        inputs.query = parts[1], inputs.key = parts[2], inputs.value = parts[3];
        ops::LinearAttentionOptions options;
        options.n_heads = 2, options.feature_map = FeatureMap::elu1;
        const Variable first = attend(tape, inputs, options), second = attend(tape, inputs, options);
        const auto seed = [&](std::uint32_t random) {
          return tensor_of(stored(normal_values(first.shape().elements(), random), dtype), first.shape(), type);
        };
        tape.backward({first, second}, {seed(5), seed(6)});
        return Outcome{values_of(first.value()), values_of(all.gradient()), {}, {}, {}};
      };
      Outcome expected;
      {
        const OnDevice cpu{Device{}};
        expected = run(DType::float64);
      }
      const Outcome found = run(dtype);
      EXPECT_LT(relative_error(found.output, expected.output), bounds_of(dtype).output) << before;
      EXPECT_LT(relative_error(found.d_query, expected.d_query), bounds_of(dtype).gradient) << before;
    }
  }
}

TEST_P(LinearAttentionFused, RowsWithoutVisibleKeysAreZeroAndCounted) {
  AttentionProblem p = problem_of(FeatureMap::relu, true, {1, 1, 1, 80, 16, 16, 1, 64}, DType::bfloat16);
  for (std::size_t f = 0; f < 16; ++f) p.query[5 * 16 + f] = -1;
  p.mask.assign(80, 1);
  p.mask[0] = 0;  // the first token has no visible key, the sixth has only zero features
  const Outcome found = run_attention(p, DType::bfloat16);
  for (const std::size_t row : {0u, 5u}) {
    for (std::size_t f = 0; f < 16; ++f) EXPECT_EQ(found.output[row * 16 + f], 0);
    for (std::size_t f = 0; f < 16; ++f) EXPECT_EQ(found.d_query[row * 16 + f], 0);
  }
  EXPECT_EQ(found.report.rows, 80);
  EXPECT_GE(found.report.guarded, 2);
  EXPECT_EQ(found.report.guarded, reference_of(p).report.guarded);
  p.mask.assign(80, 0);
  const Outcome blind = run_attention(p, DType::bfloat16);
  for (const auto* values : {&blind.output, &blind.d_query, &blind.d_key, &blind.d_value}) {
    for (const double value : *values) EXPECT_EQ(value, 0);
  }
  EXPECT_EQ(blind.report.guarded, 80);
  p = problem_of(FeatureMap::favor_positive, true, {1, 1, 1, 80, 16, 16, 32, 64}, DType::bfloat16);
  p.mask.assign(80, 0);
  for (const double value : run_attention(p, DType::bfloat16).output) EXPECT_EQ(value, 0);
}

TEST_P(LinearAttentionFused, AccurateForLongSequences) {
  // The mean of many values with mean zero: outputs are much smaller than their terms.
  const std::int64_t n = on_simulator() ? 2000 : 65536;
  for (const bool causal : {true, false}) {
    const AttentionProblem p = problem_of(FeatureMap::elu1, causal, {1, 1, 1, n, 16, 16, 1, 64}, DType::float32, 0.5);
    EXPECT_LT(scaled_error(run_attention(p, DType::float32).output, reference_of(p).output, 1e-3), 1e-4) << causal;
  }
}

}  // namespace
}  // namespace furlong::testing
