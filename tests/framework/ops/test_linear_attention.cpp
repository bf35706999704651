#include <gtest/gtest.h>

#include <cstring>

#include "framework/autodiff/gradient_check.h"
#include "framework/core/parallel.h"
#include "framework/ops/linear_attention.h"
#include "layers/attention/directions.h"
#include "tests/reference/linear_attention.h"

namespace furlong {
namespace {

using ops::FeatureMap;
using ops::LinearAttentionOptions;

std::vector<double> normal(std::int64_t n, std::uint32_t stream, double scale = 1) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    values[static_cast<std::size_t>(i)] = scale * random_normal({7, 0, stream}, static_cast<std::uint64_t>(i));
  return values;
}

template <class T>
Tensor tensor(const std::vector<double>& values, const Shape& shape) {
  std::vector<T> converted;
  for (double value : values) converted.push_back(static_cast<T>(static_cast<compute_t<T>>(value)));
  return Tensor::from(converted, shape);
}
template <class T>
std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> values;
  for (T value : tensor.to_vector<T>()) values.push_back(static_cast<double>(value));
  return values;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (double value : values) most = std::isfinite(value) ? std::max(most, std::fabs(value)) : HUGE_VAL;
  return most;
}
double relative_error(const std::vector<double>& found, const std::vector<double>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    worst = std::isfinite(found[i]) ? std::max(worst, std::fabs(found[i] - expected[i])) : HUGE_VAL;
  return worst / largest(expected);
}

struct Problem {
  std::int64_t batch = 1, n = 1, n_key = 1, d = 4, d_value = 4, m = 8;
  LinearAttentionOptions options;
  std::vector<double> query, key, value, omega;
  Shape query_shape() const { return {batch, n, options.n_heads * d}; }
  Shape key_shape() const { return {batch, n_key, options.n_kv_heads * d}; }
  Shape value_shape() const { return {batch, n_key, options.n_kv_heads * d_value}; }
};

Problem problem(FeatureMap map, bool causal, std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t n, std::int64_t d,
                std::int64_t d_value, std::int64_t m, std::int64_t chunk, double scale = 1) {
  Problem p{batch, n, causal ? n : n + 3, d, d_value, map == FeatureMap::elu1 ? d : m, {heads, kv_heads, map, causal, chunk}, {}, {},
            {},    {}};
  p.query = normal(p.query_shape().elements(), 1, scale);
  p.key = normal(p.key_shape().elements(), 2, scale);
  p.value = normal(p.value_shape().elements(), 3);
  if (map == FeatureMap::favor_positive) {
    for (float w : layers::draw_directions(layers::DirectionsKind::orthogonal, m, d, {11, 0, 4})) p.omega.push_back(w);
  }
  return p;
}

template <class T>
Tensor directions_of(const Problem& p) {
  return p.omega.empty() ? Tensor{} : tensor<compute_t<T>>(p.omega, {p.m, p.d});
}

/// Inputs rounded to T, so that the reference sees what the op sees.
template <class T>
std::vector<double> rounded(const std::vector<double>& values) {
  std::vector<double> result;
  for (double value : values) result.push_back(static_cast<double>(static_cast<T>(static_cast<compute_t<T>>(value))));
  return result;
}

std::vector<double> head_of(const std::vector<double>& values, std::int64_t b, std::int64_t n, std::int64_t heads, std::int64_t head,
                            std::int64_t d) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t c = 0; c < d; ++c) result.push_back(values[static_cast<std::size_t>(((b * n + i) * heads + head) * d + c)]);
  }
  return result;
}

template <class T>
std::vector<double> reference_of(const Problem& p) {
  const auto query = rounded<T>(p.query), key = rounded<T>(p.key), value = rounded<T>(p.value);
  const auto features = p.omega.empty() ? reference::elu1(p.d) : reference::favor_positive(p.d, p.omega);
  const std::int64_t heads = p.options.n_heads, kv_heads = p.options.n_kv_heads;
  std::vector<double> output(static_cast<std::size_t>(p.batch * p.n * heads * p.d_value));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t g = h / (heads / kv_heads);
      const auto one = reference::linear_attention(head_of(query, b, p.n, heads, h, p.d), head_of(key, b, p.n_key, kv_heads, g, p.d),
                                                   head_of(value, b, p.n_key, kv_heads, g, p.d_value), p.n, p.n_key, p.d, p.d_value,
                                                   p.options.causal, features);
      for (std::int64_t i = 0; i < p.n; ++i) {
        for (std::int64_t c = 0; c < p.d_value; ++c)
          output[static_cast<std::size_t>(((b * p.n + i) * heads + h) * p.d_value + c)] = one[static_cast<std::size_t>(i * p.d_value + c)];
      }
    }
  }
  return output;
}

