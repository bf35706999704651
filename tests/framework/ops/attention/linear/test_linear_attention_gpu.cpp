// The composed kernels on GPUs: every feature map in every mode against its definition, and gradients against the CPU's
// in float64, which test_linear_attention.cpp compares with finite differences. Sequences are split into segments,
// whose states are summed and scanned.
#include <source_location>

#include <gtest/gtest.h>

#include "tests/framework/ops/attention/linear/linear_attention_modes.h"

namespace furlong::testing {
namespace {

using Combination = std::tuple<FeatureMap, bool, Mode>;

class EveryAttentionOnGpu : public ComposedKernelCase<Combination> {
 protected:
  Combination what() const { return std::get<1>(GetParam()); }
  bool causal() const { return std::get<1>(what()); }
  AttentionProblem make_problem(const ProblemShape& shape, double scale = 1) const {
    return attention_problem(what(), shape, scale);
  }
  /// Odd widths and several chunks, the last one short. On the simulator one shape per mode, so that every map is
  /// tested with both.
  std::vector<ProblemShape> shapes() const {
    const std::vector<ProblemShape> small{{1, 2, 1, 14, 5, 3, 7, 4}, {1, 1, 1, 21, 6, 18, 8, 8}};
    if (on_simulator()) return {small[(static_cast<std::size_t>(std::get<2>(what())) + (causal() ? 1 : 0)) % 2]};
    std::vector<ProblemShape> all = odd_shapes();
    all.insert(all.end(), small.begin(), small.end());
    return all;
  }
};
std::string name_of_combination_on_gpu(const ::testing::TestParamInfo<std::tuple<DeviceType, Combination>>& info) {
  return name_of_engine(std::get<0>(info.param)) + "_" + name_of_combination(std::get<1>(info.param));
}
auto combinations_on_gpus(const std::function<bool(const AttentionProblem&)>& wanted) {
  return ::testing::Combine(::testing::ValuesIn(gpu_engines()), ::testing::ValuesIn(every_attention(wanted)));
}
class EveryCausalAttentionOnGpu : public EveryAttentionOnGpu {};
class EveryMaskedAttentionOnGpu : public EveryAttentionOnGpu {};
class EveryPackedAttentionOnGpu : public EveryAttentionOnGpu {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EveryAttentionOnGpu);
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryAttentionOnGpu, combinations_on_gpus(any_problem),
                         name_of_combination_on_gpu);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EveryCausalAttentionOnGpu);
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryCausalAttentionOnGpu, combinations_on_gpus(is_causal),
                         name_of_combination_on_gpu);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EveryMaskedAttentionOnGpu);
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryMaskedAttentionOnGpu, combinations_on_gpus(is_masked),
                         name_of_combination_on_gpu);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EveryPackedAttentionOnGpu);
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryPackedAttentionOnGpu, combinations_on_gpus(is_packed),
                         name_of_combination_on_gpu);

/// Compares gradients. `least_scale`: errors are relative to the largest entry, or to this if it is larger.
void expect_gradients(const Outcome& found, const Outcome& expected, double row_bound, double value_bound,
                      double least_scale = 0) {
  const auto error = [](std::vector<double> values, std::vector<double> right, double scale,
                        const std::source_location& site = std::source_location::current()) {
    values.push_back(scale);
    right.push_back(scale);
    return relative_error(values, right, site);
  };
  EXPECT_LT(error(found.d_query, expected.d_query, least_scale), row_bound);
  EXPECT_LT(error(found.d_key, expected.d_key, least_scale), row_bound);
  EXPECT_LT(error(found.d_value, expected.d_value, least_scale), value_bound);
  if (!expected.d_gate.empty()) {
    // A sum over all tokens, whose terms have either sign and a size of about 1.
    EXPECT_LT(error(found.d_gate, expected.d_gate, 1), row_bound);
  }
}

