#include "framework/ops/elementwise/dropout.h"

#include "framework/primitives/arithmetic.h"
#include "tests/framework/ops/op_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;

class Dropout : public EngineTest {};
FURLONG_INSTANTIATE_ENGINES(Dropout);

constexpr RandomKey key{.seed = 0x123456789abcdefull, .step = 7, .stream = random_stream("blocks.2.dropout")};

/// The definition, element by element.
std::vector<double> expected_values(const std::vector<double>& x, double rate, std::uint64_t first_index) {
  std::vector<double> y;
  const auto threshold = static_cast<std::uint64_t>(std::llround(rate * 0x1p32));
  for (std::size_t i = 0; i < x.size(); ++i)
    y.push_back(random_word(key, first_index + i) >= threshold ? x[i] / (1 - rate) : 0.0);
  return y;
}

TEST_P(Dropout, MaskIsTheDocumentedFunctionOfTheIndex) {
  for_each_instruction_set([] {
    for (DType dtype : float_dtypes) {
      for (std::int64_t n : {1, 3, 64, 255, 256, 257, 1031}) {
        // Block 2^32 starts at index 2^34: a run across it carries into the upper half of the counter.
        for (std::uint64_t first_index :
             {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{6}, (std::uint64_t{1} << 34) - 27}) {
          const auto x = stored(normal_values(n, "x"), dtype);
          Tape tape(stream());
          const auto y =
              values_of(ops::dropout(tape, Variable(tensor_of(x, {n}, dtype)), 0.3, key, first_index).value());
          const auto expected = expected_values(x, 0.3, first_index);
          ASSERT_EQ(y.size(), expected.size());
          for (std::size_t i = 0; i < y.size(); ++i) {
            // Two roundings: of 1 / (1 - rate) and of the product. For bfloat16 the first is in float32.
            EXPECT_NEAR(y[i], expected[i], std::abs(expected[i]) * 2 * rounding_unit(dtype))
                << name_of(dtype) << " " << n << " " << i;
            EXPECT_EQ(y[i] == 0, expected[i] == 0) << i;
          }
        }
      }
    }
  });
}

TEST_P(Dropout, KeepsTheRequestedFractionAndTheMean) {
  const std::int64_t n = on_sanitized_simulator() ? 1 << 11 : on_simulator() ? 1 << 15 : 1 << 20;
  for (double rate : {0.1, 0.5, 0.9}) {
    Tape tape(stream());
    const auto y =
        ops::dropout(tape,
                     Variable(tensor_of(std::vector<double>(static_cast<std::size_t>(n), 1.0), {n}, DType::float32)),
                     rate, key)
            .value()
            .to_vector<float>();
    const auto kept = static_cast<double>(std::count_if(y.begin(), y.end(), [](float value) { return value != 0; }));
    const double deviation = std::sqrt(static_cast<double>(n) * rate * (1 - rate));
    EXPECT_NEAR(kept, static_cast<double>(n) * (1 - rate), 5 * deviation) << rate;
    EXPECT_FLOAT_EQ(*std::max_element(y.begin(), y.end()), static_cast<float>(1 / (1 - rate)));
  }
}

TEST_P(Dropout, BackwardUsesTheSameMaskAndAccumulates) {
  const std::int64_t n = 37;
  const auto function = [](Tape& tape, const std::vector<Variable>& in) {
    const Variable y = ops::dropout(tape, in[0], 0.4, key, 5), z = ops::dropout(tape, in[0], 0.2, key, 91);
    const Tensor sum = y.value().clone();
    ops::add(tape.stream(), sum, z.value(), GradientMode::accumulate);
    return tape.record_one("sum", {y, z}, sum, {}, [](BackwardContext& context) {
      context.pass(0, context.d_output());
      context.pass(1, context.d_output());
    });
  };
  const auto result = check_gradients(function, {tensor_of(normal_values(n, "x"), {n}, DType::float64)});
  EXPECT_LT(result.worst_relative_error, 1e-9) << result.where;

  for (DType dtype : float_dtypes) {
    Tape tape(stream());
    const Variable x = Variable::leaf(tensor_of(std::vector<double>(n, 1.0), {n}, dtype));
    const Variable y = ops::dropout(tape, x, 0.4, key, 5), z = ops::dropout(tape, x, 0.4, key, 5);
    const Tensor ones = x.value().clone();
    tape.backward({y, z}, {ones, ones});
    auto doubled = values_of(y.value());
    for (double& value : doubled) value *= 2;
    EXPECT_EQ(values_of(x.gradient()), doubled) << name_of(dtype);
  }
}

