#include "framework/ops/attention/positions/rotary.h"

#include <gtest/gtest.h>

#include <numeric>

#include "framework/autodiff/gradient_check.h"
#include "framework/core/arena.h"
#include "framework/primitives/arithmetic.h"
#include "tests/reference/rotary.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

class Rotary : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Rotary);
class RotaryTable : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(RotaryTable);

struct RotarySizes {
  std::int64_t batch, n, n_heads, d_head, columns;
};
const std::vector<RotarySizes> all_sizes{{1, 1, 1, 2, 2}, {2, 5, 3, 6, 20}, {3, 33, 2, 34, 70}, {1, 9, 4, 64, 256}};

/// Returns a copy, which may be changed in place, unlike a leaf.
Variable copy(Tape& tape, const Variable& x) {
  return tape.record_one("copy", {x}, x.value().clone(), {},
                         [](BackwardContext& context) { context.pass(0, context.d_output()); });
}

std::vector<double> expected(const Tensor& x, const RotarySizes& s, std::int64_t first, double base) {
  return reference::rotary(doubles(x), static_cast<std::size_t>(s.n), static_cast<std::size_t>(s.columns),
                           static_cast<std::size_t>(s.n_heads), static_cast<std::size_t>(s.d_head),
                           static_cast<std::size_t>(first), base);
}

TEST_P(Rotary, RotatesPairsAndKeepsOtherColumns) {
  for (const RotarySizes& s : all_sizes) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      for (std::int64_t first : {0, 1000}) {
        const Tensor x = normal_tensor({s.batch, s.n, s.columns}, dtype, "x");
        const auto want = expected(x, s, first, 10000.0);
        ops::RotaryTable table(s.d_head, 10000.0);
        Tape tape{testing::stream()};
        const Variable y = ops::rotary(tape, Variable(x), s.n_heads, s.d_head, first, table);
        EXPECT_TRUE(y.value().shares_memory_with(x));
        // The angle's rounding error in double is 1000 · 2^-53; the rest are roundings of sine, cosine, product and sum
        // in float32, and of the result.
        const double tolerance = dtype == DType::bfloat16 ? 0x1p-8 * 1.01 : 4 * rounding_of(dtype) + 1000 * 0x1p-53;
        EXPECT_LE(relative_difference(y.value(), want), tolerance) << s.d_head << " " << name_of(dtype);
        const auto values = doubles(y.value()), before = want;
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (static_cast<std::int64_t>(i) % s.columns < s.n_heads * s.d_head) continue;
          ASSERT_EQ(values[i], before[i]) << "column beyond the heads";
        }
      }
    }
  }
}

/// Segments of an unbounded text, short sequences in between, and single positions: rows are the same wherever they are
/// cached.
TEST_P(RotaryTable, MemoryIsBoundedForFarPositions) {
  constexpr std::int64_t d = 8, kept = ops::RotaryTable::max_cached;
  // The CPU uses the C library's functions; kernels have their own, which may differ in the last place.
  const double tolerance = testing::on_gpu() ? 0x1p-52 : 0;
  const auto expect_rows = [&](ops::RotaryTable& table, std::int64_t first, std::int64_t n) {
    const auto rows = table.get(testing::stream(), DType::float64, first, n).to_vector<double>();
    for (std::int64_t row = 0; row < n; row += std::max<std::int64_t>(1, n - 1)) {
      for (std::int64_t i = 0; i < d / 2; ++i) {
        const double angle = static_cast<double>(first + row) * std::pow(10000.0, -2.0 * static_cast<double>(i) / d);
        EXPECT_NEAR(rows[static_cast<std::size_t>(row * d + i)], std::cos(angle), tolerance) << first << " " << row;
        EXPECT_NEAR(rows[static_cast<std::size_t>(row * d + d / 2 + i)], std::sin(angle), tolerance)
            << first << " " << row;
      }
    }
  };
  ops::RotaryTable table(d, 10000.0);
  const std::int64_t before = arena(testing::device()).counters().bytes_in_use;
  for (std::int64_t first = kept - 2000; first < kept + 20000; first += 1000) expect_rows(table, first, 1000);
  for (const std::int64_t first :
       {std::int64_t{0}, kept - 1, kept, 50 * kept, 50 * kept + 1, kept + 5, (std::int64_t{1} << 31) - 3})
    expect_rows(table, first, 3);
  const std::int64_t row_bytes = d * static_cast<std::int64_t>(sizeof(double));
  // On a GPU the table of kept - 1000 rows stays allocated besides the full one.
  const std::int64_t rows = (testing::on_gpu() ? 2 : 1) * kept + ops::RotaryTable::min_window;
  EXPECT_LE(arena(testing::device()).counters().bytes_in_use - before, rows * row_bytes + (1 << 16));
}

