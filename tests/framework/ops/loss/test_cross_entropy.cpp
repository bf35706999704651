#include "framework/ops/loss/cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/autodiff/gradient_check.h"
#include "framework/core/arena.h"
#include "framework/ops/loss/classifier_gradients.h"
#include "framework/ops/loss/cross_entropy_rows.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/gemm.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/values.h"

namespace furlong {
namespace {

using namespace reference;

class CrossEntropy : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(CrossEntropy);

Tensor integers(const std::vector<std::int32_t>& values, const Shape& shape) {
  return Tensor::from(values, shape, testing::device());
}

struct Case {
  std::int64_t rows, d, vocabulary;
  DType dtype;
  bool with_bias = true;
  double scale = 1.0;     // of the weights: larger values give sharper distributions
  double normalizer = 0;  // 0: the number of targets
  double d_loss = 1.0;
  std::size_t counted_of = 1;  // one target in so many counts, fewer if the targets say so
};

struct Outcome {
  double loss;
  std::vector<std::int32_t> counts;
  std::vector<double> row_losses, d_hidden, d_weight, d_bias;
};

Tensor some_targets(const Case& c) {
  std::vector<std::int32_t> targets = integer_tensor({c.rows}, -1, c.vocabulary, "targets").to_vector<std::int32_t>();
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (row % c.counted_of != 0) targets[row] = -1;
  }
  return integers(targets, {c.rows});
}

struct Inputs {
  Tensor hidden, weight, bias, targets;
  explicit Inputs(const Case& c)
      : hidden(normal_tensor({c.rows, c.d}, c.dtype, "hidden")),
        weight(normal_tensor({c.vocabulary, c.d}, c.dtype, "weight", c.scale)),
        bias(normal_tensor({c.vocabulary}, c.dtype, "bias")),
        targets(some_targets(c)) {}
};

Outcome run(const Case& c, const Inputs& inputs) {
  const Variable hidden = Variable::leaf(inputs.hidden), weight = Variable::leaf(inputs.weight),
                 bias = Variable::leaf(inputs.bias);
  weight.slot()->dtype = bias.slot()->dtype = accumulate_dtype(c.dtype);  // as in the parameter store
  Tape tape{testing::stream()};
  ops::CrossEntropyOptions options{.count_correct = true, .keep_row_losses = true};
  if (c.normalizer > 0) options.normalizer = c.normalizer;
  const auto result = ops::cross_entropy(tape, hidden, weight, c.with_bias ? &bias : nullptr, inputs.targets, options);
  tape.backward(result.loss, c.d_loss);
  return {doubles(result.loss.value())[0], result.counts.to_vector<std::int32_t>(),
          doubles(result.row_losses),      doubles(hidden.gradient()),
          doubles(weight.gradient()),      c.with_bias ? doubles(bias.gradient()) : std::vector<double>{}};
}

reference::CrossEntropy expected(const Case& c, const Inputs& inputs) {
  auto result = reference::cross_entropy(
      doubles(inputs.hidden), doubles(inputs.weight), c.with_bias ? doubles(inputs.bias) : std::vector<double>{},
      inputs.targets.to_vector<std::int32_t>(), static_cast<std::size_t>(c.d), c.normalizer);
  for (auto* gradient : {&result.d_hidden, &result.d_weight, &result.d_bias}) {
    for (double& value : *gradient) value *= c.d_loss;
  }
  return result;
}

/// Absolute error bound of a logit: its products are summed in float32. All other errors follow from it.
double logit_error(const Case& c) {
  return 4 * rounding_of(accumulate_dtype(c.dtype)) * c.scale * static_cast<double>(c.d + 16);
}

void compare(const Case& c) {
  SCOPED_TRACE(fmt::format("{} rows, d {}, vocabulary {}, {}", c.rows, c.d, c.vocabulary, name_of(c.dtype)));
  const Inputs inputs(c);
  const auto want = expected(c, inputs);
  const Outcome got = run(c, inputs);
  const double error = logit_error(c);
  EXPECT_THAT(got.counts, ::testing::ElementsAre(want.valid, want.correct));
  EXPECT_NEAR(got.loss, want.loss, error + rounding_of(accumulate_dtype(c.dtype)) * 4 * std::abs(want.loss));
  ASSERT_EQ(got.row_losses.size(), want.row_losses.size());
  for (std::size_t r = 0; r < want.row_losses.size(); ++r)
    EXPECT_NEAR(got.row_losses[r], want.row_losses[r], error + 1e-6 * want.row_losses[r]);
  // bfloat16: gradients of the logits are rounded to 2^-8 before the products, d_hidden also after them, and once more
  // after scaling.
  const double gradient_error = c.dtype == DType::bfloat16 ? 3 * 0x1p-8 : 3 * error;
  EXPECT_LE(relative_difference(got.d_hidden, want.d_hidden), gradient_error);
  EXPECT_LE(relative_difference(got.d_weight, want.d_weight), gradient_error);
  if (!c.with_bias) return;
  EXPECT_LE(relative_difference(got.d_bias, want.d_bias), gradient_error);
}

TEST_P(CrossEntropy, MatchesTheReference) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    compare({.rows = 1, .d = 1, .vocabulary = 2, .dtype = dtype});
    compare({.rows = 7, .d = 5, .vocabulary = 3, .dtype = dtype, .d_loss = 0.37});
    compare({.rows = 65, .d = 33, .vocabulary = 257, .dtype = dtype, .scale = 0.3});
    compare({.rows = 40,
             .d = 16,
             .vocabulary = 100,
             .dtype = dtype,
             .with_bias = false,
             .normalizer = 123.0,
             .d_loss = -2.0});
  }
}

