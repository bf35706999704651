#include "framework/ops/elementwise/column_ranges.h"

#include "framework/ops/elementwise/column_gain.h"
#include "tests/framework/ops/op_testing.h"

namespace furlong::ops {
namespace {

using namespace furlong::testing;

class ColumnRanges : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(ColumnRanges);

TEST_P(ColumnRanges, AreViewsOfTheColumns) {
  Tape tape(stream());
  const Tensor x = tensor_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {2, 6}, DType::float32);
  const auto ranges = column_ranges(tape, Variable(x), {1, 3, 2});
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(values_of(ranges[1].value()), (std::vector<double>{1, 2, 3, 7, 8, 9}));
  for (const Variable& range : ranges) EXPECT_TRUE(range.value().shares_memory_with(x));
}

/// Ranges of a range of `x`, each multiplied by a different gain; the last one is unused.
Variable products(Tape& tape, const std::vector<Variable>& inputs) {
  const auto halves = tape.split_last(column_gain(tape, inputs[0], inputs[1]), {6, 4});
  const auto ranges = column_ranges(tape, halves[0], {1, 3, 2});
  const auto again = column_ranges(tape, halves[0], {4, 2});
  const auto contiguous = [&](const Variable& view, std::int64_t width) {
    // A gain needs contiguous rows at a constant stride; single rows always are.
    return column_gain(tape, view, Variable(tensor_of(normal_values(width, "gain"), {width}, DType::float64)));
  };
  const Variable a = contiguous(ranges[1], 3), b = contiguous(again[0], 4);
  // Σ a Σ b as a product of both: nonlinear, so that gradients depend on both.
  return tape.record_one("dot", {a, b},
                         tensor_of({values_of(a.value())[0] * values_of(b.value())[1]}, {1}, DType::float64),
                         {a.value(), b.value()}, [](BackwardContext& context) {
                           const double d = values_of(context.d_output())[0];
                           for (std::size_t input : {0u, 1u}) {
                             std::vector<double> gradient(input == 0 ? 3 : 4);
                             gradient[input] = d * values_of(context.saved(1 - input))[1 - input];
                             const auto width = static_cast<std::int64_t>(gradient.size());
                             context.pass(input, tensor_of(gradient, {1, 1, width}, DType::float64));
                           }
                         });
}

TEST_P(ColumnRanges, GradientsOfUsedAndUnusedRangesAddUp) {
  const auto gradients = check_gradients(products, {tensor_of(normal_values(10, "x"), {1, 1, 10}, DType::float64),
                                                    tensor_of(normal_values(10, "g"), {10}, DType::float64)});
  EXPECT_LE(gradients.worst_relative_error, 1e-9) << gradients.where;
}

TEST(ColumnRangesOnCpu, RejectsMismatchedLengths) {
  Tape tape(Stream{});
  const Variable x(Tensor::zeros({2, 6}, DType::float32));
  EXPECT_THROW(column_ranges(tape, x, {1, 2}), ContractError);
  EXPECT_THROW(column_ranges(tape, x, {4, 3}), ContractError);
  EXPECT_THROW(column_ranges(tape, x, {6, 0}), ContractError);
}

}  // namespace
}  // namespace furlong::ops
