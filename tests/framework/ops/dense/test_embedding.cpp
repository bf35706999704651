#include "framework/ops/dense/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "framework/ops/attention/positions/document_positions.h"
#include "framework/primitives/arithmetic.h"
#include "tests/reference/embedding.h"
#include "tests/reference/values.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace reference;

class Embedding : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Embedding);
class EmbeddingOnGpu : public Embedding {};
FURLONG_INSTANTIATE_GPUS(EmbeddingOnGpu);

Tensor integers(const std::vector<std::int32_t>& values, const Shape& shape) {
  return Tensor::from(values, shape, testing::device());
}

struct Sizes {
  std::int64_t batch, n, vocabulary, d;
};
const std::vector<Sizes> all_sizes{{1, 1, 1, 1}, {2, 5, 7, 3}, {3, 17, 11, 33}, {1, 130, 5, 64}};

TEST_P(Embedding, GathersAndAddsPositions) {
  for (const auto& [batch, n, vocabulary, d] : all_sizes) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      const Tensor tokens = integer_tensor({batch, n}, 0, vocabulary, "tokens");
      const Variable table(normal_tensor({vocabulary, d}, dtype, "table")),
          positions(normal_tensor({n + 4, d}, dtype, "positions"));
      Tape tape{testing::stream()};
      const auto plain = ops::embedding(tape, tokens, table, nullptr, 0);
      const auto ids = tokens.to_vector<std::int32_t>();
      const auto size = static_cast<std::size_t>(d), length = static_cast<std::size_t>(n);
      EXPECT_EQ(doubles(plain.value()), reference::embedding(ids, doubles(table.value()), {}, length, size, 0));
      const auto placed = ops::embedding(tape, tokens, table, &positions, 3);
      EXPECT_EQ(placed.shape(), Shape({batch, n, d}));
      // One rounding: the sum of two stored values in the compute type. For bfloat16 the compute type adds a second
      // rounding of 2^-24.
      EXPECT_LE(relative_difference(placed.value(), reference::embedding(ids, doubles(table.value()),
                                                                         doubles(positions.value()), length, size, 3)),
                rounding_of(dtype) * 1.001);
    }
  }
}

TEST_P(Embedding, ReadsTokensOfAColumnRange) {
  const Tensor longer = integer_tensor({3, 9}, 0, 6, "tokens"), tokens = longer.narrow(1, 1, 8);
  const Variable table(normal_tensor({6, 5}, DType::float32, "table"));
  Tape tape{testing::stream()};
  EXPECT_EQ(doubles(ops::embedding(tape, tokens, table, nullptr, 0).value()),
            reference::embedding(tokens.to_vector<std::int32_t>(), doubles(table.value()), {}, 8, 5, 0));
}

TEST_P(Embedding, GathersPerTokenPositions) {
  const Tensor tokens = integer_tensor({2, 6}, 0, 5, "tokens"),
               positions = integers({0, 1, 0, 0, 1, 2, 0, 1, 2, 3, 4, 0}, {2, 6});
  const Tensor table = normal_tensor({5, 3}, DType::float32, "table"),
               places = normal_tensor({8, 3}, DType::float32, "places");
  Tape tape{testing::stream()};
  const Variable place_table(places);
  const auto y = ops::embedding(tape, tokens, Variable(table), &place_table, 2, &positions).value().to_vector<float>();
  const auto ids = tokens.to_vector<std::int32_t>(), at = positions.to_vector<std::int32_t>();
  const auto rows = table.to_vector<float>(), place_rows = places.to_vector<float>();
  for (std::size_t i = 0; i < 12; ++i) {
    for (std::size_t c = 0; c < 3; ++c)
      EXPECT_EQ(y[i * 3 + c], rows[static_cast<std::size_t>(ids[i]) * 3 + c] +
                                  place_rows[static_cast<std::size_t>(at[i] + 2) * 3 + c]);
  }
  const auto both = [&](Tape& on, const std::vector<Variable>& inputs) {
    return ops::embedding(on, tokens, inputs[0], &inputs[1], 2, &positions);
  };
  const auto result = check_gradients(
      both, {normal_tensor({5, 3}, DType::float64, "table"), normal_tensor({8, 3}, DType::float64, "places")});
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
  if (!testing::on_gpu()) {
    EXPECT_THROW(ops::embedding(tape, tokens, Variable(table), &place_table, 4, &positions),
                 ContractError);  // position 8 of 8
  }
  EXPECT_THROW(ops::embedding(tape, tokens, Variable(table), nullptr, 0, &positions), ContractError);
}

TEST_P(Embedding, GradientsMatchFiniteDifferences) {
  for (const auto& [batch, n, vocabulary, d] : {Sizes{1, 1, 1, 1}, Sizes{2, 5, 4, 3}, Sizes{3, 7, 5, 17}}) {
    const Tensor tokens = integer_tensor({batch, n}, 0, vocabulary, "tokens");
    const auto both = [&](Tape& tape, const std::vector<Variable>& inputs) {
      return ops::embedding(tape, tokens, inputs[0], &inputs[1], 2);
    };
    const auto result = check_gradients(both, {normal_tensor({vocabulary, d}, DType::float64, "table"),
                                               normal_tensor({n + 3, d}, DType::float64, "positions")});
    EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
  }
}

