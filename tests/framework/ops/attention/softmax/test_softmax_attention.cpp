#include <gmock/gmock.h>
#include <hwy/targets.h>

#include "framework/core/arena.h"
#include "framework/core/parallel.h"
#include "tests/framework/ops/attention/softmax/softmax_attention_testing.h"
#include "tests/framework/ops/op_testing.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace softmax_testing;

const std::vector<Case>& cases() {
  // batch, n_query, n_key, n_heads, n_kv_heads, d_key, d_value, causal, first_query_position, scale
  static const std::vector<Case> all{
      {1, 1, 1, 1, 1, 1, 1, true, 0, 0},          {1, 1, 1, 1, 1, 1, 1, false, 0, 0},
      {2, 7, 7, 3, 3, 5, 5, true, 0, 0},          {2, 64, 64, 2, 1, 16, 16, true, 0, 0},
      {1, 65, 65, 1, 1, 3, 9, true, 0, 0},        {1, 63, 130, 2, 2, 8, 17, false, 0, 0},
      {3, 33, 1, 2, 2, 4, 4, false, 0, 0},        {1, 201, 201, 4, 2, 24, 40, true, 0, 0},
      {1, 1, 77, 6, 2, 12, 12, true, 76, 0},      {2, 19, 100, 2, 1, 7, 11, true, 81, 0},
      {1, 70, 90, 1, 1, 33, 1, true, 5, 0.3},     {9, 100, 100, 1, 1, 6, 6, true, 0, 0},
      {1, 40, 20, 2, 2, 5, 5, true, 0, 0},        {1, 300, 300, 1, 1, 64, 64, true, 0, 0},
      {1, 260, 300, 2, 1, 65, 63, false, 0, -0.1}};
  return all;
}

class SoftmaxAttention : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(SoftmaxAttention);
class SoftmaxAttentionGradient : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(SoftmaxAttentionGradient);