/// Each token matches a sequence of one token at the same position, for near and far positions.
TEST_P(Rotary, RotatesEachTokenByItsOwnPosition) {
  constexpr std::int64_t far = 3 * ops::RotaryTable::max_cached;
  for (const std::int64_t offset : {std::int64_t{0}, far}) {
    const std::int64_t rows[] = {0, 1, 2, 0, 1, 7, 8, 9, 0, 3};
    std::vector<std::int32_t> own;
    for (const std::int64_t position : rows) own.push_back(static_cast<std::int32_t>(position + offset));
    const Tensor positions = Tensor::from(own, {2, 5}, testing::device()),
                 x0 = normal_tensor({2, 5, 10}, DType::float64, "x"),
                 d_y = normal_tensor({2, 5, 10}, DType::float64, "d_y");
    ops::RotaryTable table(4, 100.0);
    Tape tape{testing::stream()};
    const Variable x = Variable::leaf(x0);
    const Variable y = ops::rotary(tape, copy(tape, x), 2, 4, 0, table, &positions);
    const Variable again = ops::rotary(tape, Variable(x0.clone()), 2, 4, 0, table, &positions);
    EXPECT_EQ(doubles(again.value()), doubles(y.value()));
    tape.backward({y}, {d_y});
    for (std::int64_t token = 0; token < 10; ++token) {
      const auto part = [&](const Tensor& whole) {
        return whole.narrow(0, token / 5, 1).narrow(1, token % 5, 1).clone();
      };
      const Variable one = Variable::leaf(part(x0));
      const Variable turned = ops::rotary(tape, copy(tape, one), 2, 4, rows[token] + offset, table);
      EXPECT_EQ(doubles(turned.value()), doubles(part(y.value()))) << token;
      tape.backward({turned}, {part(d_y)});
      EXPECT_EQ(doubles(one.gradient()), doubles(part(x.gradient()))) << token;
    }
  }
  ops::RotaryTable table(4, 100.0);
  Tape tape{testing::stream()};
  const Variable x(normal_tensor({2, 5, 10}, DType::float64, "x"));
  const Tensor short_positions = integer_tensor({2, 4}, 0, 3, "p"), positions = integer_tensor({2, 5}, 0, 3, "p");
  EXPECT_THROW(ops::rotary(tape, x, 2, 4, 0, table, &short_positions), ContractError);
  EXPECT_THROW(ops::rotary(tape, x, 2, 4, 1, table, &positions), ContractError);
}

/// Far positions are cached by their tensor; two views of one tensor are two.
TEST_P(RotaryTable, ViewsOfOneTensorHaveTheirOwnRows) {
  constexpr std::int32_t far = ops::RotaryTable::max_cached;
  const Tensor both =
      Tensor::from(std::vector<std::int32_t>{far + 1, far + 2, far + 8, far + 9}, {2, 2}, testing::device());
  ops::RotaryTable table(4, 100.0);
  for (const std::int64_t row : {0, 1}) {
    const Tensor positions = both.narrow(0, row, 1);
    Tape tape{testing::stream()};
    const Tensor x = normal_tensor({1, 2, 4}, DType::float64, "x");
    const Variable cached = ops::rotary(tape, Variable(x.clone()), 1, 4, 0, table, &positions);
    ops::RotaryTable fresh(4, 100.0);
    EXPECT_EQ(doubles(cached.value()),
              doubles(ops::rotary(tape, Variable(x.clone()), 1, 4, 0, fresh, &positions).value()));
  }
}

TEST_P(Rotary, PreservesNormsAndDependsOnlyOnDistance) {
  constexpr std::int64_t d = 64, far = 100000;
  const Tensor query = normal_tensor({1, 1, d}, DType::float32, "q"),
               key = normal_tensor({1, 1, d}, DType::float32, "k");
  ops::RotaryTable table(d, 500000.0);
  Tape tape{testing::stream()};
  const auto at = [&](const Tensor& x, std::int64_t position) {
    return doubles(ops::rotary(tape, Variable(x.clone()), 1, d, position, table).value());
  };
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  const auto q = doubles(query), k = doubles(key);
  const double scale = std::sqrt(dot(q, q) * dot(k, k));
  const double near = dot(at(query, 17), at(key, 5));
  EXPECT_GT(std::abs(near - dot(q, k)) / scale, 1e-3) << "nothing was rotated";
  // Rounding errors of 64 float32 products each. The table comes from angles in double, so far positions are as
  // accurate as near ones.
  for (std::int64_t shift : {1L, 1234L, far})
    EXPECT_NEAR(dot(at(query, 17 + shift), at(key, 5 + shift)) / scale, near / scale, 2e-7) << shift;
  for (std::int64_t position : {0L, 3L, far})
    EXPECT_NEAR(dot(at(query, position), at(query, position)) / dot(q, q), 1.0, 2e-7);
}

TEST_P(Rotary, GradientMatchesFiniteDifference) {
  for (const RotarySizes& s : {RotarySizes{1, 1, 1, 2, 2}, RotarySizes{2, 5, 3, 6, 20}, RotarySizes{1, 3, 2, 34, 70}}) {
    ops::RotaryTable table(s.d_head, 100.0);
    const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
      return ops::rotary(tape, copy(tape, inputs[0]), s.n_heads, s.d_head, 7, table);
    };
    const auto result = check_gradients(function, {normal_tensor({s.batch, s.n, s.columns}, DType::float64, "x")});
    EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
  }
}