TEST_P(EveryAttentionOnGpu, MatchesDefinitionAndCpuGradients) {
  for (const ProblemShape& shape : shapes()) {
    const AttentionProblem p = make_problem(shape);
    SCOPED_TRACE(shape.n);
    const double slack = is_positive(p) ? 1 : 30;  // the sum's condition, as in ForwardMatchesDefinition
    // Sums of rotated weights have no fixed sign either, and only their root mean square normalizes them.
    const double float32_slack =
        p.options.rotate_numerator && p.options.normalizer == ops::Normalizer::rms ? 5 * slack : slack;
    const Outcome on_cpu = run_on_cpu(p, DType::float64);
    // The weight of a single key is 1, and the root mean square of a single entry its size: gradients that are zero.
    const double least_gradient = shape.n == 1 ? 1 : 0;
    const auto expect = [&](DType dtype, double output, double row_bound, double value_bound) {
      SCOPED_TRACE(name_of(dtype));
      const Outcome found = run_attention(p, dtype);
      EXPECT_LT(relative_error(found.output, definition_of(p, dtype)), output);
      EXPECT_EQ(found.report.rows, on_cpu.report.rows);
      EXPECT_EQ(found.report.guarded, on_cpu.report.guarded);
      expect_gradients(found, on_cpu, row_bound, value_bound, least_gradient);
    };
    expect(DType::float64, 2e-13 * slack, 1e-11 * slack, 1e-12 * slack);
    // Three bfloat16 parts of each factor make products as accurate as float32.
    expect(DType::float32, 6e-6 * float32_slack, 6e-5 * float32_slack, 6e-6 * float32_slack);
    // Rounding of the output, and of features to two parts per factor: 2^-17 of some sums.
    EXPECT_LT(relative_error(output_of(p, DType::bfloat16), definition_of(p, DType::bfloat16)), 0x1p-8 * 1.05);
  }
}

TEST_P(EveryCausalAttentionOnGpu, LaterTokensChangeNoEarlierBit) {
  const std::int64_t n = on_simulator() ? 21 : 90, d = 4, chunk = on_simulator() ? 8 : 32;
  const AttentionProblem p = make_problem({1, 1, 1, n, d, d, 4, chunk}, 2);
  const std::vector<double> before = output_of(p, DType::float32);
  const std::pair<std::int64_t, double> changes[] = {{chunk - 1, -40.0}, {chunk, std::nan("")}, {chunk + 5, HUGE_VAL}};
  for (const auto& [cut, factor] : changes) {
    AttentionProblem changed = p;
    for (std::int64_t i = cut * d; i < n * d; ++i) {
      for (auto* values : {&changed.query, &changed.key, &changed.value})
        (*values)[static_cast<std::size_t>(i)] *= factor;
    }
    const std::vector<double> after = output_of(changed, DType::float32);
    EXPECT_EQ(std::memcmp(before.data(), after.data(), static_cast<std::size_t>(cut * d) * sizeof(double)), 0)
        << cut << ", " << factor;
    EXPECT_NE(std::memcmp(before.data(), after.data(), before.size() * sizeof(double)), 0);
  }
}

TEST_P(EveryMaskedAttentionOnGpu, MaskedKeysHaveNoInfluence) {
  const std::int64_t n = on_simulator() ? 18 : 40, d = 4;
  AttentionProblem p = make_problem({1, 2, 1, n, d, d, 6, on_simulator() ? 8 : 16});
  const Outcome before = run_attention(p, DType::float32);
  AttentionProblem changed = p;
  const auto for_masked = [&](const auto& body) {
    for (std::int64_t j = 0; j < p.batch * p.n_key; ++j) {
      for (std::int64_t f = 0; f < d && p.mask[static_cast<std::size_t>(j)] == 0; ++f)
        body(static_cast<std::size_t>(j * d + f));
    }
  };
  for_masked([&](std::size_t i) {
    changed.key[i] = i % 2 == 0 ? std::nan("") : 1e30;
    changed.value[i] = HUGE_VAL;
  });
  const Outcome after = run_attention(changed, DType::float32);
  EXPECT_EQ(before.output, after.output);
  EXPECT_EQ(before.d_query, after.d_query);
  EXPECT_EQ(before.d_key, after.d_key);
  EXPECT_EQ(before.d_value, after.d_value);
  for_masked([&](std::size_t i) {
    EXPECT_EQ(after.d_key[i], 0);
    EXPECT_EQ(after.d_value[i], 0);
  });
}