void expect_definition(const std::vector<Case>& cases, DType dtype) {
  for (const Case& c : cases) {
    const auto tiles = [](std::int64_t n) { return (n + 63) / 64; };
    if (testing::on_simulator() && c.batch * c.n_heads * tiles(c.n_query) * tiles(c.n_key) > 12) continue;
    SCOPED_TRACE(text(c));
    compare_with_reference(Problem(c, dtype), dtype);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(SoftmaxAttention, Float64MatchesDefinition) { expect_definition(cases(), DType::float64); }
TEST_P(SoftmaxAttention, Float32MatchesDefinition) { expect_definition(cases(), DType::float32); }
TEST_P(SoftmaxAttention, Bfloat16MatchesDefinition) { expect_definition(cases(), DType::bfloat16); }

/// Widths below and above those that kernels are compiled for, with rows that consist of whole vectors and rows that do
/// not.
TEST_P(SoftmaxAttention, WideHeadsMatchDefinition) {
  const std::vector<Case> wide{{1, 35, 70, 1, 1, 96, 120, true, 35, 0},
                               {1, 30, 70, 1, 1, 72, 128, false, 0, 0},
                               {1, 33, 66, 1, 1, 200, 256, true, 33, 0},
                               {1, 20, 40, 2, 1, 129, 31, false, 0, 0},
                               {1, 20, 40, 1, 1, 16, 250, true, 20, 0}};
  for (const DType dtype : testing::float_dtypes) expect_definition(wide, dtype);
}

TEST(SoftmaxAttentionTargets, EveryInstructionSetMatchesDefinition) {
  for (std::int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    const std::int64_t target = targets & -targets;
    if ((target & (HWY_AVX3 | HWY_AVX2 | HWY_SSE4)) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
      compare_with_reference(Problem({1, 150, 150, 2, 1, 20, 12, true, 0, 0}, dtype), dtype);
      compare_with_reference(Problem({1, 13, 90, 2, 1, 5, 33, false, 0, 0}, dtype), dtype);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_P(SoftmaxAttentionGradient, MatchesFiniteDifference) {
  std::vector<Case> shapes{{1, 1, 1, 1, 1, 1, 1, true, 0, 0},   {2, 5, 5, 4, 2, 3, 2, true, 0, 0},
                           {1, 66, 66, 2, 1, 3, 3, true, 0, 0}, {1, 9, 67, 1, 1, 4, 5, false, 0, 0},
                           {2, 3, 8, 2, 2, 5, 3, true, 5, 0.7}, {1, 130, 130, 1, 1, 2, 1, true, 0, 0}};
  if (testing::on_simulator()) {
    shapes = {{1, 1, 1, 1, 1, 1, 1, true, 0, 0},
              {1, 4, 4, 2, 1, 3, 2, true, 0, 0},
              {1, 66, 66, 1, 1, 1, 1, true, 0, 0},
              {1, 3, 8, 2, 2, 2, 3, true, 5, 0.7},
              {1, 2, 67, 1, 1, 1, 1, false, 0, -0.4}};
  }
  for (const Case& c : shapes) {
    SCOPED_TRACE(text(c));
    const Problem p(c, DType::float64);
    const auto function = [&](Tape& tape, const std::vector<Variable>& x) {
      return ops::softmax_attention(tape, x[0], x[1], x[2], p.options);
    };
    const GradientCheckResult result = check_gradients(function, {p.query, p.key, p.value});
    // A single key has weight 1 whatever its score, so d_query and d_key are 0 and have no relative error.
    if (c.n_key > 1) {
      EXPECT_LE(result.worst_relative_error, 1e-6) << result.where;
    }
  }
}

TEST_P(SoftmaxAttentionGradient, SingleKeyGetsAllWeightAndNoScoreGradient) {
  const Problem p({1, 4, 1, 1, 1, 3, 2, false, 0, 0}, DType::float64);
  const Gradients g = through_tape(p);
  EXPECT_LE(largest(to_doubles(g.d_query)), 1e-15);
  EXPECT_LE(largest(to_doubles(g.d_key)), 1e-15);
  EXPECT_GT(largest(to_doubles(g.d_value)), 0.1);
}

TEST_P(SoftmaxAttentionGradient, AccumulatesForInputUsedTwice) {
  for (const Case& c : {Case{2, 70, 70, 4, 2, 8, 8, true, 0, 0},
                        Case{8, 20, 20, 2, 1, 8, 8, true, 0, 0}}) {  // with and without segments
    for (const DType dtype : {DType::float64, DType::bfloat16}) {
      const Problem p(c, dtype);
      const Gradients once = through_tape(p);
      Tape tape{testing::stream()};
      const Variable q = Variable::leaf(p.query), k = Variable::leaf(p.key), v = Variable::leaf(p.value);
      const Variable first = ops::softmax_attention(tape, q, k, v, p.options),
                     second = ops::softmax_attention(tape, q, k, v, p.options);
      tape.backward({first, second}, {p.d_out, p.d_out});
      // x + x is exact in bfloat16 if both were rounded; this sum is rounded once more: unit 2^-8.
      const double unit = dtype == DType::bfloat16 ? 0x1p-8 : 1e-15;
      for (const auto& [twice, single] : {std::pair{q.gradient(), once.d_query}, std::pair{k.gradient(), once.d_key},
                                          std::pair{v.gradient(), once.d_value}}) {
        std::vector<double> expected = to_doubles(single);
        for (double& value : expected) value *= 2;
        expect_close(to_doubles(twice), expected, 1e-15, unit, "twice the gradient");
      }
    }
  }
}

TEST_P(SoftmaxAttentionGradient, OneTensorCanBeQueryKeyAndValue) {
  const Problem p(
      testing::on_simulator() ? Case{1, 66, 66, 1, 1, 2, 2, true, 0, 0} : Case{1, 75, 75, 2, 2, 6, 6, true, 0, 0},
      DType::float64);
  const auto function = [&](Tape& tape, const std::vector<Variable>& x) {
    return ops::softmax_attention(tape, x[0], x[0], x[0], p.options);
  };
  const GradientCheckResult result = check_gradients(function, {p.query});
  EXPECT_LE(result.worst_relative_error, 1e-6) << result.where;
}

/// Gradients of parameters are float32, whatever the inputs' type, and may already have values.
TEST_P(SoftmaxAttentionGradient, AccumulatesIntoFloat32Gradients) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Problem p({2, 70, 70, 4, 2, 8, 5, true, 0, 0}, dtype);
    const Gradients expected = through_tape(p);
    const Tensor log_sum_exp = Tensor::empty({2, 4, 70}, DType::float32, testing::device()),
                 output = Tensor::empty({2, 70, 4, 5}, dtype, testing::device());
    const Tensor query = p.query.split_last(8), key = p.key.split_last(8), value = p.value.split_last(5);
    ops::softmax_attention_forward(testing::stream(), query, key, value, output, log_sum_exp, p.options);
    std::vector<double> before[3];
    GradientTarget targets[3];
    for (int i = 0; i < 3; ++i) {
      const Shape shape = (i == 0 ? query : i == 1 ? key : value).shape();
      before[i] = random_values(shape.elements(), 9);
      targets[i] = {tensor_of(before[i], shape, DType::float32), GradientMode::accumulate};
    }
    ops::softmax_attention_backward(testing::stream(), query, key, value, output, log_sum_exp, p.d_out.split_last(5),
                                    targets[0], targets[1], targets[2], p.options);
    for (int i = 0; i < 3; ++i) {
      std::vector<double> sum = to_doubles(i == 0 ? expected.d_query : i == 1 ? expected.d_key : expected.d_value);
      const double rounded = dtype == DType::bfloat16 ? 0x1p-8 * largest(sum) : 0;  // `expected` was stored in bfloat16
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += before[i][j];
      expect_close(to_doubles(targets[i].tensor), sum, rounded / largest(sum) + 1e-7, 0, "gradient");
    }
  }
}

TEST_P(SoftmaxAttentionGradient, UnwantedGradientsAreSkipped) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Problem p({1, 90, 90, 2, 1, 8, 5, true, 0, 0}, dtype);
    const Gradients all = through_tape(p);
    for (int wanted = 1; wanted < 8; ++wanted) {
      Tape tape{testing::stream()};
      const auto input = [&](int bit, const Tensor& value) {
        return wanted & bit ? Variable::leaf(value) : Variable(value);
      };
      const Variable q = input(1, p.query), k = input(2, p.key), v = input(4, p.value);
      const Variable output = ops::softmax_attention(tape, q, k, v, p.options);
      tape.backward({output}, {p.d_out});
      for (const auto& [variable, gradient] :
           {std::pair{q, all.d_query}, std::pair{k, all.d_key}, std::pair{v, all.d_value}}) {
        if (variable.requires_gradient()) {
          EXPECT_TRUE(same_bits(variable.gradient(), gradient)) << wanted;
        } else {
          EXPECT_FALSE(variable.gradient().defined());
        }
      }
    }
  }
}

TEST_P(SoftmaxAttention, FusedTensorViewsGiveSameBits) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
    const Problem p({2, 77, 77, 4, 2, 8, 8, true, 0, 0}, dtype);
    const Gradients apart = through_tape(p);
    const std::int64_t wide = 32, narrow = 16, all = wide + 2 * narrow;
    std::vector<double> fused(static_cast<std::size_t>(2 * 77 * all));
    for (std::int64_t row = 0; row < 2 * 77; ++row) {
      std::copy_n(p.q.begin() + row * wide, wide, fused.begin() + row * all);
      std::copy_n(p.k.begin() + row * narrow, narrow, fused.begin() + row * all + wide);
      std::copy_n(p.v.begin() + row * narrow, narrow, fused.begin() + row * all + wide + narrow);
    }
    Tape tape{testing::stream()};
    const Variable qkv = Variable::leaf(tensor_of(fused, {2, 77, all}, dtype));
    const auto parts = tape.split_last(qkv, {wide, narrow, narrow});
    const Variable output = ops::softmax_attention(tape, parts[0], parts[1], parts[2], p.options);
    tape.backward({output}, {p.d_out});
    EXPECT_TRUE(same_bits(output.value(), apart.output));
    const std::vector<double> gradient = to_doubles(qkv.gradient());
    const auto columns = [&](std::int64_t first, std::int64_t width) {
      std::vector<double> result;
      for (std::int64_t row = 0; row < 2 * 77; ++row)
        result.insert(result.end(), gradient.begin() + row * all + first, gradient.begin() + row * all + first + width);
      return result;
    };
    EXPECT_EQ(columns(0, wide), to_doubles(apart.d_query));
    EXPECT_EQ(columns(wide, narrow), to_doubles(apart.d_key));
    EXPECT_EQ(columns(wide + narrow, narrow), to_doubles(apart.d_value));
  }
}

