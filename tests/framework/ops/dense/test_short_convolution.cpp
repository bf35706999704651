#include "framework/ops/dense/short_convolution.h"

#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "framework/primitives/arithmetic.h"
#include "tests/reference/short_convolution.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

class ShortConvolution : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(ShortConvolution);

struct Sizes {
  std::int64_t batch, n, channels, width;
};
const std::vector<Sizes> all_sizes{{1, 1, 1, 1},    {1, 1, 3, 4},   {2, 3, 5, 4}, {3, 70, 33, 4},
                                   {1, 67, 264, 5}, {2, 19, 17, 3}, {1, 5, 16, 9}};

std::vector<double> expected(const Tensor& x, const Tensor& weight, const Tensor& history, const Sizes& s) {
  return reference::short_convolution(doubles(x), doubles(weight),
                                      history.defined() ? doubles(history) : std::vector<double>{},
                                      static_cast<std::size_t>(s.batch), static_cast<std::size_t>(s.n),
                                      static_cast<std::size_t>(s.channels), static_cast<std::size_t>(s.width));
}

TEST_P(ShortConvolution, MatchesTheReferenceWithAndWithoutHistory) {
  for (const Sizes& s : all_sizes) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      const Tensor x = normal_tensor({s.batch, s.n, s.channels}, dtype, "x"),
                   weight = normal_tensor({s.channels, s.width}, dtype, "weight");
      const Tensor history = normal_tensor({s.batch, s.width - 1, s.channels}, dtype, "history");
      Tape tape{testing::stream()};
      // A fused multiply-add rounds once for each of `width` terms; bfloat16 rounds once more at the end.
      const double tolerance =
          dtype == DType::bfloat16 ? 0x1p-8 * 1.01 : static_cast<double>(s.width) * 2 * rounding_of(dtype);
      const Variable fresh = ops::short_convolution(tape, Variable(x), Variable(weight));
      EXPECT_LE(relative_difference(fresh.value(), expected(x, weight, {}, s)), tolerance)
          << s.n << " " << s.width << " " << name_of(dtype);
      const Variable continued = ops::short_convolution(tape, Variable(x), Variable(weight), &history);
      EXPECT_LE(relative_difference(continued.value(), expected(x, weight, history, s)), tolerance)
          << s.n << " " << s.width;
    }
  }
}

TEST_P(ShortConvolution, ReadsAColumnRangeAndFloat32Weights) {
  const Tensor fused = normal_tensor({2, 9, 24}, DType::bfloat16, "x"), x = fused.narrow(2, 5, 13);
  const Tensor weight = normal_tensor({13, 4}, DType::float32, "weight");
  Tape tape{testing::stream()};
  const Variable y = ops::short_convolution(tape, Variable(x), Variable(weight));
  EXPECT_LE(relative_difference(y.value(), expected(x, weight, {}, {2, 9, 13, 4})), 0x1p-8 * 1.01);
}

/// As in generation: token by token, or in uneven pieces, with the history updated in place, equals the whole bit for
/// bit.
TEST_P(ShortConvolution, PiecesWithHistoryEqualTheWhole) {
  const Tensor x = normal_tensor({2, 23, 10}, DType::float32, "x");
  const Variable weight(normal_tensor({10, 4}, DType::float32, "weight"));
  Tape tape{testing::stream()};
  const Tensor whole = ops::short_convolution(tape, Variable(x), weight).value();
  const Tensor history = Tensor::empty({2, 3, 10}, DType::float32, testing::device());
  std::int64_t start = 0;
  for (std::int64_t length : {2, 1, 1, 1, 7, 3, 2, 1, 5}) {
    const Variable piece = ops::short_convolution(tape, Variable(x.narrow(1, start, length)), weight,
                                                  start > 0 ? &history : nullptr, &history);
    EXPECT_EQ(doubles(piece.value()), doubles(whole.narrow(1, start, length))) << "from " << start;
    start += length;
  }
  ASSERT_EQ(start, 23);
  EXPECT_EQ(doubles(history), doubles(x.narrow(1, 20, 3)));
}

TEST_P(ShortConvolution, IsCausal) {
  const Tensor x = normal_tensor({1, 12, 7}, DType::float32, "x"), changed = x.clone();
  ops::fill(testing::stream(), changed.narrow(1, 8, 4), 1e30);
  const Variable weight(normal_tensor({7, 4}, DType::float32, "weight"));
  Tape tape{testing::stream()};
  const Tensor before = ops::short_convolution(tape, Variable(x), weight).value(),
               after = ops::short_convolution(tape, Variable(changed), weight).value();
  EXPECT_EQ(doubles(before.narrow(1, 0, 8)), doubles(after.narrow(1, 0, 8)));
  EXPECT_NE(doubles(before.narrow(1, 8, 1)), doubles(after.narrow(1, 8, 1)));
}