TEST_P(CrossEntropy, AgreesAcrossChunksOfRows) {
  // 2^21 logits are stored at a time: 523 rows of 4001 make two chunks, of 262 and 261 rows (on CUDA one).
  const std::int64_t rows = 523;
  compare({.rows = rows, .d = 3, .vocabulary = 4001, .dtype = DType::float32});
  compare({.rows = rows, .d = 3, .vocabulary = 4001, .dtype = DType::bfloat16});
}

// On the CPU these compute a third or a seventh of the rows; the last in three chunks.
TEST_P(CrossEntropy, IgnoresMostRows) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    compare({.rows = 65, .d = 33, .vocabulary = 257, .dtype = dtype, .d_loss = 0.37, .counted_of = 7});
    compare({.rows = 65, .d = 33, .vocabulary = 257, .dtype = dtype, .with_bias = false, .counted_of = 3});
  }
  compare({.rows = 4003, .d = 3, .vocabulary = 4001, .dtype = DType::float32, .counted_of = 3});
}

TEST_P(CrossEntropy, StaysFiniteForLogitsOfThousands) {
  for (DType dtype : {DType::float32, DType::bfloat16})
    compare({.rows = 9, .d = 8, .vocabulary = 50, .dtype = dtype, .scale = 1000.0});
}

TEST_P(CrossEntropy, GradientsMatchFiniteDifferences) {
  std::vector<std::tuple<int, int, int>> sizes{{1, 1, 2}, {5, 3, 7}};
  if (!testing::on_simulator()) sizes.emplace_back(9, 6, 33);
  for (const auto& [rows, d, vocabulary] : sizes) {
    std::vector<std::int32_t> numbers = integer_tensor({rows}, -1, vocabulary, "targets").to_vector<std::int32_t>();
    numbers[0] = 1;  // at least one target counts
    const Tensor targets = integers(numbers, {rows});
    const std::vector<Tensor> inputs{normal_tensor({rows, d}, DType::float64, "hidden"),
                                     normal_tensor({vocabulary, d}, DType::float64, "weight"),
                                     normal_tensor({vocabulary}, DType::float64, "bias")};
    const auto function = [&](Tape& tape, const std::vector<Variable>& v) {
      return ops::cross_entropy(tape, v[0], v[1], &v[2], targets).loss;
    };
    auto result = check_gradients(function, inputs);
    EXPECT_LE(result.worst_relative_error, 1e-8) << result.where;
    const auto normalized = [&](Tape& tape, const std::vector<Variable>& v) {
      return ops::cross_entropy(tape, v[0], v[1], nullptr, targets, {.normalizer = 17.0}).loss;
    };
    result = check_gradients(normalized, {inputs[0], inputs[1]});
    EXPECT_LE(result.worst_relative_error, 1e-8) << result.where;
  }
}

