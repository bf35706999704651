#pragma once
// Shared by the tests of softmax attention: random problems, runs on a tape, comparison with the reference.
#include "framework/ops/attention/softmax/softmax_attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <limits>
#include <random>

#include "framework/autodiff/gradient_check.h"
#include "framework/primitives/cpu_isa.h"
#include "tests/framework/engine_testing.h"
#include "tests/reference/softmax_attention.h"
#include "tests/reference/values.h"

namespace furlong::softmax_testing {

using Case = reference::SoftmaxAttentionCase;

inline std::vector<double> random_values(std::int64_t n, unsigned seed, double deviation = 1.0) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0.0, deviation);
  std::vector<double> values(static_cast<std::size_t>(n));
  for (double& value : values) value = normal(generator);
  return values;
}

/// Returns `values` in `dtype` on the device under test. Replaces them by the rounded values, so that a reference uses
/// the same numbers.
inline Tensor tensor_of(std::vector<double>& values, const Shape& shape, DType dtype) {
  const auto convert = [&]<class T>(std::type_identity<T>) {
    std::vector<T> stored;
    for (double& value : values) {
      stored.push_back(static_cast<T>(static_cast<compute_t<T>>(value)));
      value = static_cast<double>(stored.back());
    }
    return Tensor::from(stored, shape, testing::device());
  };
  if (dtype == DType::float64) return convert(std::type_identity<double>{});
  if (dtype == DType::float32) return convert(std::type_identity<float>{});
  return convert(std::type_identity<bfloat16>{});
}

inline std::vector<double> to_doubles(const Tensor& tensor) {
  std::vector<double> result;
  const auto convert = [&]<class T>(std::type_identity<T>) {
    for (const T value : tensor.to_vector<T>()) result.push_back(static_cast<double>(value));
  };
  if (tensor.dtype() == DType::float64) convert(std::type_identity<double>{});
  if (tensor.dtype() == DType::float32) convert(std::type_identity<float>{});
  if (tensor.dtype() == DType::bfloat16) convert(std::type_identity<bfloat16>{});
  return result;
}

/// Returns the largest finite absolute value.
inline double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) {
    if (std::isfinite(value)) result = std::max(result, std::abs(value));
  }
  return result;
}

/// Expects every element within `absolute` times the largest reference value (or `min_scale` if all are smaller),
/// plus `relative` times its own value.
inline void expect_close(const std::vector<double>& found, const std::vector<double>& expected, double absolute,
                         double relative, const char* what, double min_scale = 1e-290) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  const double scale = std::max(largest(expected), min_scale);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected[i]) continue;  // includes infinities
    ASSERT_LE(std::abs(found[i] - expected[i]), absolute * scale + relative * std::abs(expected[i]))
        << what << "[" << i << "]: " << found[i] << ", expected " << expected[i] << ", scale " << scale;
  }
}

/// Bounds for numbers of order 1: a few hundred roundings in the compute type, and one rounding to the storage type.
/// Tensor cores, and CPUs with bfloat16 products, round weights and score gradients to bfloat16, each by up to 2^-9 of
/// the power of two above it. A sum of such products has the same error relative to the sum of their absolute values,
/// which is up to four times the largest result here.
struct Tolerance {
  double absolute, relative;
};
inline bool rounds_operands(DType dtype) {
  // On the CPU only the code for AVX-512 has such products.
  const bool on_cpu = ops::bfloat16_products() && (hwy::SupportedTargets() & HWY_AVX3) != 0;
  return dtype == DType::bfloat16 && (testing::on_gpu() || on_cpu);
}
inline Tolerance tolerance(DType dtype) {
  if (dtype == DType::float64) return {4e-15, 0};
  if (rounds_operands(dtype)) return {0x1p-8, 0x1p-8};
  return {2e-6, dtype == DType::bfloat16 ? 0x1p-8 : 0};
}

struct Problem {
  Case c;
  std::vector<double> q, k, v, d_output;
  Tensor query, key, value, d_out;  // [batch, n, heads * d]
  ops::SoftmaxAttentionOptions options;
  ops::AttentionMask mask;

