#pragma once
// Problems for the tests of linear attention: every option, inputs from fixed random numbers, and the op and its
// definition.
#include <gtest/gtest.h>

#include "framework/core/parallel.h"
#include "framework/ops/attention/linear/linear_attention.h"
#include "framework/primitives/cpu_isa.h"
#include "layers/attention/linear/random_projection.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/reference/linear_attention.h"

namespace furlong::testing {

using ops::FeatureMap;

inline std::vector<double> normal_values(std::int64_t n, std::uint32_t stream, double scale = 1) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    values[static_cast<std::size_t>(i)] = scale * random_normal({7, 0, stream}, static_cast<std::uint64_t>(i));
  return values;
}

struct AttentionProblem {
  std::int64_t batch = 1, n = 1, n_key = 1, d = 4, d_value = 4;
  ops::LinearAttentionOptions options;
  std::vector<double> query, key, value, random_projection, gate, query_center, key_center, scaling, oprf_a;
  std::vector<int> mask, documents;  // [batch, n_key]

  std::int64_t heads() const { return options.n_heads; }
  Shape query_shape() const { return {batch, n, options.n_heads * d}; }
  Shape key_shape() const { return {batch, n_key, options.n_kv_heads * d}; }
  Shape value_shape() const { return {batch, n_key, options.n_kv_heads * d_value}; }
  std::int64_t n_projections() const { return static_cast<std::int64_t>(random_projection.size()) / d; }
  std::int64_t features() const { return feature_count(options.feature_map, options.map_options, d, n_projections()); }
};

struct ProblemShape {
  std::int64_t batch, heads, kv_heads, n, d, d_value, random_projection, chunk;
};
inline const std::vector<ProblemShape>& odd_shapes() {
  static const std::vector<ProblemShape> shapes{{1, 1, 1, 1, 1, 1, 1, 16},     {2, 1, 1, 1, 8, 8, 24, 64},
                                                {1, 2, 1, 17, 5, 3, 7, 16},    {2, 3, 3, 33, 16, 16, 32, 16},
                                                {1, 4, 2, 70, 12, 20, 19, 64}, {1, 1, 1, 129, 24, 64, 50, 64}};
  return shapes;
}

inline AttentionProblem attention_problem(FeatureMap map, bool causal, const ProblemShape& s, double scale = 1) {
  AttentionProblem p;
  p.batch = s.batch, p.n = s.n, p.n_key = causal ? s.n : s.n + 3, p.d = s.d, p.d_value = s.d_value;
  p.options.n_heads = s.heads, p.options.n_kv_heads = s.kv_heads, p.options.feature_map = map;
  p.options.causal = causal, p.options.chunk_size = s.chunk;
  p.query = normal_values(p.query_shape().elements(), 1, scale);
  p.key = normal_values(p.key_shape().elements(), 2, scale);
  p.value = normal_values(p.value_shape().elements(), 3);
  if (feature_map_info(map).needs_random_projection) {
    for (float w :
         layers::draw_random_projection(layers::RandomProjectionKind::orthogonal, s.random_projection, s.d, {11, 0, 4}))
      p.random_projection.push_back(w);
  }
  if (feature_map_info(map).needs_oprf_a) {
    for (std::int64_t h = 0; h < s.heads; ++h) p.oprf_a.push_back(-0.0625 * static_cast<double>(h + 1));
  }
  return p;
}

/// Denominators of signed maps can be near zero: rows with a sum that is small compared with its terms have large
/// gradients and rounding errors. Shifting the values above zero keeps the sums of the kernel away from zero.
inline void keep_denominators_large(AttentionProblem& p) {
  for (auto* values : {&p.query, &p.key}) {
    for (double& value : *values) value = 0.35 * value + 0.35;
  }
}

inline Tensor integers(const std::vector<int>& values, const Shape& shape) {
  return values.empty() ? Tensor{}
                        : Tensor::from(std::vector<std::int32_t>(values.begin(), values.end()), shape, device());
}
inline Tensor constant_of(const std::vector<double>& values, const Shape& shape, DType dtype) {
  return values.empty() ? Tensor{} : tensor_of(values, shape, accumulate_dtype(dtype));
}
inline ops::LinearAttentionConstants constants_of(const AttentionProblem& p, DType dtype) {
  return {constant_of(p.random_projection, {std::max<std::int64_t>(1, p.n_projections()), p.d}, dtype),
          constant_of(p.query_center, {p.heads(), p.d}, dtype), constant_of(p.key_center, {p.heads(), p.d}, dtype),
          constant_of(p.scaling, {p.heads(), p.d}, dtype), constant_of(p.oprf_a, {p.heads()}, dtype)};
}
inline ops::AttentionMask mask_of(const AttentionProblem& p) {
  return {integers(p.mask, {p.batch, p.n_key}), integers(p.documents, {p.batch, p.n_key})};
}