TEST_P(ShortConvolution, GradientsMatchFiniteDifferences) {
  std::vector<Sizes> checked{{1, 1, 1, 1}, {1, 1, 3, 4}, {2, 3, 5, 4}, {1, 5, 4, 9}};
  if (!testing::on_simulator()) checked.insert(checked.end(), {{3, 13, 9, 3}, {1, 5, 16, 9}});
  for (const Sizes& s : checked) {
    const Tensor history = normal_tensor({s.batch, s.width - 1, s.channels}, DType::float64, "history");
    for (const Tensor* before : {static_cast<const Tensor*>(nullptr), &history}) {
      const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
        return ops::short_convolution(tape, inputs[0], inputs[1], before);
      };
      const auto result = check_gradients(function, {normal_tensor({s.batch, s.n, s.channels}, DType::float64, "x"),
                                                     normal_tensor({s.channels, s.width}, DType::float64, "weight")});
      EXPECT_LE(result.worst_relative_error, 1e-9) << s.n << " " << s.width << ": " << result.where;
    }
  }
}

/// Lengths of documents packed into rows of 23: single tokens, documents shorter than the convolution's width, one
/// number used twice.
const std::vector<std::vector<std::pair<std::int64_t, std::int32_t>>> packed_rows{
    {{1, 4}, {2, 0}, {3, 4}, {9, 1}, {1, 2}, {7, 3}}, {{23, 0}}, {{12, 1}, {11, 0}}};

Tensor packed_documents() {
  std::vector<std::int32_t> numbers;
  for (const auto& row : packed_rows) {
    for (const auto& [length, number] : row) numbers.insert(numbers.end(), static_cast<std::size_t>(length), number);
  }
  return Tensor::from(numbers, {3, 23}, testing::device());
}

/// The output and the gradient of x match separate sequences bit for bit. The weight's gradient is summed in another
/// order.
TEST_P(ShortConvolution, PackedDocumentsMatchSeparateSequences) {
  const Tensor documents = packed_documents();
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const std::int64_t width : {1, 4, 9}) {
      const Tensor x0 = normal_tensor({3, 23, 18}, dtype, "x"), d_y0 = normal_tensor({3, 23, 18}, dtype, "d_y");
      const Variable x = Variable::leaf(x0),
                     weight = Variable::leaf(normal_tensor({18, width}, DType::float32, "weight")),
                     own_weight = Variable::leaf(weight.value());
      Tape tape{testing::stream()};
      const Variable y = ops::short_convolution(tape, x, weight, nullptr, nullptr, &documents);
      tape.backward({y}, {d_y0});
      for (std::int64_t row = 0; row < 3; ++row) {
        std::int64_t begin = 0;
        for (const auto& [length, number] : packed_rows[static_cast<std::size_t>(row)]) {
          const auto part = [&](const Tensor& whole) {
            return tensor_of(doubles(whole.narrow(0, row, 1).narrow(1, begin, length)), {1, length, 18}, dtype);
          };
          const Variable own = Variable::leaf(part(x0));
          const Variable own_y = ops::short_convolution(tape, own, own_weight);
          EXPECT_EQ(doubles(own_y.value()), doubles(part(y.value())))
              << "row " << row << " from " << begin << " width " << width;
          tape.backward({own_y}, {part(d_y0)});
          EXPECT_EQ(doubles(own.gradient()), doubles(part(x.gradient())))
              << "row " << row << " from " << begin << " width " << width;
          begin += length;
        }
      }
      // 69 terms in float32, in another order.
      EXPECT_LE(relative_difference(weight.gradient(), doubles(own_weight.gradient())), 69 * 0x1p-24) << width;
    }
  }
}

TEST_P(ShortConvolution, GradientsOfPackedDocumentsMatchFiniteDifferences) {
  const Tensor documents = packed_documents();
  const std::int64_t channels = testing::on_simulator() ? 2 : 5;
  const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
    return ops::short_convolution(tape, inputs[0], inputs[1], nullptr, nullptr, &documents);
  };
  const auto result = check_gradients(function, {normal_tensor({3, 23, channels}, DType::float64, "x"),
                                                 normal_tensor({channels, 4}, DType::float64, "weight")});
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
}