TEST_P(Embedding, AccumulatesGradientAndSkipsConstant) {
  const Tensor tokens = integer_tensor({2, 6}, 0, 5, "tokens"), other = integer_tensor({2, 6}, 0, 5, "other");
  const Tensor frozen = normal_tensor({5, 3}, DType::float64, "table");
  const auto three_uses = [&](Tape& tape, const std::vector<Variable>& inputs) {
    const Variable first = ops::embedding(tape, tokens, inputs[0], nullptr, 0);
    const Variable second = ops::embedding(tape, other, Variable(frozen), &inputs[1], 0);
    const Variable third = ops::embedding(tape, other, inputs[0], &inputs[1], 1);
    const Tensor sum = first.value().clone();
    for (const Variable* part : {&second, &third})
      ops::add(tape.stream(), sum, part->value(), GradientMode::accumulate);
    return tape.record_one("sum", {first, second, third}, sum, {}, [](BackwardContext& context) {
      for (std::size_t i = 0; i < 3; ++i) context.pass(i, context.d_output());
    });
  };
  const std::vector<Tensor> inputs{frozen.clone(), normal_tensor({7, 3}, DType::float64, "positions")};
  const auto result = check_gradients(three_uses, inputs);
  EXPECT_LE(result.worst_relative_error, 1e-9) << result.where;
}

TEST_P(Embedding, Bfloat16TableGradientsAreSummedInFloat32) {
  // 300 uses of one row: a sum in bfloat16 would stop growing at 256.
  const Tensor tokens = integers(std::vector<std::int32_t>(300, 1), {1, 300});
  Variable table = Variable::leaf(normal_tensor({3, 4}, DType::bfloat16, "table"));
  table.slot()->dtype = DType::float32;  // as in the parameter store
  Tape tape{testing::stream()};
  const Variable y = ops::embedding(tape, tokens, table, nullptr, 0);
  const Tensor ones = Tensor::empty(y.shape(), y.dtype(), testing::device());
  ops::fill(tape.stream(), ones, 1.0);
  tape.backward({y}, {ones});
  EXPECT_THAT(table.gradient().to_vector<float>(), ::testing::ElementsAre(0, 0, 0, 0, 300, 300, 300, 300, 0, 0, 0, 0));

  const Variable leaf = Variable::leaf(table.value());  // its gradient is bfloat16
  const Variable again = ops::embedding(tape, tokens, leaf, nullptr, 0);
  tape.backward({again}, {ones});
  EXPECT_EQ(doubles(leaf.gradient())[4], 300.0);
}

/// Ids as in text: one id that fills many tiles, several that share one tile, and runs of equal ids that start at each
/// place in a tile. 3000 tokens make several runs of the sort.
TEST_P(Embedding, SumsFrequentAndRareTokens) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    for (const std::int64_t d : {3, 72}) {
      constexpr std::int64_t n = 1500, vocabulary = 400;
      std::vector<std::int32_t> ids;
      for (std::uint64_t i = 0; i < 2 * n; ++i) {
        const double u = random_uniform({3, 0, random_stream("ids")}, i);
        ids.push_back(i % 3 == 0 ? 7 : static_cast<std::int32_t>(u * u * u * vocabulary));
      }
      const Variable table = Variable::leaf(normal_tensor({vocabulary, d}, dtype, "table"));
      table.slot()->dtype = DType::float32;
      Tape tape{testing::stream()};
      const Variable y = ops::embedding(tape, integers(ids, {2, n}), table, nullptr, 0);
      const Tensor d_y = normal_tensor(y.shape(), dtype, "d_y");
      tape.backward({y}, {d_y});
      std::vector<double> expected(static_cast<std::size_t>(vocabulary * d));
      const std::vector<double> gradients = doubles(d_y);
      const auto width = static_cast<std::size_t>(d);
      for (std::size_t i = 0; i < gradients.size(); ++i)
        expected[static_cast<std::size_t>(ids[i / width]) * width + i % width] += gradients[i];
      // Over 1000 terms of order 1, whose sum is of order 30 to 100.
      EXPECT_LE(relative_difference(table.gradient(), expected), 1e-6) << d << " " << name_of(dtype);
      const std::vector<double> once = doubles(table.gradient());
      const Variable z = ops::embedding(tape, integers(ids, {2, n}), table, nullptr, 0);
      tape.backward({z}, {d_y});
      std::vector<double> twice = doubles(table.gradient());
      for (std::size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-5 * (1 + std::abs(once[i])));
    }
  }
}

