// Attention over sequences of 131,072 tokens, with many segments and with offsets beyond 2^31 elements; on hardware
// only. Only some rows have an output gradient, so that a float64 reference takes the time of these rows instead of all
// pairs. Tests with short sequences check the same reference on every device.
//
// Bounds are those of short sequences (test_linear_attention_fused.cpp). For float32 they also allow for 2^11 additions
// of chunks, each with an error of half a unit in the last place: 2^11 · 2^-24 = 1.2e-4 of outputs, and of each of the
// sums that gradients consist of.
#include <functional>

#include "framework/ops/attention/softmax/softmax_attention.h"
#include "framework/primitives/arithmetic.h"
#include "tests/framework/ops/attention/linear/linear_attention_testing.h"

namespace furlong::testing {
namespace {

/// One head, with the exact weights exp(q·k/√d) or those of a feature map.
struct LongCase {
  std::int64_t n;
  bool causal;
  std::optional<FeatureMap> map;
  std::int64_t random_projection = 0;
  static constexpr std::int64_t d = 64;

  std::string name() const { return map ? std::string(ops::feature_map_info(*map).name) : "softmax"; }
  std::string text() const { return fmt::format("{}, {} tokens, {}", name(), n, causal ? "causal" : "bidirectional"); }
};

struct LongInputs {
  std::vector<double> query, key, value, d_output;  // [n, d], as the dtype stores them
  std::vector<double> random_projection;            // [directions, d]
  std::vector<std::int64_t> rows;                   // rows to compare; d_output is nonzero for the last eight
};

/// Keys and values depend on their position, so that a lost or duplicated segment changes every mean over all keys.
/// Values have a mean near zero, so that the rounding of bfloat16 outputs is small compared with gradients of queries,
/// which are differences from the mean.
LongInputs inputs_of(const LongCase& c, DType dtype) {
  LongInputs in;
  const auto number = [](std::uint32_t stream, std::int64_t i) {
    return random_normal({7, 0, stream}, static_cast<std::uint64_t>(i));
  };
  for (std::int64_t j = 0; j < c.n; ++j) {
    const double place = static_cast<double>(j) / static_cast<double>(c.n);
    for (std::int64_t x = 0; x < c.d; ++x) {
      const std::int64_t at = j * c.d + x;
      const double sign = x % 2 == 0 ? 1 : -1, slope = x % 5 < 2 ? 1 : -1, way = 2 * place - 1;
      in.query.push_back(0.7 * number(1, at));
      in.key.push_back(0.7 * number(2, at) + slope * way);
      in.value.push_back(0.25 * number(3, at) + sign * way);
    }
  }
  in.rows = {0, c.n / 70, c.n / 9, c.n / 3};
  for (std::int64_t i = 1; i <= 8; ++i)
    in.rows.push_back(c.n / 2 + c.n * i / 16 - 1);  // a key's weights have similar sizes in all of them
  in.d_output.assign(in.query.size(), 0);
  for (std::size_t r = in.rows.size() - 8; r < in.rows.size(); ++r) {
    for (std::int64_t x = 0; x < c.d; ++x)
      in.d_output[static_cast<std::size_t>(in.rows[r] * c.d + x)] = number(4, in.rows[r] * c.d + x);
  }
  if (c.random_projection > 0) {
    for (float w :
         layers::draw_random_projection(layers::RandomProjectionKind::orthogonal, c.random_projection, c.d, {11, 0, 4}))
      in.random_projection.push_back(w);
  }
  for (auto* values : {&in.query, &in.key, &in.value, &in.d_output}) *values = stored(*values, dtype);
  return in;
}

struct LongOutcome {
  std::vector<double> output, d_query;  // of the compared rows
  std::vector<double> d_key, d_value;   // of all rows
};

std::vector<double> rows_of(const std::vector<double>& values, const LongInputs& in) {
  std::vector<double> result;
  for (const std::int64_t row : in.rows)
    result.insert(result.end(), values.begin() + row * LongCase::d, values.begin() + (row + 1) * LongCase::d);
  return result;
}

/// A row as the weights use it (the row itself, or its features), and the gradient of the row from that of its
/// features.
class Representation {
 public:
  Representation(const LongCase& c, const LongInputs& in) : map_(c.map), in_(in) {
    if (map_) case_ = {*map_, {}, c.d, c.random_projection, in.random_projection};
  }
  std::int64_t width() const { return !map_ || *map_ == FeatureMap::elu1 ? LongCase::d : case_.n_projections; }
  std::vector<double> of(const double* x, bool is_key) const {
    if (!map_) return {x, x + LongCase::d};
    std::vector<double> features = reference::feature_row(case_, x, is_key).features;
    for (double& feature : features) feature = std::exp(feature);
    return features;
  }
  double weight(double inner) const { return map_ ? inner : std::exp(inner * scale_); }
  double derivative(double weight) const { return map_ ? 1 : weight * scale_; }
  /// Omits a query's -|x'|²/2, a common factor of its weights: its gradients add up to zero.
  std::vector<double> back(const double* x, const double* features, const double* d_features, bool is_key) const {
    if (!map_) return {d_features, d_features + LongCase::d};
    std::vector<double> d_x(LongCase::d);
    const double factor = std::pow(static_cast<double>(LongCase::d), -0.25);
    for (std::int64_t i = 0; i < LongCase::d; ++i) {
      if (*map_ == FeatureMap::elu1) {
        d_x[i] = d_features[i] * (x[i] > 0 ? 1 : std::exp(x[i]));
        continue;
      }
      for (std::int64_t f = 0; f < width(); ++f)
        d_x[i] += factor * d_features[f] * features[f] *
                  (in_.random_projection[f * LongCase::d + i] - (is_key ? factor * x[i] : 0));
    }
    return d_x;
  }