TEST_P(EveryPackedAttentionOnGpu, PackedDocumentsMatchSeparateDocuments) {
  const AttentionProblem p = make_problem({1, 1, 1, on_simulator() ? 25 : 70, 4, 4, 6, 8});
  // Chunks and segments cut documents in different places, so sums have another order.
  use_composed_kernels(1);
  const Outcome packed = run_attention(p, DType::float32);
  use_composed_kernels(3);
  const Outcome cut = run_attention(p, DType::float32);
  const double slack = is_positive(p) ? 1 : 30;
  EXPECT_LT(relative_error(cut.output, packed.output), 2e-6 * slack);
  expect_gradients(cut, packed, 2e-5 * slack, 2e-6 * slack);
  use_composed_kernels(1);
  for (std::int64_t start = 0, end = 1; start < p.n; start = end++) {
    while (end < p.n && p.documents[static_cast<std::size_t>(end)] == p.documents[static_cast<std::size_t>(start)])
      ++end;
    AttentionProblem alone = p;
    alone.n = alone.n_key = end - start;
    alone.documents.clear();
    const auto part = [&](std::vector<double>& values, std::int64_t width) {
      values = {values.begin() + start * width, values.begin() + end * width};
    };
    part(alone.query, p.d);
    part(alone.key, p.d);
    part(alone.value, p.d_value);
    if (!p.mask.empty()) alone.mask = {p.mask.begin() + start, p.mask.begin() + end};
    EXPECT_LT(relative_error(std::vector<double>(packed.output.begin() + start * p.d_value,
                                                 packed.output.begin() + end * p.d_value),
                             output_of(alone, DType::float32)),
              2e-6 * slack)
        << start;
  }
}

// ---- Tests outside the mode registry ----

/// Causal, bidirectional, and the bidirectional hybrid, whose keys are visited in two sweeps.
enum class Visibility { causal, bidirectional, hybrid };
const std::pair<Visibility, const char*> visibilities[] = {{Visibility::causal, "causal"},
                                                           {Visibility::bidirectional, "bidirectional"},
                                                           {Visibility::hybrid, "bidirectional hybrid"}};

AttentionProblem problem_with(Visibility visibility, FeatureMap map, const ProblemShape& shape) {
  AttentionProblem p = attention_problem(map, visibility == Visibility::causal, shape);
  if (!is_positive(p)) keep_denominators_large(p);
  if (visibility == Visibility::hybrid) apply(Mode::hybrid, p);
  return p;
}

class LinearAttentionOnGpu : public ComposedKernelCase<FeatureMap> {
 protected:
  FeatureMap map() const { return std::get<1>(GetParam()); }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinearAttentionOnGpu);
INSTANTIATE_TEST_SUITE_P(LinearAttention, LinearAttentionOnGpu,
                         ::testing::Combine(::testing::ValuesIn(gpu_engines()),
                                            ::testing::Values(FeatureMap::favor_positive, FeatureMap::hedgehog,
                                                              FeatureMap::taylor)),
                         [](const auto& info) {
                           return name_of_engine(std::get<0>(info.param)) + "_" +
                                  feature_map_info(std::get<1>(info.param)).name;
                         });

TEST_P(LinearAttentionOnGpu, ChunksSegmentsAndScratchChangeOnlyRounding) {
  for (const auto& [visibility, name] : visibilities) {
    AttentionProblem p = problem_with(visibility, map(), {2, 2, 1, 45, 6, 5, 9, 16});
    const double slack = is_positive(p) ? 1 : 30;
    const Outcome expected = run_on_cpu(p, DType::float64);
    const auto expect_same = [&](std::int64_t chunk, std::int64_t segments, std::int64_t scratch_bytes) {
      SCOPED_TRACE(fmt::format("{}, chunk {}, {} segments, {} bytes", name, chunk, segments, scratch_bytes));
      p.options.chunk_size = chunk;
      use_composed_kernels(segments);
      gpu_settings().scratch_bytes = scratch_bytes;
      const Outcome found = run_attention(p, DType::float64);
      EXPECT_LT(relative_error(found.output, expected.output), 1e-12 * slack);
      expect_gradients(found, expected, 1e-11 * slack, 1e-12 * slack);
    };
    expect_same(7, 4, 1 << 20);
    expect_same(40, 1, 1 << 20);
    expect_same(16, 1, 0);  // segments of one chunk
  }
}