inline std::vector<double> head_rows_of(const std::vector<double>& values, std::int64_t b, std::int64_t n,
                                        std::int64_t heads, std::int64_t head, std::int64_t d) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t c = 0; c < d; ++c)
      result.push_back(values[static_cast<std::size_t>(((b * n + i) * heads + head) * d + c)]);
  }
  return result;
}

/// Returns the result of the definition for inputs rounded to `dtype`.
inline std::vector<double> definition_of(const AttentionProblem& p, DType dtype) {
  const auto query = stored(p.query, dtype), key = stored(p.key, dtype), value = stored(p.value, dtype),
             gate = stored(p.gate, dtype);
  const std::int64_t heads = p.heads(), kv_heads = p.options.n_kv_heads;
  const auto of_head = [&](const std::vector<double>& values, std::int64_t h, std::int64_t width) {
    if (values.empty()) return values;
    return std::vector<double>(values.begin() + h * width, values.begin() + (h + 1) * width);
  };
  std::vector<double> output(static_cast<std::size_t>(p.batch * p.n * heads * p.d_value));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const auto of_row = [&](const std::vector<int>& values) {
      return values.empty() ? values
                            : std::vector<int>(values.begin() + b * p.n_key, values.begin() + (b + 1) * p.n_key);
    };
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t g = h / (heads / kv_heads);
      reference::LinearAttentionCase c;
      c.features = {
          p.options.feature_map, p.options.map_options, p.d,
          p.n_projections(),     p.random_projection,   p.oprf_a.empty() ? 0 : p.oprf_a[static_cast<std::size_t>(h)]};
      c.n_query = p.n, c.n_key = p.n_key, c.d_value = p.d_value, c.causal = p.options.causal;
      c.window = p.options.window, c.softmax_window = p.options.softmax_window;
      c.gate = gate.empty() ? 0 : gate[static_cast<std::size_t>(h)];
      c.rms = p.options.normalizer == ops::Normalizer::rms;
      c.rotate_numerator = p.options.rotate_numerator, c.rotary_base = p.options.rotary_base;
      c.query_center = of_head(p.query_center, h, p.d), c.key_center = of_head(p.key_center, h, p.d);
      c.scaling = of_head(p.scaling, h, p.d), c.mask = of_row(p.mask), c.documents = of_row(p.documents);
      const auto one = reference::linear_attention(c, head_rows_of(query, b, p.n, heads, h, p.d),
                                                   head_rows_of(key, b, p.n_key, kv_heads, g, p.d),
                                                   head_rows_of(value, b, p.n_key, kv_heads, g, p.d_value));
      for (std::int64_t i = 0; i < p.n; ++i) {
        for (std::int64_t f = 0; f < p.d_value; ++f)
          output[static_cast<std::size_t>(((b * p.n + i) * heads + h) * p.d_value + f)] =
              one[static_cast<std::size_t>(i * p.d_value + f)];
      }
    }
  }
  return output;
}

/// GPU settings that attend() uses; reset after each test.
inline ops::LinearAttentionGpuSettings& gpu_settings() {
  static ops::LinearAttentionGpuSettings settings;
  return settings;
}
inline Variable attend(Tape& tape, const ops::LinearAttentionInputs& inputs, ops::LinearAttentionOptions options) {
  options.gpu = gpu_settings();
  return ops::linear_attention(tape, inputs, options);
}