/// x and the weight are used twice, once with a constant partner; the history is overwritten before backward needs it.
TEST_P(ShortConvolution, AccumulatesGradientsWithOverwrittenHistory) {
  const Tensor start = normal_tensor({2, 3, 5}, DType::float64, "history");
  const Tensor x0 = normal_tensor({2, 6, 5}, DType::float64, "x0"),
               weight0 = normal_tensor({5, 4}, DType::float64, "w0");
  const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
    const Tensor history = start.clone();
    const Variable a = ops::short_convolution(tape, inputs[0], inputs[1], &history, &history);
    const Variable b = ops::short_convolution(tape, a, inputs[1], &history, &history);
    const Variable c = ops::short_convolution(tape, inputs[0], Variable(weight0)),
                   d = ops::short_convolution(tape, Variable(x0), inputs[1]);
    const Tensor sum = b.value().clone();
    for (const Variable* part : {&c, &d}) ops::add(tape.stream(), sum, part->value(), GradientMode::accumulate);
    return tape.record_one("sum", {b, c, d}, sum, {}, [](BackwardContext& context) {
      for (std::size_t i = 0; i < 3; ++i) context.pass(i, context.d_output());
    });
  };
  Tape tape{testing::stream()};
  const Variable x = Variable::leaf(x0), weight = Variable::leaf(weight0);
  const Variable y = function(tape, {x, weight});
  const Tensor d_y = normal_tensor(y.shape(), DType::float64, "d_y");
  tape.backward({y}, {d_y});
  // A numeric derivative of the weight would also change the histories, which receive no gradient. So the same sum is
  // differentiated with both histories held fixed.
  const Tensor first_history = start.clone(),
               second_history = tensor_of(doubles(x0.narrow(1, 3, 3)), start.shape(), DType::float64);
  const auto frozen = [&](Tape& t, const std::vector<Variable>& inputs) {
    const Variable a = ops::short_convolution(t, inputs[0], inputs[1], &first_history);
    const Variable b = ops::short_convolution(t, a, inputs[1], &second_history);
    const Variable c = ops::short_convolution(t, inputs[0], Variable(weight0)),
                   d = ops::short_convolution(t, Variable(x0), inputs[1]);
    const Tensor sum = b.value().clone();
    for (const Variable* part : {&c, &d}) ops::add(t.stream(), sum, part->value(), GradientMode::accumulate);
    return t.record_one("sum", {b, c, d}, sum, {}, [](BackwardContext& context) {
      for (std::size_t i = 0; i < 3; ++i) context.pass(i, context.d_output());
    });
  };
  const auto result = check_gradients(frozen, {x0, weight0});
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
  const Variable x_again = Variable::leaf(x0), weight_again = Variable::leaf(weight0);
  const Variable y_again = frozen(tape, {x_again, weight_again});
  tape.backward({y_again}, {d_y});
  EXPECT_EQ(doubles(x.gradient()), doubles(x_again.gradient()));
  EXPECT_EQ(doubles(weight.gradient()), doubles(weight_again.gradient()));
}

TEST_P(ShortConvolution, Bfloat16WeightGradientIsFloat32) {
  const Tensor x = normal_tensor({2, 200, 5}, DType::bfloat16, "x"),
               d_y = normal_tensor({2, 200, 5}, DType::bfloat16, "d_y");
  const auto weight_gradient = [&](const Tensor& inputs, const Tensor& gradient, DType dtype) {
    Variable weight = Variable::leaf(normal_tensor({5, 4}, DType::bfloat16, "weight"));
    if (dtype == DType::float64) weight = Variable::leaf(tensor_of(doubles(weight.value()), {5, 4}, dtype));
    weight.slot()->dtype = accumulate_dtype(dtype);
    Tape tape{testing::stream()};
    const Variable y = ops::short_convolution(tape, Variable(inputs), weight);
    tape.backward({y}, {gradient});
    return doubles(weight.gradient());
  };
  const auto wide = weight_gradient(tensor_of(doubles(x), x.shape(), DType::float64),
                                    tensor_of(doubles(d_y), x.shape(), DType::float64), DType::float64);
  // Products of two 8-bit significands are exact in float32; sums of 400 terms.
  EXPECT_LE(relative_difference(weight_gradient(x, d_y, DType::bfloat16), wide), 1e-6);
}

/// Columns [1, 9) of 12, which are not aligned for vector accesses, against a contiguous copy. d_x is also added to
/// such columns.
TEST_P(ShortConvolution, UnalignedViewsGiveTheSameBits) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    const Tensor fused = normal_tensor({2, 11, 12}, dtype, "fused"), weight = normal_tensor({8, 4}, dtype, "weight");
    const auto run = [&](const Variable& whole, const Variable& columns) {
      const Variable own_weight = Variable::leaf(weight);
      Tape tape{testing::stream()};
      const Variable x = whole.defined() ? tape.split_last(whole, {1, 8, 3})[1] : columns;
      const Variable y = ops::short_convolution(tape, x, own_weight), z = ops::short_convolution(tape, x, own_weight);
      tape.backward({y, z}, {normal_tensor(y.shape(), dtype, "d_y"), normal_tensor(y.shape(), dtype, "d_z")});
      const Tensor d_x = whole.defined() ? whole.gradient().narrow(2, 1, 8) : columns.gradient();
      return std::vector{doubles(y.value()), doubles(d_x), doubles(own_weight.gradient())};
    };
    const Tensor columns = fused.narrow(2, 1, 8);
    EXPECT_EQ(run(Variable::leaf(fused), {}),
              run({}, Variable::leaf(tensor_of(doubles(columns), columns.shape(), dtype))))
        << name_of(dtype);
  }
}