/// Hidden and weight are one tensor shared by two losses; a third loss has a constant weight.
TEST_P(CrossEntropy, AccumulatesGradients) {
  const Tensor targets = integers({2, -1, 0, 3}, {4}), constant = normal_tensor({4, 3}, DType::float64, "constant");
  const auto function = [&](Tape& tape, const std::vector<Variable>& v) {
    const Variable a = ops::cross_entropy(tape, v[0], v[0], nullptr, targets).loss,
                   b = ops::cross_entropy(tape, v[0], Variable(constant), nullptr, targets).loss;
    const Variable c = ops::cross_entropy(tape, Variable(constant), v[0], nullptr, targets, {.normalizer = 2.0}).loss;
    const Tensor sum = Tensor::zeros(Shape{}, DType::float64, testing::device());
    for (const Variable* part : {&a, &b, &c}) ops::add(tape.stream(), sum, part->value(), GradientMode::accumulate);
    return tape.record_one("sum", {a, b, c}, sum, {}, [](BackwardContext& context) {
      for (std::size_t i = 0; i < 3; ++i) context.pass(i, context.d_output());
    });
  };
  const auto result = check_gradients(function, {normal_tensor({4, 3}, DType::float64, "table")});
  EXPECT_LE(result.worst_relative_error, 1e-8) << result.where;
}

TEST_P(CrossEntropy, IsZeroWhenAllRowsAreIgnored) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    const Case c{.rows = 5, .d = 4, .vocabulary = 9, .dtype = dtype};
    Inputs inputs(c);
    inputs.targets = integers(std::vector<std::int32_t>(5, -1), {5});
    // Ignored rows may hold any value, which must not affect the gradients.
    ops::fill(testing::stream(), inputs.hidden.narrow(0, 2, 1), 1e30);
    const Outcome got = run(c, inputs);
    EXPECT_EQ(got.loss, 0);
    EXPECT_THAT(got.counts, ::testing::ElementsAre(0, 0));
    for (const auto& gradient : {got.row_losses, got.d_hidden, got.d_weight, got.d_bias})
      EXPECT_THAT(gradient, ::testing::Each(0.0));
  }
}

TEST_P(CrossEntropy, AcceptsTargetsOfAColumnRange) {
  const Tensor tokens = integer_tensor({3, 9}, 0, 11, "tokens"), targets = tokens.narrow(1, 1, 8);
  const Tensor hidden = normal_tensor({3, 8, 5}, DType::float32, "hidden"),
               weight = normal_tensor({11, 5}, DType::float32, "weight");
  Tape tape{testing::stream()};
  const Variable leaf = Variable::leaf(hidden);
  const auto result = ops::cross_entropy(tape, leaf, Variable(weight), nullptr, targets);
  tape.backward(result.loss);
  const auto want =
      reference::cross_entropy(doubles(hidden), doubles(weight), {}, targets.to_vector<std::int32_t>(), 5, 0);
  EXPECT_NEAR(doubles(result.loss.value())[0], want.loss, 2e-6);
  EXPECT_EQ(leaf.gradient().shape(), hidden.shape());
  EXPECT_LE(relative_difference(leaf.gradient(), want.d_hidden), 2e-6);
}