struct Outcome {
  std::vector<double> output, d_query, d_key, d_value;
};
template <class T>
Outcome run(const Problem& p) {
  Tape tape{Stream{}};
  const Variable query = Variable::leaf(tensor<T>(p.query, p.query_shape())), key = Variable::leaf(tensor<T>(p.key, p.key_shape())),
                 value = Variable::leaf(tensor<T>(p.value, p.value_shape()));
  const Variable output = ops::linear_attention(tape, query, key, value, directions_of<T>(p), p.options);
  const Tensor d_output = tensor<T>(normal(output.shape().elements(), 5), output.shape());
  tape.backward({output}, {d_output});
  return {doubles<T>(output.value()), doubles<T>(query.gradient()), doubles<T>(key.gradient()), doubles<T>(value.gradient())};
}

struct Shapes {
  std::int64_t batch, heads, kv_heads, n, d, d_value, m, chunk;
};
const std::vector<Shapes> odd_shapes{{1, 1, 1, 1, 1, 1, 1, 16},     {2, 1, 1, 1, 8, 8, 24, 64},    {1, 2, 1, 17, 5, 3, 7, 16},
                                     {2, 3, 3, 33, 16, 16, 32, 16}, {1, 4, 2, 70, 12, 20, 19, 64}, {1, 1, 1, 129, 64, 64, 100, 64}};

class EveryFeatureMap : public ::testing::TestWithParam<std::tuple<FeatureMap, bool>> {};
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryFeatureMap,
                         ::testing::Combine(::testing::ValuesIn([] {
                                              std::vector<FeatureMap> maps;
                                              for (const auto& info : ops::feature_maps()) maps.push_back(info.map);
                                              return maps;
                                            }()),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(ops::feature_map_info(std::get<0>(info.param)).name) +
                                  (std::get<1>(info.param) ? "_causal" : "_bidirectional");
                         });

TEST_P(EveryFeatureMap, ForwardEqualsTheDefinition) {
  const auto [map, causal] = GetParam();
  for (const Shapes& s : odd_shapes) {
    const Problem p = problem(map, causal, s.batch, s.heads, s.kv_heads, s.n, s.d, s.d_value, s.m, s.chunk);
    EXPECT_LT(relative_error(run<double>(p).output, reference_of<double>(p)), 1e-13) << s.n;
    EXPECT_LT(relative_error(run<float>(p).output, reference_of<float>(p)), 3e-6) << s.n;
    // Inputs are the same 16-bit values, so what is left is the rounding of the output: half an ulp of 8 significant bits is 2^-8.
    EXPECT_LT(relative_error(run<bfloat16>(p).output, reference_of<bfloat16>(p)), 0x1p-8 * 1.01) << s.n;
  }
}

TEST_P(EveryFeatureMap, GradientsAgreeWithFiniteDifferences) {
  const auto [map, causal] = GetParam();
  for (const Shapes& s :
       std::vector<Shapes>{{1, 1, 1, 1, 3, 2, 4, 16}, {1, 2, 1, 5, 3, 4, 5, 16}, {2, 2, 2, 19, 4, 3, 9, 16}, {1, 1, 1, 37, 2, 2, 3, 8}}) {
    Problem p = problem(map, causal, s.batch, s.heads, s.kv_heads, s.n, s.d, s.d_value, s.m, s.chunk);
    for (auto* values : {&p.query, &p.key}) {
      for (double& value : *values) value = std::fabs(value) < 0.01 ? value + 0.05 : value;  // elu has a kink in its second derivative at 0
    }
    const Tensor omega = directions_of<double>(p);
    const auto options = p.options;
    const GradientCheckResult result = check_gradients(
        [&](Tape& tape, const std::vector<Variable>& in) { return ops::linear_attention(tape, in[0], in[1], in[2], omega, options); },
        {tensor<double>(p.query, p.query_shape()), tensor<double>(p.key, p.key_shape()), tensor<double>(p.value, p.value_shape())});
    EXPECT_LT(result.worst_relative_error, 1e-7) << result.where << " at n = " << s.n;
  }
}