TEST(SoftmaxAttentionOnCpu, BitsAreIndependentOfThreadCount) {
  const int before = thread_count();
  for (const Case& c : {Case{1, 500, 500, 1, 1, 16, 16, true, 0, 0}, Case{1, 300, 300, 6, 3, 8, 8, false, 0, 0},
                        Case{2, 200, 200, 8, 8, 8, 8, true, 0, 0}}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      const Problem p(c, dtype);
      set_thread_count(1);
      const Gradients one = through_tape(p);
      for (const int threads : {2, 3, 5}) {
        set_thread_count(threads);
        const Gradients several = through_tape(p);
        EXPECT_TRUE(same_bits(one.output, several.output)) << threads;
        EXPECT_TRUE(same_bits(one.d_query, several.d_query)) << threads;
        EXPECT_TRUE(same_bits(one.d_key, several.d_key)) << threads;
        EXPECT_TRUE(same_bits(one.d_value, several.d_value)) << threads;
      }
    }
  }
  set_thread_count(before);
}

/// Replaces later tokens, also by infinities and NaN; every earlier output must keep its bits.
TEST_P(SoftmaxAttention, LaterTokensChangeNoEarlierBit) {
  const bool few = testing::on_simulator();
  const std::int64_t n = few ? 140 : 200, heads = few ? 1 : 2, width = heads * 20;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
    const Problem p({1, n, n, heads, heads, 20, 20, true, 0, 0}, dtype);
    Tape tape{testing::stream()};
    const auto attend = [&](const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v) {
      auto a = q, b = k, c = v;
      const Shape shape{1, n, width};
      return ops::softmax_attention(tape, Variable(tensor_of(a, shape, dtype)), Variable(tensor_of(b, shape, dtype)),
                                    Variable(tensor_of(c, shape, dtype)), p.options)
          .value();
    };
    const Tensor before = attend(p.q, p.k, p.v);
    const std::vector<std::int64_t> places{1, 2, 15, 16, 17, 40, 63, 64, 65, 100, 128, 150, 199},
        few_places{1, 17, 64, 135};
    for (const std::int64_t from : few ? few_places : places) {
      for (const double replacement :
           {-3.5, 1e30, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        auto q = p.q, k = p.k, v = p.v;
        for (auto* values : {&q, &k, &v}) std::fill(values->begin() + from * width, values->end(), replacement);
        EXPECT_TRUE(same_bits(attend(q, k, v).narrow(1, 0, from), before.narrow(1, 0, from)))
            << from << " " << replacement;
      }
    }
    EXPECT_FALSE(same_bits(attend(p.k, p.k, p.v).narrow(1, 5, 1), before.narrow(1, 5, 1)));  // the comparison can fail
  }
}

