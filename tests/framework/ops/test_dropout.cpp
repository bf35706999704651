#include "framework/ops/dropout.h"

#include "framework/ops/arithmetic.h"
#include "tests/framework/ops/op_testing.h"

namespace furlong {
namespace {

using namespace furlong::testing;

constexpr RandomKey key{.seed = 0x123456789abcdefull, .step = 7, .stream = random_stream("blocks.2.dropout")};

/// The definition, one element at a time.
std::vector<double> expected_values(const std::vector<double>& x, double rate, std::uint64_t first_index) {
  std::vector<double> y;
  const auto threshold = static_cast<std::uint64_t>(std::llround(rate * 0x1p32));
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(random_word(key, first_index + i) >= threshold ? x[i] / (1 - rate) : 0.0);
  return y;
}

TEST(Dropout, TheMaskIsTheDocumentedFunctionOfTheIndex) {
  for_each_instruction_set([] {
    for (DType dtype : float_dtypes) {
      for (std::int64_t n : {1, 3, 64, 255, 256, 257, 1031}) {
        // Block 2^32 begins at index 2^34: a run across it carries into the upper half of the counter.
        for (std::uint64_t first_index : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{6}, (std::uint64_t{1} << 34) - 27}) {
          const auto x = stored(normal_values(n, "x"), dtype);
          Tape tape(Stream{});
          const auto y = values_of(ops::dropout(tape, Variable(tensor_of(x, {n}, dtype)), 0.3, key, first_index).value());
          const auto expected = expected_values(x, 0.3, first_index);
          ASSERT_EQ(y.size(), expected.size());
          for (std::size_t i = 0; i < y.size(); ++i) {
            // Two roundings: of 1 / (1 - rate), and of the product (bfloat16 rounds only the latter, and the former as float32).
            EXPECT_NEAR(y[i], expected[i], std::abs(expected[i]) * 2 * rounding_unit(dtype)) << name_of(dtype) << " " << n << " " << i;
            EXPECT_EQ(y[i] == 0, expected[i] == 0) << i;
          }
        }
      }
    }
  });
}

TEST(Dropout, KeepsTheStatedShareAndTheMean) {
  const std::int64_t n = 1 << 20;
  for (double rate : {0.1, 0.5, 0.9}) {
    Tape tape(Stream{});
    const auto y =
        ops::dropout(tape, Variable(tensor_of(std::vector<double>(n, 1.0), {n}, DType::float32)), rate, key).value().to_vector<float>();
    const auto kept = static_cast<double>(std::count_if(y.begin(), y.end(), [](float value) { return value != 0; }));
    const double deviation = std::sqrt(static_cast<double>(n) * rate * (1 - rate));
    EXPECT_NEAR(kept, static_cast<double>(n) * (1 - rate), 5 * deviation) << rate;
    EXPECT_FLOAT_EQ(*std::max_element(y.begin(), y.end()), static_cast<float>(1 / (1 - rate)));
  }
}

TEST(Dropout, BackwardUsesTheSameMaskAndAccumulates) {
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
    Tape tape(Stream{});
    const Variable x = Variable::leaf(tensor_of(std::vector<double>(n, 1.0), {n}, dtype));
    const Variable y = ops::dropout(tape, x, 0.4, key, 5), z = ops::dropout(tape, x, 0.4, key, 5);
    const Tensor ones = x.value().clone();
    tape.backward({y, z}, {ones, ones});
    auto doubled = values_of(y.value());
    for (double& value : doubled) value *= 2;
    EXPECT_EQ(values_of(x.gradient()), doubled) << name_of(dtype);
  }
}

TEST(Dropout, PartsWithTheirFirstIndexEqualTheWhole) {
  const Tensor x = tensor_of(normal_values(1000, "x"), {1000}, DType::float32);
  Tape tape(Stream{});
  const auto whole = values_of(ops::dropout(tape, Variable(x), 0.5, key).value());
  std::vector<double> parts;
  for (const auto& [start, length] : {std::pair<std::int64_t, std::int64_t>{0, 333}, {333, 1}, {334, 666}}) {
    const auto part =
        values_of(ops::dropout(tape, Variable(x.narrow(0, start, length)), 0.5, key, static_cast<std::uint64_t>(start)).value());
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(parts, whole);
}

TEST(Dropout, AnotherStepOrStreamIsAnotherMask) {
  Tape tape(Stream{});
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
    EXPECT_NEAR(equal, 2048, 5 * 32);  // independent masks at one half agree in half the places, deviation 32
  }
}

TEST(Dropout, ColumnRangesAndThreadsGiveTheSame) {
  const Tensor x = tensor_of(normal_values(700 * 64, "x"), {700, 64}, DType::float32);
  const Tensor range = x.narrow(1, 10, 50), copy = Tensor::empty({700, 50}, DType::float32);
  ops::convert(Stream{}, copy, range);
  std::vector<Tensor> results;
  for (int threads : {1, 3}) {
    const WithThreads guard(threads);
    Tape tape(Stream{});
    results.push_back(ops::dropout(tape, Variable(range), 0.25, key).value());
    results.push_back(ops::dropout(tape, Variable(copy), 0.25, key).value());
  }
  for (const Tensor& other : results) EXPECT_TRUE(same_bits(results[0], other));
}

TEST(Dropout, RateZeroIsTheInputItselfAndOtherRatesAreRefused) {
  Tape tape(Stream{});
  const Variable x = Variable::leaf(Tensor::zeros({3}, DType::float32));
  EXPECT_EQ(ops::dropout(tape, x, 0, key).slot(), x.slot());
  EXPECT_EQ(tape.node_count(), 0u);
  for (double rate : {-0.1, 1.0, std::nan("")}) EXPECT_THROW(ops::dropout(tape, x, rate, key), ContractError) << rate;
}

TEST(Dropout, NothingIsKeptForBackward) {
  Tape tape(Stream{});
  ops::dropout(tape, Variable::leaf(Tensor::zeros({1000}, DType::float32)), 0.5, key);
  EXPECT_EQ(tape.node_count(), 1u);
  EXPECT_TRUE(tape.saved_bytes().empty());
}

}  // namespace
}  // namespace furlong