TEST_P(EveryFeatureMap, FloatGradientsStayCloseToDoubleAtLargeNorms) {
  const auto [map, causal] = GetParam();
  for (const double norm : {1.0, 8.0, 20.0, 40.0}) {
    // Norm of a Gaussian row of d = 64 entries of deviation s is about 8 s.
    const Problem p = problem(map, causal, 1, 1, 1, 200, 64, 32, 128, 64, norm / 8);
    Problem q = p;
    q.query = rounded<float>(p.query), q.key = rounded<float>(p.key), q.value = rounded<float>(p.value);
    const Outcome found = run<float>(q), expected = run<double>(q);
    EXPECT_LT(relative_error(found.output, expected.output), 1e-4) << norm;
    EXPECT_LT(relative_error(found.d_query, expected.d_query), 1e-4) << norm;
    EXPECT_LT(relative_error(found.d_key, expected.d_key), 1e-4) << norm;
    EXPECT_LT(relative_error(found.d_value, expected.d_value), 1e-4) << norm;
  }
}

TEST_P(EveryFeatureMap, OppositeKeysAndAHugeKeyStayFinite) {
  const auto [map, causal] = GetParam();
  for (const double scale : {1.0, 5.0, 10.0}) {
    Problem p = problem(map, causal, 1, 1, 1, 150, 64, 16, 128, 64, scale);
    for (std::size_t i = 0; i < p.query.size(); ++i) p.key[i] = -static_cast<double>(static_cast<float>(p.query[i]));
    for (std::int64_t c = 0; c < 64; ++c) p.key[static_cast<std::size_t>(40 * 64 + c)] *= 1000;
    p.query = rounded<float>(p.query), p.key = rounded<float>(p.key), p.value = rounded<float>(p.value);
    const Outcome found = run<float>(p), expected = run<double>(p);
    EXPECT_LT(relative_error(expected.output, reference_of<float>(p)), 1e-10) << scale;
    EXPECT_LT(relative_error(found.output, expected.output), 1e-4) << scale;
    EXPECT_LT(relative_error(found.d_value, expected.d_value), 1e-4) << scale;
    EXPECT_LT(largest(found.d_query), HUGE_VAL) << scale;
    EXPECT_LT(largest(found.d_key), HUGE_VAL) << scale;
  }
}

TEST_P(EveryFeatureMap, ChunkSizeAndThreadsChangeNothingButRounding) {
  const auto [map, causal] = GetParam();
  Problem p = problem(map, causal, 2, 2, 1, 100, 8, 8, 16, 16);
  const Outcome small = run<double>(p);
  for (const std::int64_t chunk : {1, 7, 64, 256}) {
    p.options.chunk_size = chunk;
    const Outcome other = run<double>(p);
    EXPECT_LT(relative_error(other.output, small.output), 1e-13) << chunk;
    EXPECT_LT(relative_error(other.d_query, small.d_query), 1e-12) << chunk;
    EXPECT_LT(relative_error(other.d_key, small.d_key), 1e-12) << chunk;
    EXPECT_LT(relative_error(other.d_value, small.d_value), 1e-12) << chunk;
  }
  const int before = thread_count();
  set_thread_count(1);
  const Outcome one = run<float>(p);
  set_thread_count(4);
  const Outcome four = run<float>(p);
  set_thread_count(before);
  EXPECT_EQ(one.output, four.output);
  EXPECT_EQ(one.d_query, four.d_query);
  EXPECT_EQ(one.d_key, four.d_key);
  EXPECT_EQ(one.d_value, four.d_value);
}

class EveryCausalFeatureMap : public ::testing::TestWithParam<FeatureMap> {};
INSTANTIATE_TEST_SUITE_P(LinearAttention, EveryCausalFeatureMap, ::testing::Values(FeatureMap::elu1, FeatureMap::favor_positive),
                         [](const auto& info) { return std::string(ops::feature_map_info(info.param).name); });