TEST_P(CrossEntropy, CountsTheFirstOfEqualLogits) {
  // All logits are 0: the first class is the prediction.
  const Variable hidden(Tensor::zeros({3, 2}, DType::float32, testing::device())),
      weight(normal_tensor({40, 2}, DType::float32, "weight"));
  Tape tape{testing::stream()};
  const auto result =
      ops::cross_entropy(tape, hidden, weight, nullptr, integers({0, 39, 0}, {3}), {.count_correct = true});
  EXPECT_THAT(result.counts.to_vector<std::int32_t>(), ::testing::ElementsAre(3, 2));
  EXPECT_NEAR(doubles(result.loss.value())[0], std::log(40.0), 1e-6);
  EXPECT_FALSE(result.loss.requires_gradient());
  EXPECT_FALSE(result.row_losses.defined());
  EXPECT_EQ(
      ops::cross_entropy(tape, hidden, weight, nullptr, integers({0, 0, 0}, {3})).counts.to_vector<std::int32_t>()[1],
      0);
}

/// Targets with gaps of two sizes, which no single stride describes.
TEST_P(CrossEntropy, AcceptsTargetsWithAnyStrides) {
  const Tensor all = integer_tensor({4, 5, 6}, -1, 7, "targets"),
               targets = all.narrow(0, 1, 2).narrow(1, 1, 3).narrow(2, 2, 4);
  const Tensor hidden = normal_tensor({24, 5}, DType::float64, "hidden"),
               weight = normal_tensor({7, 5}, DType::float64, "weight");
  Tape tape{testing::stream()};
  const auto found =
      ops::cross_entropy(tape, Variable(hidden), Variable(weight), nullptr, targets, {.keep_row_losses = true});
  const auto want =
      reference::cross_entropy(doubles(hidden), doubles(weight), {}, targets.to_vector<std::int32_t>(), 5, 0);
  EXPECT_LE(relative_difference(found.row_losses, want.row_losses), 1e-14);
  EXPECT_EQ(found.counts.to_vector<std::int32_t>()[0], want.valid);
}

/// The host does not check targets in GPU memory: an invalid target makes the loss NaN, and the other rows' gradients
/// stay correct.
TEST_P(CrossEntropy, TargetOutsideTheVocabularyIsDetected) {
  const Tensor hidden = normal_tensor({4, 3}, DType::float32, "hidden"),
               weight = normal_tensor({5, 3}, DType::float32, "weight");
  for (const std::int32_t wrong : {5, -2, 1 << 30}) {
    Tape tape{testing::stream()};
    const Variable leaf = Variable::leaf(hidden), right_leaf = Variable::leaf(hidden);
    if (!testing::on_gpu()) {
      EXPECT_THROW(ops::cross_entropy(tape, leaf, Variable(weight), nullptr, integers({1, wrong, -1, 4}, {4})),
                   ContractError);
      continue;
    }
    const auto found = ops::cross_entropy(tape, leaf, Variable(weight), nullptr, integers({1, wrong, -1, 4}, {4}),
                                          {.normalizer = 2.0, .count_correct = true, .keep_row_losses = true});
    const auto right = ops::cross_entropy(tape, right_leaf, Variable(weight), nullptr, integers({1, -1, -1, 4}, {4}),
                                          {.normalizer = 2.0, .keep_row_losses = true});
    EXPECT_TRUE(std::isnan(doubles(found.loss.value())[0]));
    const auto losses = doubles(found.row_losses), right_losses = doubles(right.row_losses);
    EXPECT_TRUE(std::isnan(losses[1]));
    for (std::size_t row : {0, 2, 3}) EXPECT_EQ(losses[row], right_losses[row]);
    tape.backward({found.loss, right.loss},
                  {tensor_of({1}, Shape{}, DType::float32), tensor_of({1}, Shape{}, DType::float32)});
    const auto d_hidden = doubles(leaf.gradient()), right_d_hidden = doubles(right_leaf.gradient());
    for (std::size_t i = 0; i < d_hidden.size(); ++i) {
      EXPECT_TRUE(i / 3 == 1 ? std::isnan(d_hidden[i]) : d_hidden[i] == right_d_hidden[i]) << i;
    }
  }
}

