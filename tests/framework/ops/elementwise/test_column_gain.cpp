#include "framework/ops/elementwise/column_gain.h"

#include "framework/primitives/arithmetic.h"
#include "tests/framework/ops/op_testing.h"

namespace furlong::ops {
namespace {

using namespace furlong::testing;

class ColumnGain : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(ColumnGain);

TEST_P(ColumnGain, IsTheProductColumnByColumn) {
  for (DType dtype : float_dtypes) {
    for (std::int64_t columns : {1, 3, 16, 37}) {
      const std::int64_t rows = 5;
      const auto x = stored(normal_values(rows * columns, "x"), dtype),
                 gain = stored(normal_values(columns, "gain"), dtype);
      std::vector<double> expected;
      for (std::size_t i = 0; i < x.size(); ++i) expected.push_back(x[i] * gain[i % gain.size()]);
      Tape tape(stream());
      const Variable y = column_gain(tape, Variable(tensor_of(x, {rows, columns}, dtype)),
                                     Variable(tensor_of(gain, {columns}, dtype)));
      EXPECT_EQ(y.dtype(), dtype);
      // One product, rounded once.
      EXPECT_LE(relative_error(values_of(y.value()), expected), rounding_unit(dtype))
          << name_of(dtype) << ", " << columns;
    }
  }
}

TEST_P(ColumnGain, GradientsMatchFiniteDifferences) {
  const std::int64_t n = on_simulator() ? 9 : 70;
  const auto gradients = check_gradients(
      [](Tape& tape, const std::vector<Variable>& inputs) {
        // Two uses, so that the second adds to the first one's gradient.
        return column_gain(tape, column_gain(tape, inputs[0], inputs[1]), inputs[1]);
      },
      {tensor_of(normal_values(2 * n * 5, "x"), {2, n, 5}, DType::float64),
       tensor_of(normal_values(5, "gain"), {5}, DType::float64)});
  EXPECT_LE(gradients.worst_relative_error, 1e-9) << gradients.where;
}

TEST_P(ColumnGain, GainGradientIsSummedInFloat32ForAnyThreadCount) {
  const std::int64_t rows = 1000, columns = 19;
  const auto x = stored(normal_values(rows * columns, "x"), DType::bfloat16),
             d_y = stored(normal_values(rows * columns, "d"), DType::bfloat16);
  std::vector<double> expected(static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < x.size(); ++i) expected[i % expected.size()] += x[i] * d_y[i];
  const auto gradient = [&](int threads) {
    const WithThreads guard(threads);
    Tape tape(stream());
    const Variable gain = Variable::leaf(
        tensor_of(std::vector<double>(static_cast<std::size_t>(columns), 1.0), {columns}, DType::float32));
    const Variable y = column_gain(tape, Variable(tensor_of(x, {rows, columns}, DType::bfloat16)), gain);
    tape.backward({y}, {tensor_of(d_y, {rows, columns}, DType::bfloat16)});
    return values_of(gain.gradient());
  };
  const std::vector<double> one = gradient(1);
  EXPECT_LE(relative_error(one, expected), 1e-6);  // a thousand roundings of 2^-24, most of which cancel
  EXPECT_EQ(gradient(3), one);
}

TEST_P(ColumnGain, ReadsAndWritesColumnRangeGradientsInPlace) {
  // The gradients of y and x are column ranges of wider ones: the same bits as with copies.
  const std::int64_t rows = 67, columns = 40;
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    const Tensor gains = tensor_of(normal_values(columns, "gain"), {columns}, dtype);
    const Tensor x = tensor_of(normal_values(rows * columns, "x"), {rows, columns}, dtype),
                 d_y = tensor_of(normal_values(rows * 56, "d"), {rows, 56}, dtype);
    const auto gradients = [&](const Tensor& d) {
      Tape tape(stream());
      const Variable leaf = Variable::leaf(x), gain = Variable::leaf(gains);
      const Variable y = column_gain(tape, leaf, gain);
      const Variable wide = tape.record_one("wide", {y}, x, {}, [d](BackwardContext& context) { context.pass(0, d); });
      tape.backward({wide}, {x});
      return std::pair{leaf.gradient(), gain.gradient()};
    };
    const Tensor view = d_y.narrow(1, 8, columns);
    const auto of_view = gradients(view), of_copy = gradients(tensor_of(values_of(view), {rows, columns}, dtype));
    EXPECT_TRUE(same_bits(of_view.first, of_copy.first)) << name_of(dtype);
    EXPECT_TRUE(same_bits(of_view.second, of_copy.second)) << name_of(dtype);
  }
}

TEST_P(ColumnGain, RejectsMismatchedShapes) {
  Tape tape(stream());
  const Variable x(Tensor::zeros({2, 4}, DType::float32, device())), gain(Tensor::zeros({3}, DType::float32, device()));
  EXPECT_THROW(column_gain(tape, x, gain), ContractError);
  EXPECT_THROW(column_gain(tape, Variable(x.value().narrow(1, 0, 3)), gain), ContractError);
}

}  // namespace
}  // namespace furlong::ops