TEST_P(SoftmaxAttention, ShorterSequenceGivesSameBits) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Problem p({1, 190, 190, 1, 1, 12, 12, true, 0, 0}, dtype);
    Tape tape{testing::stream()};
    const Tensor whole =
        ops::softmax_attention(tape, Variable(p.query), Variable(p.key), Variable(p.value), p.options).value();
    for (const std::int64_t n : {1, 30, 64, 65, 127, 189}) {
      const auto first = [&](const Tensor& t) { return Variable(t.narrow(1, 0, n)); };
      const Tensor short_one =
          ops::softmax_attention(tape, first(p.query), first(p.key), first(p.value), p.options).value();
      EXPECT_TRUE(same_bits(short_one, whole.narrow(1, 0, n))) << n;
    }
  }
}

/// A prompt in one call, then token by token with the growing cache: narrowed views of larger tensors.
TEST_P(SoftmaxAttention, KeyValueCacheMatchesSingleCall) {
  const std::int64_t n = testing::on_simulator() ? 80 : 150, prompt = 71, d = 16;
  const Problem p({2, n, n, 4, 2, d, d, true, 0, 0}, DType::float32);
  Tape tape{testing::stream()};
  const Tensor whole =
      ops::softmax_attention(tape, Variable(p.query), Variable(p.key), Variable(p.value), p.options).value();
  const std::vector<double> expected = to_doubles(whole);
  double worst = 0;
  for (std::int64_t first = 0; first < n;) {
    const std::int64_t tokens = first == 0 ? prompt : first == prompt ? 3 : 1, seen = first + tokens;
    const Tensor output = Tensor::empty({2, tokens, 4, d}, DType::float32, testing::device());
    auto options = p.options;
    options.first_query_position = first;
    ops::softmax_attention_forward(testing::stream(), p.query.narrow(1, first, tokens).split_last(d),
                                   p.key.narrow(1, 0, seen).split_last(d), p.value.narrow(1, 0, seen).split_last(d),
                                   output, Tensor{}, options);
    const std::vector<double> found = to_doubles(output);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t i = 0; i < tokens * 4 * d; ++i) {
        const double difference = found[static_cast<std::size_t>(b * tokens * 4 * d + i)] -
                                  expected[static_cast<std::size_t>((b * n + first) * 4 * d + i)];
        worst = std::max(worst, std::abs(difference));
      }
    }
    first = seen;
  }
  EXPECT_LE(worst, 1e-6 * largest(expected));
}

