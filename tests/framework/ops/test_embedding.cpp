#include "framework/ops/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "framework/ops/arithmetic.h"
#include "framework/ops/document_positions.h"
#include "tests/reference/embedding.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

struct Sizes {
  std::int64_t batch, n, vocabulary, d;
};
const std::vector<Sizes> all_sizes{{1, 1, 1, 1}, {2, 5, 7, 3}, {3, 17, 11, 33}, {1, 130, 5, 64}};

TEST(Embedding, GathersAndAddsPositions) {
  for (const auto& [batch, n, vocabulary, d] : all_sizes) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      const Tensor tokens = integer_tensor({batch, n}, 0, vocabulary, "tokens");
      const Variable table(normal_tensor({vocabulary, d}, dtype, "table")), positions(normal_tensor({n + 4, d}, dtype, "positions"));
      Tape tape{Stream{}};
      const auto plain = ops::embedding(tape, tokens, table, nullptr, 0);
      const auto ids = tokens.to_vector<std::int32_t>();
      const auto size = static_cast<std::size_t>(d), length = static_cast<std::size_t>(n);
      EXPECT_EQ(doubles(plain.value()), reference::embedding(ids, doubles(table.value()), {}, length, size, 0));
      const auto placed = ops::embedding(tape, tokens, table, &positions, 3);
      EXPECT_EQ(placed.shape(), Shape({batch, n, d}));
      // One rounding: the sum of two stored values, made in the compute type, which for bfloat16 rounds a second time by 2^-24.
      EXPECT_LE(relative_difference(placed.value(),
                                    reference::embedding(ids, doubles(table.value()), doubles(positions.value()), length, size, 3)),
                rounding_of(dtype) * 1.001);
    }
  }
}

TEST(Embedding, ReadsTokensOfAColumnRange) {
  const Tensor longer = integer_tensor({3, 9}, 0, 6, "tokens"), tokens = longer.narrow(1, 1, 8);
  const Variable table(normal_tensor({6, 5}, DType::float32, "table"));
  Tape tape{Stream{}};
  EXPECT_EQ(doubles(ops::embedding(tape, tokens, table, nullptr, 0).value()),
            reference::embedding(tokens.to_vector<std::int32_t>(), doubles(table.value()), {}, 8, 5, 0));
}

TEST(Embedding, GivesEachTokenAPositionOfItsOwn) {
  const Tensor tokens = integer_tensor({2, 6}, 0, 5, "tokens"),
               positions = Tensor::from(std::vector<std::int32_t>{0, 1, 0, 0, 1, 2, 0, 1, 2, 3, 4, 0}, {2, 6});
  const Tensor table = normal_tensor({5, 3}, DType::float32, "table"), places = normal_tensor({8, 3}, DType::float32, "places");
  Tape tape{Stream{}};
  const Variable place_table(places);
  const auto y = ops::embedding(tape, tokens, Variable(table), &place_table, 2, &positions).value().to_vector<float>();
  const auto ids = tokens.to_vector<std::int32_t>(), at = positions.to_vector<std::int32_t>();
  const auto rows = table.to_vector<float>(), place_rows = places.to_vector<float>();
  for (std::size_t i = 0; i < 12; ++i) {
    for (std::size_t c = 0; c < 3; ++c)
      EXPECT_EQ(y[i * 3 + c], rows[static_cast<std::size_t>(ids[i]) * 3 + c] + place_rows[static_cast<std::size_t>(at[i] + 2) * 3 + c]);
  }
  const auto both = [&](Tape& on, const std::vector<Variable>& inputs) {
    return ops::embedding(on, tokens, inputs[0], &inputs[1], 2, &positions);
  };
  const auto result =
      check_gradients(both, {normal_tensor({5, 3}, DType::float64, "table"), normal_tensor({8, 3}, DType::float64, "places")});
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
  EXPECT_THROW(ops::embedding(tape, tokens, Variable(table), &place_table, 4, &positions), ContractError);  // position 8 of 8
  EXPECT_THROW(ops::embedding(tape, tokens, Variable(table), nullptr, 0, &positions), ContractError);
}

TEST(DocumentPositions, CountFromTheBeginningOfEachRun) {
  const Tensor documents = Tensor::from(std::vector<std::int32_t>{5, 5, 2, 2, 2, 5, 5, 0, 0, 0}, {2, 5});
  EXPECT_THAT(ops::document_positions(Stream{}, documents).to_vector<std::int32_t>(), testing::ElementsAre(0, 1, 0, 1, 2, 0, 1, 0, 1, 2));
  EXPECT_THROW(ops::document_positions(Stream{}, normal_tensor({2, 5}, DType::float32, "x")), ContractError);
  const Device device{DeviceType::shape_only, 0};
  EXPECT_EQ(ops::document_positions(Stream{device}, Tensor::empty({2, 5}, DType::int32, device)).shape(), Shape({2, 5}));
}

TEST(Embedding, GradientsMatchFiniteDifferences) {
  for (const auto& [batch, n, vocabulary, d] : {Sizes{1, 1, 1, 1}, Sizes{2, 5, 4, 3}, Sizes{3, 7, 5, 17}}) {
    const Tensor tokens = integer_tensor({batch, n}, 0, vocabulary, "tokens");
    const auto both = [&](Tape& tape, const std::vector<Variable>& inputs) {
      return ops::embedding(tape, tokens, inputs[0], &inputs[1], 2);
    };
    const auto result = check_gradients(
        both, {normal_tensor({vocabulary, d}, DType::float64, "table"), normal_tensor({n + 3, d}, DType::float64, "positions")});
    EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
  }
}