/// Logits as token masks produce them: -infinity is a probability of zero, even if a GPU thread reads nothing else. NaN
/// and +infinity propagate.
TEST_P(CrossEntropy, HandlesInfiniteLogits) {
  constexpr std::int64_t vocabulary = 600;
  std::vector<double> bias(vocabulary, -INFINITY);
  for (std::size_t i : {0, 5, 6, 599}) bias[i] = static_cast<double>(i % 4);
  const auto loss_with = [&](std::size_t place, double value, std::int32_t target, Tensor* d_bias = nullptr) {
    std::vector<double> changed = bias;
    changed[place] = value;
    Tape tape{testing::stream()};
    const Variable hidden(Tensor::zeros({1, 2}, DType::float32, testing::device())),
        weight(normal_tensor({vocabulary, 2}, DType::float32, "w"));
    const Variable leaf = Variable::leaf(tensor_of(changed, {vocabulary}, DType::float32));
    const auto result = ops::cross_entropy(tape, hidden, weight, &leaf, integers({target}, {1}));
    tape.backward(result.loss);
    if (d_bias) *d_bias = leaf.gradient();
    return doubles(result.loss.value())[0];
  };
  Tensor d_bias;
  const double sum = 1 + std::exp(1.0) + std::exp(2.0) + std::exp(3.0);
  EXPECT_NEAR(loss_with(0, 0, 6, &d_bias), std::log(sum) - 2, 1e-6);
  const auto gradient = doubles(d_bias);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_NEAR(gradient[i], (std::isinf(bias[i]) ? 0 : std::exp(bias[i]) / sum) - (i == 6 ? 1 : 0), 1e-6) << i;
  }
  EXPECT_EQ(loss_with(0, 0, 7), INFINITY);
  EXPECT_TRUE(std::isnan(loss_with(300, NAN, 6)));
  EXPECT_TRUE(std::isnan(loss_with(300, INFINITY, 6)));
}

TEST(LogitsOnGpu, TakeASmallPartOfMemory) {
  const auto gib = [](std::int64_t amount) { return amount << 30; };
  EXPECT_EQ(ops::max_logits_on_gpu(gib(192)), 1 << 28);
  EXPECT_EQ(ops::max_logits_on_gpu(gib(64)), 1 << 28);
  EXPECT_EQ(ops::max_logits_on_gpu(gib(64) - 1), 1 << 27);
  EXPECT_EQ(ops::max_logits_on_gpu(gib(8)), 1 << 25);
}