/// Non-finite values affect the outputs of queries to which they are visible, in their own column, and nothing else.
TEST_P(SoftmaxAttention, NonFiniteValuesAffectOnlyVisibleRows) {
  const std::int64_t n = 140;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : testing::float_dtypes) {
    for (const std::int64_t window : {0, 30}) {
      Problem p({1, n, n, 1, 1, 8, 9, true, 0, 0, window, {}, {}}, dtype);
      p.v[20 * 9 + 3] = infinity;
      p.v[70 * 9 + 3] = -infinity;
      p.v[75 * 9 + 8] = std::numeric_limits<double>::quiet_NaN();
      p.v[130 * 9 + 0] = -infinity;
      p.value = tensor_of(p.v, p.value.shape(), dtype);
      Tape tape{testing::stream()};
      const std::vector<double> found = to_doubles(
          ops::softmax_attention(tape, Variable(p.query), Variable(p.key), Variable(p.value), p.options).value());
      const auto sees = [&](std::int64_t i, std::int64_t j) { return p.c.sees(0, i, j); };
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t f = 0; f < 9; ++f) {
          const double value = found[static_cast<std::size_t>(i * 9 + f)];
          const bool plus = f == 3 && sees(i, 20), minus = (f == 3 && sees(i, 70)) || (f == 0 && sees(i, 130)),
                     nan = f == 8 && sees(i, 75);
          EXPECT_EQ(std::isnan(value), nan || (plus && minus)) << i << " " << f;
          EXPECT_EQ(value == infinity, plus && !minus) << i << " " << f;
          EXPECT_EQ(value == -infinity, minus && !plus) << i << " " << f;
        }
      }
    }
  }
}

