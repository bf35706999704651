#include "framework/ops/dense/pooling.h"

#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "framework/primitives/arithmetic.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;
using ops::Pooling;

class Pool : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Pool);
class PairFeatures : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(PairFeatures);

/// A mask whose first row keeps no position, whose second keeps all, and whose others are mixed.
Tensor mask_of(std::int64_t batch, std::int64_t n) {
  auto values = integer_tensor({batch, n}, 0, 2, "mask").to_vector<std::int32_t>();
  std::fill_n(values.begin(), n, 0);
  if (batch > 1) std::fill_n(values.begin() + n, n, 1);
  return Tensor::from(values, {batch, n}, testing::device());
}

std::vector<double> naive(const Tensor& x, const Tensor& mask, Pooling kind) {
  const auto values = doubles(x);
  const auto keep = mask.defined() ? mask.to_vector<std::int32_t>() : std::vector<std::int32_t>();
  const auto batch = static_cast<std::size_t>(x.extent(0)), n = static_cast<std::size_t>(x.extent(1)),
             d = static_cast<std::size_t>(x.extent(2));
  std::vector<double> pooled(batch * d, 0);
  for (std::size_t b = 0; b < batch; ++b) {
    double count = 0;
    for (std::size_t t = 0; t < n; ++t) {
      if (kind == Pooling::first ? t > 0 : !keep.empty() && keep[b * n + t] == 0) continue;
      ++count;
      for (std::size_t i = 0; i < d; ++i) pooled[b * d + i] += values[(b * n + t) * d + i];
    }
    for (std::size_t i = 0; i < d && count > 0; ++i) pooled[b * d + i] /= count;
  }
  return pooled;
}

TEST_P(Pool, MatchesItsDefinition) {
  for (const auto& [batch, n, d] : {std::array<std::int64_t, 3>{1, 1, 1}, {3, 7, 5}, {4, 130, 33}, {2, 1100, 16}}) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      for (Pooling kind : {Pooling::first, Pooling::mean}) {
        for (const Tensor& mask : {Tensor{}, mask_of(batch, n)}) {
          const Tensor x = normal_tensor({batch, n, d}, dtype, "x");
          Tape tape{testing::stream()};
          const Tensor y = ops::pool(tape, Variable(x), mask, kind).value();
          EXPECT_EQ(y.shape(), Shape({batch, d}));
          // A row of n terms has at most n roundings of the sum in the compute type, and one of the result.
          EXPECT_LE(relative_difference(doubles(y), naive(x, mask, kind)),
                    rounding_of(dtype) * (dtype == DType::bfloat16 ? 1.5 : 20));
        }
      }
    }
  }
}

TEST_P(Pool, GradientsMatchFiniteDifferences) {
  for (Pooling kind : {Pooling::first, Pooling::mean}) {
    const Tensor mask = mask_of(3, 5);
    const auto twice = [&](Tape& tape, const std::vector<Variable>& inputs) {
      // Two uses of one input: the second adds to the gradient.
      const Variable a = ops::pool(tape, inputs[0], mask, kind), b = ops::pool(tape, inputs[0], Tensor{}, kind);
      const Tensor sum = a.value().clone();
      ops::add(tape.stream(), sum, b.value(), GradientMode::accumulate, 2.0);
      return tape.record_one("sum", {a, b}, sum, {}, [](BackwardContext& context) {
        context.pass(0, context.d_output());
        const Tensor twice = context.d_output().clone();
        ops::add(context.stream(), twice, context.d_output(), GradientMode::accumulate);
        context.pass(1, twice);
      });
    };
    const auto result = check_gradients(twice, {normal_tensor({3, 5, 4}, DType::float64, "x")});
    EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
  }
}

TEST_P(Pool, WritesAndAccumulatesGradientsInEveryDtype) {
  const std::int64_t batch = 3, n = 7, d = 16;
  const Tensor mask = mask_of(batch, n);
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    for (Pooling kind : {Pooling::first, Pooling::mean}) {
      Tape tape{testing::stream()};
      const Variable x = Variable::leaf(normal_tensor({batch, n, d}, dtype, "x"));
      const Variable a = ops::pool(tape, x, mask, kind), b = ops::pool(tape, x, mask, kind);
      const Tensor d_a = normal_tensor({batch, d}, dtype, "d_a"), d_b = normal_tensor({batch, d}, dtype, "d_b");
      tape.backward({a, b}, {d_a, d_b});
      const auto of_a = doubles(d_a), of_b = doubles(d_b), found = doubles(x.gradient());
      const auto keep = mask.to_vector<std::int32_t>();
      std::vector<double> expected(found.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const std::size_t token = i / d, row = token / n;
        double count = 0;
        for (std::size_t t = 0; t < static_cast<std::size_t>(n); ++t) count += keep[row * n + t];
        const bool reached = kind == Pooling::first ? token % n == 0 : keep[token] != 0;
        const double factor = kind == Pooling::first ? 1 : 1 / count;
        if (reached) expected[i] = factor * (of_a[row * d + i % d] + of_b[row * d + i % d]);
      }
      // Both gradients are rounded, and so is their sum.
      EXPECT_LE(relative_difference(found, expected), 3 * rounding_of(dtype)) << name_of(dtype);
    }
  }
}

TEST_P(PairFeatures, AreBothRowsTheirProductAndDifference) {
  const Tensor x = tensor_of({1, 2, 5, -3, 0.5, 4, 0, 7}, {4, 2}, DType::float32);
  Tape tape{testing::stream()};
  const Tensor y = ops::pair_features(tape, Variable(x)).value();
  EXPECT_EQ(y.shape(), Shape({2, 8}));
  EXPECT_EQ(doubles(y), (std::vector<double>{1, 2, 5, -3, 5, -6, -4, 5, 0.5, 4, 0, 7, 0, 28, 0.5, -3}));
  EXPECT_THROW(ops::pair_features(tape, Variable(normal_tensor({3, 2}, DType::float32, "x"))), ContractError);
}

TEST_P(PairFeatures, GradientsMatchFiniteDifferences) {
  const auto result =
      check_gradients([](Tape& tape, const std::vector<Variable>& in) { return ops::pair_features(tape, in[0]); },
                      {normal_tensor({6, 3}, DType::float64, "x")});
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
  // Two uses, so that the second accumulates; one width is read as vectors. Then the other types, against float64 of
  // the same numbers.
  for (std::int64_t d : {3, 16}) {
    std::vector<std::vector<double>> gradients;
    for (DType dtype : {DType::bfloat16, DType::float32, DType::float64}) {
      Tape tape{testing::stream()};
      const auto stored = [&](const Shape& shape, const char* name) {
        return tensor_of(doubles(normal_tensor(shape, DType::bfloat16, name)), shape, dtype);
      };
      const Variable x = Variable::leaf(stored({10, d}, "x"));
      const Variable a = ops::pair_features(tape, x), b = ops::pair_features(tape, x);
      tape.backward({a, b}, {stored({5, 4 * d}, "a"), stored({5, 4 * d}, "b")});
      gradients.push_back(doubles(x.gradient()));
    }
    // Two results and their sum, each rounded once after four operations in the compute type.
    EXPECT_LE(relative_difference(gradients[0], gradients[2]), 2 * rounding_of(DType::bfloat16)) << d;
    EXPECT_LE(relative_difference(gradients[1], gradients[2]), 6 * rounding_of(DType::float32)) << d;
  }
}

}  // namespace
}  // namespace furlong