TEST(Embedding, AddsToAGradientAndSkipsAConstant) {
  const Tensor tokens = integer_tensor({2, 6}, 0, 5, "tokens"), other = integer_tensor({2, 6}, 0, 5, "other");
  const Tensor frozen = normal_tensor({5, 3}, DType::float64, "table");
  const auto three_uses = [&](Tape& tape, const std::vector<Variable>& inputs) {
    const Variable first = ops::embedding(tape, tokens, inputs[0], nullptr, 0);
    const Variable second = ops::embedding(tape, other, Variable(frozen), &inputs[1], 0);
    const Variable third = ops::embedding(tape, other, inputs[0], &inputs[1], 1);
    const Tensor sum = first.value().clone();
    for (const Variable* part : {&second, &third}) ops::add(tape.stream(), sum, part->value(), GradientMode::accumulate);
    return tape.record_one("sum", {first, second, third}, sum, {}, [](BackwardContext& context) {
      for (std::size_t i = 0; i < 3; ++i) context.pass(i, context.d_output());
    });
  };
  const std::vector<Tensor> inputs{frozen.clone(), normal_tensor({7, 3}, DType::float64, "positions")};
  const auto result = check_gradients(three_uses, inputs);
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
}

TEST(Embedding, Bfloat16TableGradientsAreSummedInFloat32) {
  // 300 uses of one row: a sum kept in bfloat16 would stop growing at 256.
  const Tensor tokens = Tensor::from(std::vector<std::int32_t>(300, 1), {1, 300});
  Variable table = Variable::leaf(normal_tensor({3, 4}, DType::bfloat16, "table"));
  table.slot()->dtype = DType::float32;  // as the parameter store has it
  Tape tape{Stream{}};
  const Variable y = ops::embedding(tape, tokens, table, nullptr, 0);
  const Tensor ones = Tensor::empty(y.shape(), y.dtype());
  ops::fill(tape.stream(), ones, 1.0);
  tape.backward({y}, {ones});
  EXPECT_THAT(table.gradient().to_vector<float>(), testing::ElementsAre(0, 0, 0, 0, 300, 300, 300, 300, 0, 0, 0, 0));

  const Variable leaf = Variable::leaf(table.value());  // its gradient is bfloat16
  const Variable again = ops::embedding(tape, tokens, leaf, nullptr, 0);
  tape.backward({again}, {ones});
  EXPECT_EQ(doubles(leaf.gradient())[4], 300.0);
}

TEST(Embedding, IsTheSameOnAnyNumberOfThreads) {
  const auto run = [] {
    const Tensor tokens = integer_tensor({2, 601}, 0, 50, "tokens");
    const Variable table = Variable::leaf(normal_tensor({50, 130}, DType::float32, "table"));
    const Variable positions = Variable::leaf(normal_tensor({601, 130}, DType::float32, "positions"));
    Tape tape{Stream{}};
    const Variable y = ops::embedding(tape, tokens, table, &positions, 0);
    tape.backward({y}, {normal_tensor(y.shape(), DType::float32, "d_y")});
    return std::vector{y.value().to_vector<float>(), table.gradient().to_vector<float>(), positions.gradient().to_vector<float>()};
  };
  EXPECT_EQ(with_threads(1, run), with_threads(5, run));
}

TEST(Embedding, NamesATokenOutsideTheVocabulary) {
  const Variable table(normal_tensor({4, 2}, DType::float32, "table"));
  Tape tape{Stream{}};
  for (std::int32_t wrong : {4, -1}) {
    try {
      ops::embedding(tape, Tensor::from(std::vector<std::int32_t>{0, 1, 2, wrong, 3, 0}, {2, 3}), table, nullptr, 0);
      ADD_FAILURE() << "token " << wrong << " was taken";
    } catch (const ContractError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(fmt::format("token id {} at [1, 0] is outside the vocabulary of 4", wrong)));
    }
  }
  const Variable positions(normal_tensor({3, 2}, DType::float32, "positions"));
  EXPECT_THROW(ops::embedding(tape, Tensor::from(std::vector<std::int32_t>{0, 1}, {1, 2}), table, &positions, 2), ContractError);
}

TEST(Embedding, ShapeOnlyTakesTheSameSteps) {
  const Device device{DeviceType::shape_only, 0};
  Tape tape{Stream{device}};
  const Variable table = Variable::leaf(Tensor::empty({50, 8}, DType::bfloat16, device));
  const Variable y = ops::embedding(tape, Tensor::empty({2, 7}, DType::int32, device), table, nullptr, 0);
  EXPECT_EQ(y.shape(), Shape({2, 7, 8}));
  tape.backward({y}, {Tensor::empty(y.shape(), DType::bfloat16, device)});
  EXPECT_EQ(table.gradient().shape(), Shape({50, 8}));
}

TEST(SinusoidalPositions, FollowTheFormula) {
  for (std::int64_t d : {1, 2, 7, 64}) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      const auto table = doubles(ops::sinusoidal_positions(Stream{}, 301, d, dtype));
      for (std::int64_t p : {0, 1, 2, 300}) {
        for (std::int64_t i = 0; i < d; ++i) {
          const double angle =
              static_cast<double>(p) * std::exp(-std::log(10000.0) * static_cast<double>(i / 2 * 2) / static_cast<double>(d));
          // A rounding of the result; in double the angle's own rounding, up to 300 · 2^-52, shows as well.
          EXPECT_NEAR(table[static_cast<std::size_t>(p * d + i)], i % 2 ? std::cos(angle) : std::sin(angle), rounding_of(dtype) + 2e-13);
        }
      }
    }
  }
}

}  // namespace
}  // namespace furlong