/// Rows of norm 40 give scores up to 200; an exponential without subtracting the maximum overflows at 88. An error in a
/// score is an error in an exponent: 200 x 2^-24 x the growth of a sum of 64 products.
TEST_P(SoftmaxAttention, LargeScoresKeepPrecision) {
  Problem p({1, 200, 200, 1, 1, 64, 8, true, 0, 0}, DType::float32, 5.0);
  for (std::size_t i = 0; i < 64; ++i) p.k[5 * 64 + i] *= 1000;  // one key a thousand times larger than the rest
  p.key = tensor_of(p.k, p.key.shape(), DType::float32);
  const auto expected = reference::softmax_attention(p.c, p.q, p.k, p.v);
  const Gradients found = through_tape(p);
  expect_close(to_doubles(found.output), expected.output, 1e-4, 0, "output");
  for (const Tensor& gradient : {found.d_query, found.d_key, found.d_value}) {
    for (const double value : to_doubles(gradient)) ASSERT_TRUE(std::isfinite(value));
  }
}

/// The first key of 128 tiles has the largest score, so each later tile multiplies the sum so far by 1. If the factor
/// were 2 to the rounding error of a score near 300 (up to 2^-16), the sums would have errors of up to 1e-3.
TEST_P(SoftmaxAttention, UnchangedMaximumKeepsSumExact) {
  constexpr std::size_t n_query = 8, n_key = 8192;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    SCOPED_TRACE(name_of(dtype));
    Problem p({1, n_query, n_key, 1, 1, 2, 2, false, 0, 1.0}, dtype);
    for (std::size_t i = 0; i < n_query; ++i) {
      p.q[2 * i] = 200.0 + static_cast<double>(i);
      p.q[2 * i + 1] = 1;
    }
    for (std::size_t j = 0; j < n_key; ++j) {  // the first score is 200 + i, the others are smaller by 4 to 6
      p.k[2 * j] = 1;
      p.k[2 * j + 1] = j == 0 ? 0 : -4 - 0.5 * static_cast<double>(j % 5);
    }
    p.query = tensor_of(p.q, p.query.shape(), dtype);
    p.key = tensor_of(p.k, p.key.shape(), dtype);
    const auto expected = reference::softmax_attention(p.c, p.q, p.k, p.v);
    const Tensor log_sum_exp = Tensor::empty({1, 1, n_query}, DType::float32, testing::device()),
                 output = Tensor::empty({1, n_query, 1, 2}, dtype, testing::device());
    ops::softmax_attention_forward(testing::stream(), p.query.split_last(2), p.key.split_last(2), p.value.split_last(2),
                                   output, log_sum_exp, p.options, p.mask);
    const std::vector<double> found = to_doubles(log_sum_exp);
    for (std::size_t i = 0; i < n_query; ++i) EXPECT_NEAR(found[i], expected.log_sum_exp[i], 5e-5) << i;
    expect_close(to_doubles(output), expected.output, dtype == DType::bfloat16 ? 0x1p-8 : 2e-6, 0, "output", 1.0);
  }
}

TEST_P(SoftmaxAttention, EqualScoresGiveMean) {
  Problem p({1, 130, 130, 1, 1, 4, 4, true, 0, 0}, DType::float32);
  std::fill(p.k.begin(), p.k.end(), 0.0);
  p.key = tensor_of(p.k, p.key.shape(), DType::float32);
  std::vector<double> mean, sum(4, 0.0);
  for (std::size_t i = 0; i < 130; ++i) {
    for (std::size_t f = 0; f < 4; ++f) mean.push_back((sum[f] += p.v[i * 4 + f]) / static_cast<double>(i + 1));
  }
  expect_close(to_doubles(through_tape(p).output), mean, 5e-7, 0, "output");
}

TEST(SoftmaxAttentionOnCpu, ExtraMemoryIsLinearInLength) {
  const auto extra = [](std::int64_t n) {
    const Problem p({1, n, n, 1, 1, 16, 16, true, 0, 0}, DType::float32);
    const std::int64_t before = arena(Device{}).counters().bytes_in_use;
    arena(Device{}).reset_peak();
    through_tape(p);
    return arena(Device{}).counters().peak_bytes - before;
  };
  const std::int64_t shorter = extra(1024), longer = extra(4096);
  EXPECT_LE(longer, 4 * shorter + 4096);
  EXPECT_LT(longer, 4096 * 4096 * 4 / 4);
}