/// Channels are whole vectors, rows span several blocks, and sums over rows continue in other blocks.
TEST_P(ShortConvolution, GradientsOfManyRowsMatchDouble) {
  const Sizes s{2, 131, 40, 4};
  const auto gradients = [&](DType dtype, DType inputs_dtype) {
    const auto widened = [&](const Tensor& tensor) { return tensor_of(doubles(tensor), tensor.shape(), dtype); };
    const Variable x = Variable::leaf(widened(normal_tensor({s.batch, s.n, s.channels}, inputs_dtype, "x"))),
                   weight = Variable::leaf(widened(normal_tensor({s.channels, s.width}, inputs_dtype, "weight")));
    weight.slot()->dtype = accumulate_dtype(dtype);
    Tape tape{testing::stream()};
    const Variable y = ops::short_convolution(tape, x, weight);
    tape.backward({y}, {widened(normal_tensor(y.shape(), inputs_dtype, "d_y"))});
    return std::pair{doubles(x.gradient()), doubles(weight.gradient())};
  };
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    const auto found = gradients(dtype, dtype), wanted = gradients(DType::float64, dtype);
    EXPECT_LE(relative_difference(found.first, wanted.first), dtype == DType::bfloat16 ? 0x1p-8 * 1.01 : 8 * 0x1p-24);
    EXPECT_LE(relative_difference(found.second, wanted.second),
              1e-6);  // 262 products each, summed in float32
  }
}

TEST(ShortConvolutionOnCpu, BitsDoNotDependOnThreadCount) {
  const auto run = [] {
    const Variable x = Variable::leaf(normal_tensor({3, 501, 70}, DType::float32, "x"));
    const Variable weight = Variable::leaf(normal_tensor({70, 4}, DType::float32, "weight"));
    Tape tape{testing::stream()};
    const Variable y = ops::short_convolution(tape, x, weight);
    tape.backward({y}, {normal_tensor(y.shape(), DType::float32, "d_y")});
    return std::vector{doubles(y.value()), doubles(x.gradient()), doubles(weight.gradient())};
  };
  EXPECT_EQ(with_threads(1, run), with_threads(5, run));
}

TEST(ShortConvolutionOnCpu, RejectsMismatchedShapes) {
  Tape tape{testing::stream()};
  const Variable x(normal_tensor({2, 3, 5}, DType::float32, "x")),
      weight(normal_tensor({5, 4}, DType::float32, "weight"));
  EXPECT_THROW(ops::short_convolution(tape, x, Variable(normal_tensor({4, 4}, DType::float32, "w"))), ContractError);
  EXPECT_THROW(ops::short_convolution(tape, x, Variable(normal_tensor({5, 65}, DType::float32, "w"))), ContractError);
  EXPECT_THROW(ops::short_convolution(tape, x, Variable(normal_tensor({5, 4}, DType::bfloat16, "w"))), ContractError);
  const Tensor short_history = normal_tensor({2, 2, 5}, DType::float32, "history");
  EXPECT_THROW(ops::short_convolution(tape, x, weight, &short_history), ContractError);
  const Tensor documents = integer_tensor({2, 3}, 0, 2, "documents"),
               history = normal_tensor({2, 3, 5}, DType::float32, "history");
  EXPECT_THROW(ops::short_convolution(tape, x, weight, &history, nullptr, &documents), ContractError);
  EXPECT_THROW(ops::short_convolution(tape, x, weight, nullptr, &history, &documents), ContractError);
  const Tensor longer = integer_tensor({2, 4}, 0, 2, "documents");
  EXPECT_THROW(ops::short_convolution(tape, x, weight, nullptr, nullptr, &longer), ContractError);
}

TEST(ShortConvolutionOnCpu, ShapeOnlyRunsTheSameSteps) {
  const Device device{DeviceType::shape_only, 0};
  Tape tape{Stream{device}};
  const Variable x = Variable::leaf(Tensor::empty({2, 7, 8}, DType::bfloat16, device)),
                 weight = Variable::leaf(Tensor::empty({8, 4}, DType::bfloat16, device));
  const Variable y = ops::short_convolution(tape, x, weight);
  tape.backward({y}, {Tensor::empty(y.shape(), DType::bfloat16, device)});
  EXPECT_EQ(x.gradient().shape(), x.shape());
  EXPECT_EQ(weight.gradient().shape(), weight.shape());
}

}  // namespace
}  // namespace furlong