TEST_P(Dropout, PartsWithTheirFirstIndexEqualTheWhole) {
  const Tensor x = tensor_of(normal_values(1000, "x"), {1000}, DType::float32);
  Tape tape(stream());
  const auto whole = values_of(ops::dropout(tape, Variable(x), 0.5, key).value());
  std::vector<double> parts;
  for (const auto& [start, length] : {std::pair<std::int64_t, std::int64_t>{0, 333}, {333, 1}, {334, 666}}) {
    const auto part = values_of(
        ops::dropout(tape, Variable(x.narrow(0, start, length)), 0.5, key, static_cast<std::uint64_t>(start)).value());
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(parts, whole);
}

TEST_P(Dropout, PartsOfEachRowEqualTheWhole) {
  const std::int64_t rows = 3, n = 11, width = 5;
  const Tensor x = tensor_of(normal_values(rows * n * width, "x"), {rows, n, width}, DType::float32);
  Tape tape(stream());
  const Tensor whole = ops::dropout(tape, Variable(x), 0.5, key, 70).value();
  for (const auto& [start, length] : {std::pair<std::int64_t, std::int64_t>{0, 4}, {4, 1}, {5, 6}}) {
    const Tensor part = x.narrow(1, start, length), expected = whole.narrow(1, start, length);
    const Variable in = Variable::leaf(part), twice = Variable::leaf(part);
    const auto drop = [&](const Variable& from) {
      return ops::dropout(tape, from, 0.5, key, static_cast<std::uint64_t>(70 + start * width), {}, n * width);
    };
    const Variable out = drop(in), first = drop(twice), second = drop(twice);
    EXPECT_EQ(values_of(out.value()), values_of(expected));
    tape.backward({out, first, second},
                  {part, part, part});  // x itself as its gradient, so that the remaining part is the output
    EXPECT_EQ(values_of(in.gradient()), values_of(expected));
    std::vector<double> doubled = values_of(expected);
    for (double& value : doubled) value *= 2;
    EXPECT_EQ(values_of(twice.gradient()), doubled);
  }
}

TEST_P(Dropout, MaskDependsOnStepAndStream) {
  Tape tape(stream());
  const Variable x(tensor_of(std::vector<double>(4096, 1.0), {4096}, DType::float32));
  const auto mask = [&](const RandomKey& of) { return values_of(ops::dropout(tape, x, 0.5, of).value()); };
  RandomKey next_step = key, other_stream = key, other_seed = key;
  ++next_step.step;
  ++other_stream.stream;
  other_seed.seed += std::uint64_t{1} << 32;
  for (const RandomKey& other : {next_step, other_stream, other_seed}) {
    const auto a = mask(key), b = mask(other);
    int equal = 0;
    for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i];
    EXPECT_NEAR(equal, 2048, 5 * 32);  // independent masks at rate 1/2 agree in half the places, deviation 32
  }
}

TEST_P(Dropout, ColumnRangesAndThreadCountsGiveTheSameBits) {
  const std::int64_t rows = on_simulator() ? 70 : 700;
  const Tensor x = tensor_of(normal_values(rows * 64, "x"), {rows, 64}, DType::float32);
  const Tensor range = x.narrow(1, 10, 50), copy = Tensor::empty({rows, 50}, DType::float32, device());
  ops::convert(stream(), copy, range);
  std::vector<Tensor> results;
  for (int threads : {1, 3}) {
    const WithThreads guard(threads);
    Tape tape(stream());
    results.push_back(ops::dropout(tape, Variable(range), 0.25, key).value());
    results.push_back(ops::dropout(tape, Variable(copy), 0.25, key).value());
  }
  for (const Tensor& other : results) EXPECT_TRUE(same_bits(results[0], other));
}

TEST_P(Dropout, DeviceStepReplacesKeyStep) {
  for (DType dtype : float_dtypes) {
    const Tensor value = tensor_of(normal_values(301, "x"), {301}, dtype),
                 step = Tensor::from<double>({9}, {1}, device());
    const auto run = [&](std::uint32_t key_step, const Tensor& device_step) {
      RandomKey with = key;
      with.step = key_step;
      Tape tape(stream());
      const Variable x = Variable::leaf(value), y = ops::dropout(tape, x, 0.5, with, 3, device_step);
      tape.backward({y}, {value});
      return std::pair{y.value(), x.gradient()};
    };
    const auto given = run(9, {}), read = run(4, step), other = run(4, {});
    EXPECT_TRUE(same_bits(given.first, read.first)) << name_of(dtype);
    EXPECT_TRUE(same_bits(given.second, read.second)) << name_of(dtype);
    EXPECT_FALSE(same_bits(given.first, other.first)) << name_of(dtype);
  }
}

TEST_P(Dropout, MatchesTheCpuBitForBit) {
  for (DType dtype : float_dtypes) {
    for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1031}, {7, 64}, {5, 33}}) {
      const auto run = [&, rows = rows, columns = columns] {
        const Tensor wide = tensor_of(normal_values(rows * (columns + 3), "x"), {rows, columns + 3}, dtype);
        Tape tape(stream());
        const Variable x = Variable::leaf(wide), part = tape.split_last(x, {2, columns, 1})[1];
        const Variable y = ops::dropout(tape, part, 0.37, key, 6), z = ops::dropout(tape, part, 0.37, key, 2);
        tape.backward({y, z}, {y.value(), z.value()});
        return std::pair{y.value().to(Device{}), x.gradient().to(Device{})};
      };
      const auto here = run();
      const OnDevice cpu(Device{});
      const auto there = run();
      EXPECT_TRUE(same_bits(here.first, there.first)) << name_of(dtype) << " " << columns;
      EXPECT_TRUE(same_bits(here.second, there.second)) << name_of(dtype) << " " << columns;
    }
  }
}

TEST(DropoutRecord, RateZeroReturnsInputAndInvalidRatesAreRejected) {
  Tape tape(stream());
  const Variable x = Variable::leaf(Tensor::zeros({3}, DType::float32));
  EXPECT_EQ(ops::dropout(tape, x, 0, key).slot(), x.slot());
  EXPECT_EQ(tape.node_count(), 0u);
  for (double rate : {-0.1, 1.0, std::nan("")}) EXPECT_THROW(ops::dropout(tape, x, rate, key), ContractError) << rate;
}

TEST(DropoutRecord, SavesNothingForBackward) {
  Tape tape(stream());
  ops::dropout(tape, Variable::leaf(Tensor::zeros({1000}, DType::float32)), 0.5, key);
  EXPECT_EQ(tape.node_count(), 1u);
  EXPECT_TRUE(tape.saved_bytes().empty());
}

}  // namespace
}  // namespace furlong