/// On GPUs rows of logits start at multiples of 8 elements. The results have the same bits as without padding, and the
/// padding is neither read nor written.
TEST_P(CrossEntropy, RowPaddingOfLogitsChangesNoBit) {
  const Tensor chunk = ops::logits_chunk(testing::device(), 3, 50, DType::bfloat16);
  EXPECT_EQ(chunk.shape(), Shape({3, 50}));
  EXPECT_EQ(chunk.strides()[0], testing::on_gpu() ? 56 : 50);
  EXPECT_EQ(ops::logits_chunk(testing::device(), 3, 64, DType::bfloat16).strides()[0], 64);
  if (!testing::on_gpu()) return;
  const Stream stream = testing::stream();
  const auto zeros = [](const Shape& shape, DType dtype) { return Tensor::zeros(shape, dtype, testing::device()); };
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    for (const std::int64_t vocabulary : {1, 50, 257}) {
      SCOPED_TRACE(fmt::format("{}, vocabulary {}", name_of(dtype), vocabulary));
      const Case c{.rows = 9, .d = 6, .vocabulary = vocabulary, .dtype = dtype};
      const Inputs inputs(c);
      const DType sum_dtype = accumulate_dtype(dtype);
      const Tensor counts = zeros({2}, DType::int32), inverse = zeros({1}, sum_dtype),
                   bias = ops::in_dtype(stream, inputs.bias, sum_dtype);
      ops::count_targets_gpu(stream, inputs.targets, 0, Tensor{}, counts, inverse);
      const Tensor compact = zeros({c.rows, vocabulary}, sum_dtype);
      ops::gemm(stream, inputs.hidden, false, inputs.weight, true, compact, GradientMode::overwrite, {.bias = &bias});
      std::vector<double> compact_losses, compact_d_logits;
      for (const std::int64_t gap : {0, 3, 7}) {
        const Tensor wide = zeros({c.rows, vocabulary + gap}, sum_dtype),
                     d_wide = zeros({c.rows, vocabulary + gap}, dtype);
        ops::fill(stream, wide, 77);
        ops::fill(stream, d_wide, 77);
        const Tensor logits = wide.narrow(1, 0, vocabulary), d_logits = d_wide.narrow(1, 0, vocabulary),
                     losses = zeros({c.rows}, sum_dtype);
        for (std::int64_t row = 0; row < c.rows; ++row) logits.narrow(0, row, 1).copy_from(compact.narrow(0, row, 1));
        ops::cross_entropy_rows_gpu(stream, {logits, inputs.targets, 0, inverse, losses, Tensor{}, d_logits});
        if (gap == 0) {
          compact_losses = doubles(losses);
          compact_d_logits = doubles(d_logits);
        }
        EXPECT_EQ(doubles(losses), compact_losses);
        EXPECT_EQ(doubles(d_logits), compact_d_logits);
        for (const Tensor& between : {wide.narrow(1, vocabulary, gap), d_wide.narrow(1, vocabulary, gap)})
          EXPECT_THAT(doubles(between), ::testing::Each(77.0));
        // Sums of float32 products may depend on strides; the simulator's float64 sums do not.
        if (!testing::on_simulator() || dtype != DType::float64) continue;
        const Outcome whole = run(c, inputs);
        EXPECT_EQ(whole.row_losses, compact_losses);
        const Tensor d_hidden = zeros({c.rows, c.d}, dtype), d_weight = zeros({vocabulary, c.d}, dtype);
        ops::gemm(stream, d_logits, false, inputs.weight, false, d_hidden, GradientMode::overwrite);
        ops::gemm(stream, d_logits, true, inputs.hidden, false, d_weight, GradientMode::overwrite);
        EXPECT_EQ(doubles(d_hidden), whole.d_hidden);
        EXPECT_EQ(doubles(d_weight), whole.d_weight);
      }
    }
  }
}

TEST_P(CrossEntropy, ZeroRowsGiveZeroLoss) {
  Tape tape{testing::stream()};
  const Variable hidden(Tensor::empty({0, 3}, DType::float32, testing::device())),
      weight = Variable::leaf(normal_tensor({4, 3}, DType::float32, "weight"));
  const auto result = ops::cross_entropy(tape, hidden, weight, nullptr, integers({}, {0}), {.count_correct = true});
  EXPECT_EQ(doubles(result.loss.value())[0], 0);
  EXPECT_THAT(result.counts.to_vector<std::int32_t>(), ::testing::ElementsAre(0, 0));
  tape.backward(result.loss);
  EXPECT_EQ(doubles(weight.gradient()), std::vector<double>(12, 0));
}