TEST_P(EveryCausalFeatureMap, ALaterTokenChangesNoEarlierBit) {
  const std::int64_t n = 150, d = 16;
  for (const std::int64_t cut : {1, 63, 64, 100, 149}) {
    for (const double factor : {-40.0, HUGE_VAL, std::nan("")}) {
      Problem p = problem(GetParam(), true, 1, 2, 2, n, d, d, 32, 64, 3);
      const std::vector<double> before = run<float>(p).output;
      for (std::int64_t i = cut * 2 * d; i < n * 2 * d; ++i) {
        for (auto* values : {&p.query, &p.key, &p.value}) (*values)[static_cast<std::size_t>(i)] *= factor;
      }
      const std::vector<double> after = run<float>(p).output;
      EXPECT_EQ(std::memcmp(before.data(), after.data(), static_cast<std::size_t>(cut * 2 * d) * sizeof(double)), 0)
          << cut << ", " << factor;
      EXPECT_NE(before, after);
    }
  }
}

TEST_P(EveryCausalFeatureMap, ANaNReachesItsOwnOutputAndAllLaterOnes) {
  const std::int64_t n = 100, d = 8;
  for (const int which : {0, 1, 2}) {
    Problem p = problem(GetParam(), true, 1, 1, 1, n, d, d, 16, 64);
    auto& values = which == 0 ? p.query : which == 1 ? p.key : p.value;
    values[static_cast<std::size_t>(20 * d + 3)] = std::nan("");
    const std::vector<double> output = run<float>(p).output;
    for (std::int64_t i = 0; i < n; ++i) {
      const bool reached = which == 0 ? i == 20 : i >= 20;
      EXPECT_EQ(std::isnan(output[static_cast<std::size_t>(i * d + 3)]), reached) << "input " << which << ", row " << i;
    }
  }
}

TEST_P(EveryCausalFeatureMap, RecurrentEqualsParallel) {
  const std::int64_t n = 131;
  for (const double scale : {1.0, 5.0}) {
    const Problem p = problem(GetParam(), true, 2, 4, 2, n, 16, 16, 40, 64, scale);
    const Tensor query = tensor<float>(p.query, p.query_shape()), key = tensor<float>(p.key, p.key_shape()),
                 value = tensor<float>(p.value, p.value_shape());
    const std::vector<double> parallel = run<float>(p).output;
    for (const std::int64_t prompt : {0, 1, 70}) {
      auto state = ops::LinearAttentionState::empty(2, 4, p.m, 16, DType::float32, Device{});
      std::vector<double> found(parallel.size());
      for (std::int64_t t = 0; t < n;) {
        const std::int64_t count = t == 0 && prompt > 0 ? prompt : 1;
        const Tensor out = ops::linear_attention_continue(Stream{}, query.narrow(1, t, count), key.narrow(1, t, count),
                                                          value.narrow(1, t, count), directions_of<float>(p), p.options, state);
        const auto part = doubles<float>(out);
        for (std::int64_t b = 0; b < 2; ++b) {
          std::copy_n(part.begin() + b * count * 64, count * 64, found.begin() + (b * n + t) * 64);
        }
        t += count;
      }
      EXPECT_LT(relative_error(found, parallel), 1e-5) << "prompt " << prompt << ", scale " << scale;
    }
  }
}

TEST(LinearAttention, GradientsGoThroughColumnRangesOfOneTensor) {
  // The fused projection of a model: three views of one tensor, used twice so that the second gradient is added.
  const Problem p = problem(FeatureMap::favor_positive, true, 1, 2, 2, 9, 4, 4, 8, 8);
  const Tensor omega = directions_of<double>(p);
  const auto result = check_gradients(
      [&](Tape& tape, const std::vector<Variable>& in) {
        const Variable fused = ops::linear_attention(
            tape, in[0], in[0], in[0], omega, {6, 6, FeatureMap::favor_positive, true, 4});  // so that the split is of a recorded value
        const auto parts = tape.split_last(fused, {8, 8, 8});
        const Variable once = ops::linear_attention(tape, parts[0], parts[1], parts[2], omega, p.options);
        return ops::linear_attention(tape, once, parts[1], parts[2], omega, p.options);
      },
      {tensor<double>(normal(9 * 24, 9), {1, 9, 24})});
  EXPECT_LT(result.worst_relative_error, 1e-8) << result.where;
}

}  // namespace
}  // namespace furlong