TEST(SoftmaxAttentionOnCpu, ShapeOnlyDeviceAllocatesTheSame) {
  const auto allocations = [](const Device& device) {
    const Arena& home = arena(device);
    Tape tape{Stream{device}};
    const auto input = [&](std::int64_t width) {
      return Variable::leaf(Tensor::empty({2, 100, width}, DType::float32, device));
    };
    const Variable q = input(32), k = input(16), v = input(16);
    const Tensor d_output = Tensor::empty({2, 100, 32}, DType::float32, device);
    if (device.is_cpu()) {
      for (const Tensor& tensor : {q.value(), k.value(), v.value(), d_output}) tensor.fill_zero();
    }
    const ArenaCounters before = home.counters();
    arena(device).reset_peak();
    const Variable output = ops::softmax_attention(tape, q, k, v, {4, 2, true, 0, 0});
    tape.backward({output}, {d_output});
    const ArenaCounters after = home.counters();
    return std::pair{after.allocations - before.allocations, after.peak_bytes - before.bytes_in_use};
  };
  EXPECT_EQ(allocations(Device{}), allocations(Device{DeviceType::shape_only, 0}));
}

TEST_P(SoftmaxAttention, RejectsHeadsWiderThanKernelLimit) {
  const auto attend = [](std::int64_t d_key, std::int64_t d_value) {
    const Problem p({1, 2, 2, 1, 1, d_key, d_value, true, 0, 0}, DType::float32);
    return through_tape(p);
  };
  EXPECT_NO_THROW(attend(256, 256));
  for (const auto& [d_key, d_value] : {std::pair{257, 8}, std::pair{8, 300}}) {
    if (!testing::on_gpu()) {
      EXPECT_NO_THROW(attend(d_key, d_value));
      continue;
    }
    const std::string message = testing::message_of<UserError>([&] { attend(d_key, d_value); });
    EXPECT_THAT(message, ::testing::HasSubstr(fmt::format("{} wide", std::max(d_key, d_value))));
    EXPECT_THAT(message, ::testing::HasSubstr("at most 256"));
  }
}

TEST(SoftmaxAttentionOnCpu, RejectsMismatchedInputs) {
  Tape tape{Stream{}};
  const auto tensor = [](std::int64_t n, std::int64_t width, DType dtype = DType::float32) {
    return Variable(Tensor::zeros({1, n, width}, dtype));
  };
  const auto attend = [&](const Variable& q, const Variable& k, const Variable& v,
                          const ops::SoftmaxAttentionOptions& options) {
    return ops::softmax_attention(tape, q, k, v, options);
  };
  EXPECT_NO_THROW(attend(tensor(4, 8), tensor(4, 4), tensor(4, 6), {4, 2, true, 0, 0}));
  EXPECT_THROW(attend(tensor(4, 8), tensor(4, 4), tensor(4, 4), {4, 3, true, 0, 0}), ContractError);  // 4 heads over 3
  EXPECT_THROW(attend(tensor(4, 9), tensor(4, 4), tensor(4, 4), {4, 2, true, 0, 0}),
               ContractError);  // 9 columns for 4 heads
  EXPECT_THROW(attend(tensor(4, 8), tensor(4, 6), tensor(4, 4), {4, 2, true, 0, 0}), ContractError);  // widths 2 and 3
  EXPECT_THROW(attend(tensor(4, 8), tensor(4, 4), tensor(5, 4), {4, 2, true, 0, 0}),
               ContractError);  // 4 keys, 5 values
  EXPECT_THROW(attend(tensor(4, 8), tensor(4, 4, DType::bfloat16), tensor(4, 4), {4, 2, true, 0, 0}),
               ContractError);  // dtypes
  EXPECT_THROW(attend(tensor(4, 8), tensor(4, 4), tensor(4, 4), {4, 2, true, -1, 0}),
               ContractError);  // a position below 0
  EXPECT_THROW(attend(tensor(4, 8), tensor(0, 4), tensor(0, 4), {4, 2, false, 0, 0}),
               ContractError);  // nothing to attend to
}

}  // namespace
}  // namespace furlong