/// Rows that are not aligned for vector accesses are read element by element.
TEST_P(Embedding, UnalignedViewsGiveTheSameBits) {
  const Tensor tokens = integer_tensor({2, 40}, 0, 5, "tokens");
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    const std::vector<double> values = doubles(normal_tensor({161}, dtype, "table"));
    const auto gradients = [&](const Tensor& all) {
      const Variable table = Variable::leaf(all.reshape({5, 32}));
      Tape tape{testing::stream()};
      const Variable y = ops::embedding(tape, tokens, table, nullptr, 0);
      tape.backward({y}, {normal_tensor(y.shape(), dtype, "d_y")});
      return std::pair{doubles(y.value()), doubles(table.gradient())};
    };
    const Tensor whole = tensor_of(values, {161}, dtype);
    EXPECT_EQ(gradients(whole.narrow(0, 1, 160)), gradients(whole.narrow(0, 1, 160).clone())) << name_of(dtype);
  }
}

/// The host does not check ids in GPU memory: an invalid id gives a row of NaN and no gradient.
TEST_P(EmbeddingOnGpu, IdOutsideTheTableGivesNan) {
  const Tensor table0 = normal_tensor({4, 8}, DType::float32, "table"),
               places0 = normal_tensor({6, 8}, DType::float32, "places");
  const Variable table = Variable::leaf(table0), places = Variable::leaf(places0);
  Tape tape{testing::stream()};
  const Tensor ids = integers({3, 4, -1, 0, 1 << 30, 1}, {1, 6}), own = integers({0, 1, 2, 6, 4, -1}, {1, 6});
  const Variable y = ops::embedding(tape, ids, table, &places, 0, &own);
  const std::vector<double> values = doubles(y.value());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i >= 8) << i;
  tape.backward({y}, {normal_tensor(y.shape(), DType::float32, "d_y")});
  const std::vector<double> d_y = doubles(normal_tensor({6, 8}, DType::float32, "d_y")),
                            d_table = doubles(table.gradient());
  for (std::size_t c = 0; c < 8; ++c) {
    EXPECT_EQ(d_table[3 * 8 + c], d_y[c]);
    EXPECT_EQ(d_table[2 * 8 + c], 0);
  }
}

TEST(EmbeddingOnCpu, BitsDoNotDependOnThreadCount) {
  const auto run = [] {
    const Tensor tokens = integer_tensor({2, 601}, 0, 50, "tokens");
    const Variable table = Variable::leaf(normal_tensor({50, 130}, DType::float32, "table"));
    const Variable positions = Variable::leaf(normal_tensor({601, 130}, DType::float32, "positions"));
    Tape tape{testing::stream()};
    const Variable y = ops::embedding(tape, tokens, table, &positions, 0);
    tape.backward({y}, {normal_tensor(y.shape(), DType::float32, "d_y")});
    return std::vector{y.value().to_vector<float>(), table.gradient().to_vector<float>(),
                       positions.gradient().to_vector<float>()};
  };
  EXPECT_EQ(with_threads(1, run), with_threads(5, run));
}

TEST(EmbeddingOnCpu, NamesTokenOutsideTheVocabulary) {
  const Variable table(normal_tensor({4, 2}, DType::float32, "table"));
  Tape tape{testing::stream()};
  for (std::int32_t wrong : {4, -1}) {
    const Tensor tokens = Tensor::from(std::vector<std::int32_t>{0, 1, 2, wrong, 3, 0}, {2, 3});
    EXPECT_THAT(testing::message_of<ContractError>([&] { ops::embedding(tape, tokens, table, nullptr, 0); }),
                ::testing::HasSubstr(fmt::format("token id {} at [1, 0] is outside the vocabulary of 4", wrong)));
  }
  const Variable positions(normal_tensor({3, 2}, DType::float32, "positions"));
  EXPECT_THROW(ops::embedding(tape, Tensor::from(std::vector<std::int32_t>{0, 1}, {1, 2}), table, &positions, 2),
               ContractError);
}

TEST(EmbeddingOnCpu, ShapeOnlyRunsTheSameSteps) {
  const Device device{DeviceType::shape_only, 0};
  Tape tape{Stream{device}};
  const Variable table = Variable::leaf(Tensor::empty({50, 8}, DType::bfloat16, device));
  const Variable y = ops::embedding(tape, Tensor::empty({2, 7}, DType::int32, device), table, nullptr, 0);
  EXPECT_EQ(y.shape(), Shape({2, 7, 8}));
  tape.backward({y}, {Tensor::empty(y.shape(), DType::bfloat16, device)});
  EXPECT_EQ(table.gradient().shape(), Shape({50, 8}));
}

class SinusoidalPositions : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(SinusoidalPositions);

TEST_P(SinusoidalPositions, FollowTheFormula) {
  for (std::int64_t d : {1, 2, 7, 64}) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      const auto table = doubles(ops::sinusoidal_positions(testing::stream(), 301, d, dtype));
      for (std::int64_t p : {0, 1, 2, 300}) {
        for (std::int64_t i = 0; i < d; ++i) {
          const double angle = static_cast<double>(p) *
                               std::exp(-std::log(10000.0) * static_cast<double>(i / 2 * 2) / static_cast<double>(d));
          // One rounding of the result; in double also the rounding of the angle, up to 300 · 2^-52.
          EXPECT_NEAR(table[static_cast<std::size_t>(p * d + i)], i % 2 ? std::cos(angle) : std::sin(angle),
                      rounding_of(dtype) + 2e-13);
        }
      }
    }
  }
}

}  // namespace
}  // namespace furlong