TEST_P(LinearAttentionOnGpu, FullChunksMatchReference) {
  // Chunks of 64 rows, several tensor-core tiles in each direction, grouped heads, in the storage types of training.
  for (const auto& [visibility, name] : visibilities) {
    SCOPED_TRACE(name);
    const AttentionProblem p = problem_with(visibility, map(), {1, 2, 1, on_simulator() ? 66 : 130, 12, 36, 34, 64});
    const double slack = is_positive(p) ? 1 : 30;
    const Outcome expected = run_on_cpu(p, DType::float64);
    const Outcome single = run_attention(p, DType::float32), half = run_attention(p, DType::bfloat16),
                  half_on_cpu = run_on_cpu(p, DType::bfloat16);
    EXPECT_LT(relative_error(single.output, definition_of(p, DType::float32)), 6e-6 * slack);
    expect_gradients(single, expected, 6e-5 * slack, 6e-6 * slack);
    EXPECT_LT(relative_error(half.output, definition_of(p, DType::bfloat16)), 0x1p-8 * 1.05);
    // One rounding of each gradient, and of the saved outputs, which may differ by one unit. Twice that if both sides
    // round their operands.
    const double bound = ops::bfloat16_products() ? 0x1p-6 : 0x1p-7;
    expect_gradients(half, half_on_cpu, bound, bound);
    EXPECT_EQ(output_of(p, DType::float32), single.output) << "a second run, without gradients";
  }
}

/// Checks gradients of inputs that are used twice, and gradients of some inputs only.
void expect_sums_of_gradients(const AttentionProblem& p) {
  const auto gradients = [&](bool query, bool key, int times) {
    Tape tape{stream()};
    ops::LinearAttentionInputs inputs;
    const auto input = [](bool leaf, const Tensor& values) { return leaf ? Variable::leaf(values) : Variable(values); };
    inputs.query = input(query, tensor_of(p.query, p.query_shape(), DType::float64));
    inputs.key = input(key, tensor_of(p.key, p.key_shape(), DType::float64));
    inputs.value = input(key, tensor_of(p.value, p.value_shape(), DType::float64));
    if (!p.gate.empty()) inputs.gate = input(query && key, tensor_of(p.gate, {p.heads()}, DType::float64));
    inputs.constants = constants_of(p, DType::float64);
    std::vector<Variable> outputs;
    std::vector<Tensor> d_outputs;
    for (int i = 0; i < times; ++i) {
      outputs.push_back(attend(tape, inputs, p.options));
      d_outputs.push_back(
          tensor_of(normal_values(outputs[0].shape().elements(), 5), outputs[0].shape(), DType::float64));
    }
    tape.backward(outputs, d_outputs);
    std::vector<std::vector<double>> found;
    if (query) found.push_back(values_of(inputs.query.gradient()));
    if (key) found.push_back(values_of(inputs.key.gradient()));
    if (key) found.push_back(values_of(inputs.value.gradient()));
    return found;
  };
  const auto once = gradients(true, true, 1), twice = gradients(true, true, 2);
  for (std::size_t k = 0; k < once.size(); ++k) {
    for (std::size_t i = 0; i < once[k].size(); ++i) ASSERT_EQ(twice[k][i], 2 * once[k][i]) << k << ", " << i;
  }
  EXPECT_EQ(gradients(true, false, 1)[0], once[0]);
  EXPECT_EQ(gradients(false, true, 1)[0], once[1]);
}

TEST_P(LinearAttentionOnGpu, AccumulatesAndSkipsGradientsAsRequested) {
  for (const Visibility visibility : {Visibility::causal, Visibility::hybrid})
    expect_sums_of_gradients(problem_with(visibility, map(), {1, 4, 2, 13, 4, 3, 6, 4}));
}

}  // namespace
}  // namespace furlong::testing