  Problem(const Case& c_, DType dtype, double deviation = 1.0) : c(c_) {
    q = random_values(c.batch * c.n_query * c.n_heads * c.d_key, 1, deviation);
    k = random_values(c.batch * c.n_key * c.n_kv_heads * c.d_key, 2, deviation);
    v = random_values(c.batch * c.n_key * c.n_kv_heads * c.d_value, 3);
    d_output = random_values(c.batch * c.n_query * c.n_heads * c.d_value, 4);
    query = tensor_of(q, {c.batch, c.n_query, c.n_heads * c.d_key}, dtype);
    key = tensor_of(k, {c.batch, c.n_key, c.n_kv_heads * c.d_key}, dtype);
    value = tensor_of(v, {c.batch, c.n_key, c.n_kv_heads * c.d_value}, dtype);
    d_out = tensor_of(d_output, {c.batch, c.n_query, c.n_heads * c.d_value}, dtype);
    options = {c.n_heads, c.n_kv_heads, c.causal, c.first_query_position, c.scale, c.window};
    if (!c.keys.empty()) mask.keys = Tensor::from(c.keys, {c.batch, c.n_key}, testing::device());
    if (!c.documents.empty()) mask.documents = Tensor::from(c.documents, {c.batch, c.n_key}, testing::device());
  }
};

using reference::same_bits;

struct Gradients {
  Tensor output, d_query, d_key, d_value;
};
inline Gradients through_tape(const Problem& p) {
  Tape tape{testing::stream()};
  const Variable q = Variable::leaf(p.query), k = Variable::leaf(p.key), v = Variable::leaf(p.value);
  const Variable output = ops::softmax_attention(tape, q, k, v, p.options, p.mask);
  tape.backward({output}, {p.d_out});
  return {output.value(), q.gradient(), k.gradient(), v.gradient()};
}

inline void compare_with_reference(const Problem& p, DType dtype) {
  const auto [absolute, relative] = tolerance(dtype);
  const auto expected = reference::softmax_attention(p.c, p.q, p.k, p.v);
  const Shape rows{p.c.batch, p.c.n_heads, p.c.n_query};
  const Tensor log_sum_exp = Tensor::empty(rows, accumulate_dtype(dtype), testing::device()),
               output = Tensor::empty({p.c.batch, p.c.n_query, p.c.n_heads, p.c.d_value}, dtype, testing::device());
  ops::softmax_attention_forward(testing::stream(), p.query.split_last(p.c.d_key), p.key.split_last(p.c.d_key),
                                 p.value.split_last(p.c.d_value), output, log_sum_exp, p.options, p.mask);
  expect_close(to_doubles(output), expected.output, absolute, relative, "output");
  expect_close(to_doubles(log_sum_exp), expected.log_sum_exp, std::min(absolute, 2e-6), 0, "log_sum_exp", 1.0);

  const Gradients found = through_tape(p);
  EXPECT_TRUE(same_bits(found.output, output.reshape(found.output.shape())));
  // D = dO·O is computed from the stored output. With one key its difference from dO·v, both of order 1, is the whole
  // gradient of the score.
  const auto stored = dtype == DType::bfloat16 ? to_doubles(found.output) : std::vector<double>{};
  const auto gradient = reference::softmax_attention_gradient(p.c, p.q, p.k, p.v, p.d_output, stored);
  const double min_scale = p.c.n_key == 1 || p.c.window == 1 ? 1.0 : 1e-290;
  expect_close(to_doubles(found.d_query), gradient.d_query, 2 * absolute, relative, "d_query", min_scale);
  expect_close(to_doubles(found.d_key), gradient.d_key, 2 * absolute, relative, "d_key", min_scale);
  expect_close(to_doubles(found.d_value), gradient.d_value, 2 * absolute, relative, "d_value");
}

inline std::string text(const Case& c) { return ::testing::PrintToString(c); }

}  // namespace furlong::softmax_testing