TEST(CrossEntropyOnCpu, StoresOneChunkOfLogitsAtATime) {
  constexpr std::int64_t rows = 4096, vocabulary = 8192, d = 8;  // all logits: 128 MiB
  const Variable hidden = Variable::leaf(normal_tensor({rows, d}, DType::float32, "hidden")),
                 weight(normal_tensor({vocabulary, d}, DType::float32, "weight"));
  const Tensor targets = integer_tensor({rows}, 0, vocabulary, "targets");
  Tape tape{testing::stream()};
  Arena& memory = arena(Device{});
  const auto before = memory.counters().bytes_in_use;
  memory.reset_peak();
  const auto result = ops::cross_entropy(tape, hidden, weight, nullptr, targets);
  EXPECT_LE(memory.counters().peak_bytes - before, 10 << 20);
  EXPECT_LE(memory.counters().bytes_in_use - before, rows * d * 4 + 4096) << "only d_hidden is stored";
  tape.clear();
}

TEST(CrossEntropyOnCpu, BitsDoNotDependOnThreadCount) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    const Case c{.rows = 600, .d = 24, .vocabulary = 300, .dtype = dtype};
    const Inputs inputs(c);
    const auto all = [&] {
      const Outcome got = run(c, inputs);
      return std::vector{std::vector{got.loss}, got.row_losses, got.d_hidden, got.d_weight, got.d_bias};
    };
    EXPECT_EQ(with_threads(1, all), with_threads(5, all));
  }
}

TEST(CrossEntropyOnCpu, RejectsMismatchedArguments) {
  Tape tape{testing::stream()};
  const Variable hidden(normal_tensor({2, 3}, DType::float32, "hidden")),
      weight(normal_tensor({4, 3}, DType::float32, "weight"));
  const auto with_targets = [&](std::vector<std::int32_t> targets) {
    const auto n = static_cast<std::int64_t>(targets.size());
    return ops::cross_entropy(tape, hidden, weight, nullptr, Tensor::from(targets, {n}));
  };
  EXPECT_THAT(
      [&] {
        with_targets({0, 4});
      },
      ::testing::ThrowsMessage<ContractError>(::testing::HasSubstr("target 4 at row 1 is outside [-1, 4)")));
  EXPECT_THROW(with_targets({0, -2}), ContractError);
  EXPECT_THROW(with_targets({0, 1, 2}), ContractError);
  const Tensor targets = Tensor::from(std::vector<std::int32_t>{0, 1}, {2});
  EXPECT_THROW(ops::cross_entropy(tape, hidden, weight, nullptr, targets, {.normalizer = 0.0}), ContractError);
  EXPECT_THROW(
      ops::cross_entropy(tape, hidden, Variable(normal_tensor({4, 3}, DType::bfloat16, "weight")), nullptr, targets),
      ContractError);
}

TEST(CrossEntropyOnCpu, ShapeOnlyCountsTheSameMemory) {
  struct Bytes {
    std::int64_t kept, peak;
  };
  const auto measure = [](const Device& device) {
    Tape tape{Stream{device}};
    const auto leaf = [&](const Shape& shape) {
      const Tensor tensor = Tensor::empty(shape, DType::float32, device);
      ops::fill(tape.stream(), tensor, 0.5);
      return Variable::leaf(tensor);
    };
    const Variable hidden = leaf({3000, 16}), weight = leaf({1000, 16}), bias = leaf({1000});
    const Tensor targets = Tensor::zeros({3000}, DType::int32, device);
    Arena& memory = arena(device);
    const auto before = memory.counters().bytes_in_use;
    memory.reset_peak();
    const auto result = ops::cross_entropy(tape, hidden, weight, &bias, targets);
    const auto kept = memory.counters().bytes_in_use - before;
    tape.backward(result.loss, 0.5);
    return Bytes{kept, memory.counters().peak_bytes - before};
  };
  const Bytes real = measure(Device{}), counted = measure(Device{DeviceType::shape_only, 0});
  EXPECT_EQ(counted.kept, real.kept);
  // In addition to its tensors the CPU uses scratch of oneDNN's products, whose size the library chooses.
  EXPECT_LE(counted.peak, real.peak);
  EXPECT_LE(real.peak, counted.peak + (4 << 20));
}

}  // namespace
}  // namespace furlong
