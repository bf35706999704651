#include "framework/ops/elementwise/token_dropout.h"

#include "tests/framework/ops/op_testing.h"

namespace furlong::ops {
namespace {

using namespace furlong::testing;

class TokenDropout : public EngineTest {
 protected:
  static constexpr std::int32_t mask = 4;
  Tensor ids(const std::vector<std::int32_t>& values, const Shape& shape) const {
    return Tensor::from(values, shape).to(device());
  }
};
FURLONG_INSTANTIATE_ENGINES(TokenDropout);

TEST_P(TokenDropout, ScalesByTheShareOfMaskTokensWithoutPadding) {
  const std::int64_t batch = 3, n = 5;
  // One mask token of four (the last is padding), none of five, all masked.
  const std::vector<std::int32_t> tokens{0, 4, 1, 2, 4, 1, 2, 3, 1, 0, 4, 4, 4, 4, 4},
      keys{1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const std::vector<double> factors{0.88 / (1 - 0.25), 0.88, 0};
  for (const DType dtype : float_dtypes) {
    for (const std::int64_t d : {1, 7, 40}) {
      const auto x = stored(normal_values(batch * n * d, "x"), dtype);
      std::vector<double> expected;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t token = i / static_cast<std::size_t>(d);
        expected.push_back(tokens[token] == mask ? 0 : x[i] * factors[token / static_cast<std::size_t>(n)]);
      }
      Tape tape(stream());
      const Variable y = token_dropout(tape, Variable(tensor_of(x, {batch, n, d}, dtype)), ids(tokens, {batch, n}),
                                       ids(keys, {batch, n}), mask);
      EXPECT_EQ(y.dtype(), dtype);
      // The factor and the product are rounded.
      EXPECT_LE(relative_error(values_of(y.value()), expected), 2 * rounding_unit(dtype)) << name_of(dtype) << d;
    }
  }
}

TEST_P(TokenDropout, ReadsTokensOfAColumnRange) {
  const Tensor wide = ids({9, 4, 1, 9, 9, 2, 3, 9}, {2, 4}),
               x = tensor_of(normal_values(12, "x"), {2, 2, 3}, DType::float64);
  Tape tape(stream());
  const Variable view = token_dropout(tape, Variable(x), wide.narrow(1, 1, 2), {}, mask),
                 copy = token_dropout(tape, Variable(x), ids({4, 1, 2, 3}, {2, 2}), {}, mask);
  EXPECT_TRUE(same_bits(view.value(), copy.value()));
}

TEST_P(TokenDropout, GradientsMatchFiniteDifferences) {
  const Tensor tokens = ids({0, 4, 1, 4, 2, 3}, {2, 3});
  const auto gradients = check_gradients(
      [&](Tape& tape, const std::vector<Variable>& inputs) {
        return token_dropout(tape, token_dropout(tape, inputs[0], tokens, {}, mask), tokens, {}, mask);
      },
      {tensor_of(normal_values(2 * 3 * 5, "x"), {2, 3, 5}, DType::float64)});
  EXPECT_LE(gradients.worst_relative_error, 1e-9) << gradients.where;
}

TEST_P(TokenDropout, RejectsMismatchedShapes) {
  Tape tape(stream());
  const Variable x(Tensor::zeros({2, 3, 4}, DType::float32, device()));
  EXPECT_THROW(token_dropout(tape, x, ids({0, 1, 2, 3}, {2, 2}), {}, mask), ContractError);
  EXPECT_THROW(token_dropout(tape, x, ids({0, 1, 2, 3, 4, 5}, {2, 3}), ids({1}, {1, 1}), mask), ContractError);
}

}  // namespace
}  // namespace furlong::ops
