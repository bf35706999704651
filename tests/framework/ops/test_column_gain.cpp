#include "framework/ops/column_gain.h"

#include "framework/ops/arithmetic.h"
#include "tests/framework/ops/op_testing.h"

namespace furlong::ops {
namespace {

using namespace furlong::testing;

TEST(ColumnGain, IsTheProductColumnByColumn) {
  for (DType dtype : float_dtypes) {
    for (std::int64_t columns : {1, 3, 16, 37}) {
      const std::int64_t rows = 5;
      const auto x = stored(normal_values(rows * columns, "x"), dtype), gain = stored(normal_values(columns, "gain"), dtype);
      std::vector<double> expected;
      for (std::size_t i = 0; i < x.size(); ++i) expected.push_back(x[i] * gain[i % gain.size()]);
      Tape tape(Stream{});
      const Variable y = column_gain(tape, Variable(tensor_of(x, {rows, columns}, dtype)), Variable(tensor_of(gain, {columns}, dtype)));
      EXPECT_EQ(y.dtype(), dtype);
      // One product, rounded once.
      EXPECT_LE(relative_error(values_of(y.value()), expected), rounding_unit(dtype)) << name_of(dtype) << ", " << columns;
    }
  }
}

TEST(ColumnGain, GradientsAgreeWithFiniteDifferences) {
  const auto gradients = check_gradients(
      [](Tape& tape, const std::vector<Variable>& inputs) {
        // Twice, so that the second use adds to what the first wrote.
        return column_gain(tape, column_gain(tape, inputs[0], inputs[1]), inputs[1]);
      },
      {tensor_of(normal_values(2 * 70 * 5, "x"), {2, 70, 5}, DType::float64), tensor_of(normal_values(5, "gain"), {5}, DType::float64)});
  EXPECT_LE(gradients.worst_relative_error, 1e-9) << gradients.where;
}

TEST(ColumnGain, GradientsOfGainsAreSummedInFloat32AndByNoThreadCount) {
  const std::int64_t rows = 1000, columns = 19;
  const auto x = stored(normal_values(rows * columns, "x"), DType::bfloat16),
             d_y = stored(normal_values(rows * columns, "d"), DType::bfloat16);
  std::vector<double> expected(static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < x.size(); ++i) expected[i % expected.size()] += x[i] * d_y[i];
  const auto gradient = [&](int threads) {
    const WithThreads guard(threads);
    Tape tape(Stream{});
    const Variable gain = Variable::leaf(tensor_of(std::vector<double>(static_cast<std::size_t>(columns), 1.0), {columns}, DType::float32));
    const Variable y = column_gain(tape, Variable(tensor_of(x, {rows, columns}, DType::bfloat16)), gain);
    tape.backward({y}, {tensor_of(d_y, {rows, columns}, DType::bfloat16)});
    return values_of(gain.gradient());
  };
  const std::vector<double> one = gradient(1);
  EXPECT_LE(relative_error(one, expected), 1e-6);  // a thousand roundings of 2^-24, most of which cancel
  EXPECT_EQ(gradient(3), one);
}

TEST(ColumnGain, ShapesThatDoNotFitAreRefused) {
  Tape tape(Stream{});
  const Variable x(Tensor::zeros({2, 4}, DType::float32)), gain(Tensor::zeros({3}, DType::float32));
  EXPECT_THROW(column_gain(tape, x, gain), ContractError);
  EXPECT_THROW(column_gain(tape, Variable(x.value().narrow(1, 0, 3)), gain), ContractError);
}

}  // namespace
}  // namespace furlong::ops