/// Queries, keys and values of one fused projection: two column ranges are rotated in place, one is not. Checks the
/// gradient of the whole tensor.
TEST_P(Rotary, RotatesColumnRangesOfFusedProjection) {
  ops::RotaryTable table(4, 50.0);
  const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
    const auto parts = tape.split_last(copy(tape, inputs[0]), {8, 4, 4});
    const Variable query = ops::rotary(tape, parts[0], 2, 4, 3, table),
                   key = ops::rotary(tape, parts[1], 1, 4, 3, table);
    const Tensor sum = Tensor::zeros({2, 5, 4}, DType::float64, testing::device());
    const auto add = [&](const Tensor& part) { ops::add(tape.stream(), sum, part, GradientMode::accumulate); };
    add(query.value().narrow(2, 0, 4));
    add(query.value().narrow(2, 4, 4));
    add(key.value());
    add(parts[2].value());
    return tape.record_one("sum", {query, key, parts[2]}, sum, {}, [](BackwardContext& context) {
      const GradientTarget d_query = context.d_input(0);
      for (std::int64_t start : {0, 4})
        ops::add(context.stream(), d_query.tensor.narrow(2, start, 4), context.d_output(), d_query.mode);
      context.pass(1, context.d_output());
      context.pass(2, context.d_output());
    });
  };
  const auto result = check_gradients(function, {normal_tensor({2, 5, 16}, DType::float64, "x")});
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
}

/// The gradient that reaches the rotation is shared with another input without a copy: rotating it must not change the
/// other input's gradient.
TEST_P(Rotary, KeepsSharedGradientUnchanged) {
  ops::RotaryTable table(6, 100.0);
  const auto function = [&](Tape& tape, const std::vector<Variable>& inputs) {
    const Variable plain = copy(tape, inputs[0]), turned = ops::rotary(tape, copy(tape, inputs[0]), 1, 6, 2, table);
    const Tensor sum = plain.value().clone();
    ops::add(tape.stream(), sum, turned.value(), GradientMode::accumulate);
    return tape.record_one("sum", {plain, turned}, sum, {}, [](BackwardContext& context) {
      context.pass(0, context.d_output());
      context.pass(1, context.d_output());
    });
  };
  const auto result = check_gradients(function, {normal_tensor({2, 3, 6}, DType::float64, "x")});
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
}

TEST_P(Rotary, RejectsLeafWithoutChangingIt) {
  ops::RotaryTable table(2, 100.0);
  const Variable leaf = Variable::leaf(normal_tensor({1, 2, 2}, DType::float32, "x"));
  const auto before = doubles(leaf.value());
  Tape tape{testing::stream()};
  EXPECT_THROW(ops::rotary(tape, leaf, 1, 2, 5, table), ContractError);
  EXPECT_EQ(doubles(leaf.value()), before);
  EXPECT_THROW(ops::rotary(tape, Variable(leaf.value()), 1, 4, 5, table), ContractError);
  EXPECT_THROW(ops::RotaryTable(3, 100.0), ContractError);
}

TEST_P(RotaryTable, GrowsByDoublingAndKeepsValues) {
  ops::RotaryTable table(8, 1e4), fresh(8, 1e4);
  const Tensor first = table.get(testing::stream(), DType::float32, 0, 10);
  const Tensor eleventh = table.get(testing::stream(), DType::float32, 10, 1);
  EXPECT_FALSE(first.shares_memory_with(eleventh));
  EXPECT_TRUE(eleventh.shares_memory_with(table.get(testing::stream(), DType::float32, 19, 1)))
      << "20 positions should have been computed at once";
  EXPECT_EQ(doubles(table.get(testing::stream(), DType::float32, 0, 10)), doubles(first));
  EXPECT_EQ(doubles(table.get(testing::stream(), DType::float32, 15, 2)),
            doubles(fresh.get(testing::stream(), DType::float32, 15, 2)));
}

TEST(RotaryOnTheCpu, IsIndependentOfThreadCount) {
  const auto run = [] {
    const Tensor x = normal_tensor({2, 700, 96}, DType::bfloat16, "x");
    ops::RotaryTable table(16, 1e4);
    Tape tape{Stream{}};
    return doubles(ops::rotary(tape, Variable(x), 6, 16, 0, table).value());
  };
  EXPECT_EQ(with_threads(1, run), with_threads(5, run));
}

TEST(RotaryShapes, ShapeOnlyDeviceGivesSameShapes) {
  const Device device{DeviceType::shape_only, 0};
  Tape tape{Stream{device}};
  ops::RotaryTable table(4, 1e4);
  const Variable leaf = Variable::leaf(Tensor::empty({2, 7, 8}, DType::bfloat16, device));
  const Variable y = ops::rotary(tape, copy(tape, leaf), 2, 4, 0, table);
  tape.backward({y}, {Tensor::empty(y.shape(), DType::bfloat16, device)});
  EXPECT_EQ(leaf.gradient().shape(), y.shape());
}

}  // namespace
}  // namespace furlong