struct Outcome {
  std::vector<double> output, d_query, d_key, d_value, d_gate;
  ops::DenominatorReport report{};
};
/// Returns the problem's inputs on the device under test, the gate in `dtype` as in a model; with `leaves` their
/// gradients are computed.
inline ops::LinearAttentionInputs inputs_of(const AttentionProblem& p, DType dtype, bool leaves = true) {
  const auto variable = [&](const std::vector<double>& values, const Shape& shape, DType type) {
    const Tensor tensor = tensor_of(values, shape, type);
    return leaves ? Variable::leaf(tensor) : Variable(tensor);
  };
  ops::LinearAttentionInputs inputs;
  inputs.query = variable(p.query, p.query_shape(), dtype);
  inputs.key = variable(p.key, p.key_shape(), dtype);
  inputs.value = variable(p.value, p.value_shape(), dtype);
  if (!p.gate.empty()) inputs.gate = variable(p.gate, {p.heads()}, dtype);
  inputs.constants = constants_of(p, dtype);
  inputs.mask = mask_of(p);
  return inputs;
}
/// Computes the gradients of inputs_of() for a gradient of the output: `d_output`, or fixed random numbers.
inline Outcome outcome_of(Tape& tape, const ops::LinearAttentionInputs& inputs, const Variable& output,
                          std::vector<double> d_output = {}) {
  if (d_output.empty()) d_output = normal_values(output.shape().elements(), 5);
  tape.backward({output}, {tensor_of(d_output, output.shape(), output.dtype())});
  Outcome outcome;
  outcome.output = values_of(output.value());
  outcome.d_query = values_of(inputs.query.gradient());
  outcome.d_key = values_of(inputs.key.gradient());
  outcome.d_value = values_of(inputs.value.gradient());
  if (inputs.gate.defined()) outcome.d_gate = values_of(inputs.gate.gradient());
  return outcome;
}
/// `d_output`: see outcome_of.
inline Outcome run_attention(const AttentionProblem& p, DType dtype, std::vector<double> d_output = {}) {
  Tape tape{stream()};
  ops::LinearAttentionInputs inputs = inputs_of(p, dtype);
  ops::DenominatorReport report;
  inputs.report = &report;
  const Variable output = attend(tape, inputs, p.options);
  report.gather();
  Outcome outcome = outcome_of(tape, inputs, output, std::move(d_output));
  outcome.report = report;
  return outcome;
}

/// Forward only, as in evaluation: nothing is stored for gradients.
inline std::vector<double> output_of(const AttentionProblem& p, DType dtype) {
  Tape tape{stream()};
  return values_of(attend(tape, inputs_of(p, dtype, false), p.options).value());
}

/// Returns the largest difference over the largest expected value, or over `least` if all expected values are smaller.
/// If one key has all the weight, true gradients vanish, and the result is the rounding of terms of size 1.
inline double scaled_error(const std::vector<double>& found, const std::vector<double>& expected, double least = 1e-3,
                           const std::source_location& site = std::source_location::current()) {
  double largest = least, worst = found.size() == expected.size() ? 0 : HUGE_VAL;
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    largest = std::max(largest, std::fabs(expected[i]));
    worst = std::isfinite(found[i]) ? std::max(worst, std::fabs(found[i] - expected[i])) : HUGE_VAL;
  }
  return shown(worst / largest, site);
}

/// Runs on the CPU, whatever the device under test.
inline Outcome run_on_cpu(const AttentionProblem& p, DType dtype) {
  const OnDevice cpu{Device{}};
  return run_attention(p, dtype);
}

/// On GPUs uses the composed kernels, and splits long enough sequences into a few segments. The fused kernels are
/// tested in test_linear_attention_fused.cpp.
inline void use_composed_kernels(std::int64_t segments = 3) {
  ops::LinearAttentionGpuSettings settings;
  settings.composed_kernels = true;
  settings.segments = segments;
  gpu_settings() = settings;
}
class ComposedKernelTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    use_composed_kernels();
  }
  void TearDown() override {
    EngineTest::TearDown();
    gpu_settings() = {};
  }
};
/// The same fixture, with the device as the first of several parameters.
template <class... Parameters>
class ComposedKernelCase : public ::testing::TestWithParam<std::tuple<DeviceType, Parameters...>> {
 protected:
  void SetUp() override {
    device_under_test() = Device{std::get<0>(this->GetParam()), 0};
    use_composed_kernels();
  }
  void TearDown() override {
    device_under_test() = Device{};
    gpu_settings() = {};
  }
};

inline std::vector<FeatureMap> every_feature_map() {
  std::vector<FeatureMap> maps;
  for (const auto& info : ops::feature_maps()) maps.push_back(info.map);
  return maps;
}
/// Returns whether all features are positive or zero, so that sums of weights do not cancel.
inline bool is_positive(const AttentionProblem& p) { return !can_cancel(p.options.feature_map); }

/// Returns whether the kernels on the CPU round features, weights and values to bfloat16. Results then have several
/// roundings: 2^-7 of the largest value, as derived in test_linear_attention_fused.cpp.
inline bool rounds_operands(const AttentionProblem& p, DType dtype) {
  return dtype == DType::bfloat16 && !on_gpu() && ops::bfloat16_products() && is_positive(p) &&
         p.options.normalizer == ops::Normalizer::sum && !p.options.rotate_numerator && p.options.chunk_size >= 16;
}

}  // namespace furlong::testing