 private:
  std::optional<FeatureMap> map_;
  const LongInputs& in_;
  reference::FeatureMapCase case_{};
  double scale_ = 1 / std::sqrt(static_cast<double>(LongCase::d));
};

LongOutcome reference_of(const LongCase& c, const LongInputs& in) {
  constexpr std::int64_t d = LongCase::d;
  const Representation represent(c, in);
  const auto rows = static_cast<std::int64_t>(in.rows.size()), m = represent.width();
  const auto sees = [&](std::int64_t r, std::int64_t j) { return !c.causal || j <= in.rows[r]; };
  std::vector<double> queries, weights(static_cast<std::size_t>(rows * c.n)), sums(rows), deltas(rows);
  for (const std::int64_t row : in.rows) {
    const std::vector<double> one = represent.of(in.query.data() + row * d, false);
    queries.insert(queries.end(), one.begin(), one.end());
  }
  LongOutcome outcome;
  outcome.output.resize(static_cast<std::size_t>(rows * d));
  for (std::int64_t j = 0; j < c.n; ++j) {
    const std::vector<double> key = represent.of(in.key.data() + j * d, true);
    for (std::int64_t r = 0; r < rows; ++r) {
      if (!sees(r, j)) continue;
      const double w = weights[r * c.n + j] = represent.weight(reference::inner(queries.data() + r * m, key.data(), m));
      sums[r] += w;
      for (std::int64_t x = 0; x < d; ++x) outcome.output[r * d + x] += w * in.value[j * d + x];
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t x = 0; x < d; ++x) outcome.output[r * d + x] /= sums[r];
    deltas[r] = reference::inner(in.d_output.data() + in.rows[r] * d, outcome.output.data() + r * d, d);
  }
  std::vector<double> d_queries(queries.size());
  for (std::int64_t j = 0; j < c.n; ++j) {
    const std::vector<double> key = represent.of(in.key.data() + j * d, true);
    std::vector<double> d_key(static_cast<std::size_t>(m)), d_value(d);
    for (std::int64_t r = 0; r < rows; ++r) {
      if (!sees(r, j)) continue;
      const double *g = in.d_output.data() + in.rows[r] * d, w = weights[r * c.n + j];
      const double d_inner =
          (reference::inner(g, in.value.data() + j * d, d) - deltas[r]) / sums[r] * represent.derivative(w);
      for (std::int64_t x = 0; x < d; ++x) d_value[x] += w / sums[r] * g[x];
      for (std::int64_t f = 0; f < m; ++f) {
        d_key[f] += d_inner * queries[r * m + f];
        d_queries[r * m + f] += d_inner * key[f];
      }
    }
    const std::vector<double> d_x = represent.back(in.key.data() + j * d, key.data(), d_key.data(), true);
    outcome.d_key.insert(outcome.d_key.end(), d_x.begin(), d_x.end());
    outcome.d_value.insert(outcome.d_value.end(), d_value.begin(), d_value.end());
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::vector<double> d_x =
        represent.back(in.query.data() + in.rows[r] * d, queries.data() + r * m, d_queries.data() + r * m, false);
    outcome.d_query.insert(outcome.d_query.end(), d_x.begin(), d_x.end());
  }
  return outcome;
}

struct LongTensors {
  Tensor output, d_query, d_key, d_value;
};
/// Runs the op on `inputs`: query, key and value [1, n, d] with any row stride.
LongTensors run(const LongCase& c, const LongInputs& in, const std::array<Tensor, 3>& inputs) {
  Tape tape{stream()};
  std::array<Variable, 3> leaves;
  for (std::size_t i = 0; i < 3; ++i) leaves[i] = Variable::leaf(inputs[i]);
  const DType dtype = inputs[0].dtype();
  Variable output;
  if (c.map) {
    ops::LinearAttentionInputs arguments;
    arguments.query = leaves[0], arguments.key = leaves[1], arguments.value = leaves[2];
    if (c.random_projection > 0)
      arguments.constants.random_projection =
          tensor_of(in.random_projection, {c.random_projection, c.d}, accumulate_dtype(dtype));
    ops::LinearAttentionOptions options;
    options.feature_map = *c.map;
    options.causal = c.causal;
    output = ops::linear_attention(tape, arguments, options);
  } else {
    ops::SoftmaxAttentionOptions options;
    options.causal = c.causal;
    output = ops::softmax_attention(tape, leaves[0], leaves[1], leaves[2], options);
  }
  tape.backward({output}, {tensor_of(in.d_output, output.shape(), dtype)});
  return {output.value(), leaves[0].gradient(), leaves[1].gradient(), leaves[2].gradient()};
}

std::array<Tensor, 3> tensors_of(const LongCase& c, const LongInputs& in, DType dtype) {
  const Shape shape{1, c.n, c.d};
  return {tensor_of(in.query, shape, dtype), tensor_of(in.key, shape, dtype), tensor_of(in.value, shape, dtype)};
}

void expect_reference(const LongCase& c, DType dtype) {
  const ::testing::ScopedTrace trace(__FILE__, __LINE__, fmt::format("{}, {}", c.text(), name_of(dtype)));
  const LongInputs in = inputs_of(c, dtype);
  const LongOutcome expected = reference_of(c, in);
  const LongTensors found = run(c, in, tensors_of(c, in, dtype));
  const bool rounded = dtype == DType::bfloat16;
  const double output_bound = rounded ? 0x1p-7 : 3e-4, gradient_bound = rounded ? 0x1p-6 : 6e-4;
  EXPECT_LT(relative_error(rows_of(values_of(found.output), in), expected.output), output_bound);
  std::vector<double> d_query = values_of(found.d_query);
  EXPECT_LT(relative_error(rows_of(d_query, in), expected.d_query), gradient_bound);
  EXPECT_LT(relative_error(values_of(found.d_key), expected.d_key), gradient_bound);
  EXPECT_LT(relative_error(values_of(found.d_value), expected.d_value), gradient_bound);
  for (const std::int64_t row : in.rows) std::fill_n(d_query.begin() + row * c.d, c.d, 0.0);
  EXPECT_EQ(std::count(d_query.begin(), d_query.end(), 0.0), c.n * c.d) << "rows without an output gradient";
}

std::vector<LongCase> cases_of(std::int64_t n) {
  return {{n, true, FeatureMap::elu1},
          {n, false, FeatureMap::elu1},
          {n, true, FeatureMap::favor_positive, 256},
          {n, true, std::nullopt},
          {n, false, std::nullopt}};
}

class ShortSequences : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(ShortSequences);

TEST_P(ShortSequences, MatchLongSequenceReference) {
  for (LongCase c : cases_of(on_sanitized_simulator() ? 150 : on_simulator() ? 321 : 1000)) {
    if (on_simulator() && c.map == FeatureMap::favor_positive) c.random_projection = 40;
    for (const DType dtype : {DType::float32, DType::bfloat16}) expect_reference(c, dtype);
  }
}

constexpr std::int64_t long_sequence = 131072;

/// Not part of the device suites: under memory checkers these tests would take hours.
class CudaLongSequences : public ::testing::TestWithParam<LongCase> {
 protected:
  const Device cuda_{DeviceType::cuda, 0};
  const OnDevice device_{cuda_};
};
std::vector<LongCase> cases_of_hardware() {
  return available({DeviceType::cuda}).empty() ? std::vector<LongCase>{} : cases_of(long_sequence);
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaLongSequences);
INSTANTIATE_TEST_SUITE_P(Hardware, CudaLongSequences, ::testing::ValuesIn(cases_of_hardware()),
                         [](const ::testing::TestParamInfo<LongCase>& info) {
                           return fmt::format("{}_{}", info.param.name(),
                                              info.param.causal ? "causal" : "bidirectional");
                         });

TEST_P(CudaLongSequences, MatchReference) {
  for (const DType dtype : {DType::bfloat16, DType::float32}) expect_reference(GetParam(), dtype);
}

TEST_P(CudaLongSequences, DistantRowsGiveSameBits) {
  constexpr std::int64_t columns = 16448;  // 131,072 rows of this width are more than 2^31 elements
  static_assert(long_sequence * columns > std::int64_t{1} << 31);
  constexpr std::int64_t min_bytes = std::int64_t{8} << 30;
  const GpuDescription description = require_gpu_engine(cuda_.type).describe(cuda_.index);
  if (description.free_bytes < min_bytes) GTEST_SKIP() << description.name << " has less than 8 GiB free";
  const LongCase& c = GetParam();
  const LongInputs in = inputs_of(c, DType::bfloat16);
  const std::array<Tensor, 3> together = tensors_of(c, in, DType::bfloat16);
  const Tensor wide = Tensor::empty({1, long_sequence, columns}, DType::bfloat16, cuda_);
  std::array<Tensor, 3> apart;
  for (std::size_t i = 0; i < 3; ++i) {
    apart[i] = wide.narrow(2, columns - static_cast<std::int64_t>(i + 1) * c.d, c.d);
    ops::add(stream(), apart[i], together[i], GradientMode::overwrite);
  }
  const LongTensors expected = run(c, in, together), found = run(c, in, apart);
  EXPECT_TRUE(same_bits(found.output, expected.output));
  EXPECT_TRUE(same_bits(found.d_query, expected.d_query));
  EXPECT_TRUE(same_bits(found.d_key, expected.d_key));
  EXPECT_TRUE(same_bits(found.d_value, expected.d_value));
}

}  // namespace
}  // namespace furlong::testing
