#include "framework/ops/loss/element_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "framework/autodiff/gradient_check.h"
#include "tests/reference/values.h"

namespace furlong::element_loss {
namespace {

using namespace reference;
using ops::ElementLoss;

class ElementLossTest : public testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(ElementLossTest);

struct Case {
  std::int64_t rows, d, outputs;
  DType dtype;
  ElementLoss kind;
  double scale = 1.0;  // of the weights
  double normalizer = 0;
  bool with_bias = true;
};

struct Inputs {
  Tensor hidden, weight, bias, targets;
  std::vector<float> values;
  explicit Inputs(const Case& c)
      : hidden(normal_tensor({c.rows, c.d}, c.dtype, "hidden")),
        weight(normal_tensor({c.outputs, c.d}, c.dtype, "weight", c.scale)),
        bias(normal_tensor({c.outputs}, c.dtype, "bias")),
        targets(integer_tensor({c.rows}, -1, 1, "targets")) {
    for (const double value : doubles(normal_tensor({c.rows, c.outputs}, DType::float32, "values")))
      values.push_back(static_cast<float>(c.kind == ElementLoss::squared_error ? value : value > 0 ? 1 : 0));
  }
  Tensor stored_values(const Case& c) const {
    return Tensor::from(reference::value_bits(values), {c.rows, c.outputs}, testing::device());
  }
};

/// Loss and gradients by their definition, in double.
struct Expected {
  double loss = 0;
  std::int32_t valid = 0, correct = 0;
  std::vector<double> row_losses, d_hidden, d_weight, d_bias;
};

Expected expected(const Case& c, const Inputs& inputs) {
  const std::vector<double> hidden = doubles(inputs.hidden), weight = doubles(inputs.weight),
                            bias = doubles(inputs.bias);
  const auto targets = inputs.targets.to_vector<std::int32_t>();
  const auto d = static_cast<std::size_t>(c.d), outputs = static_cast<std::size_t>(c.outputs);
  Expected result;
  result.row_losses.resize(targets.size());
  result.d_hidden.resize(hidden.size());
  result.d_weight.resize(weight.size());
  result.d_bias.resize(bias.size());
  for (const std::int32_t target : targets) result.valid += target == 0;
  const double normalizer = c.normalizer > 0 ? c.normalizer : std::max(1, result.valid);
  for (std::size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    bool correct = c.kind == ElementLoss::binary_cross_entropy;
    for (std::size_t k = 0; k < outputs; ++k) {
      double x = c.with_bias ? bias[k] : 0;
      for (std::size_t i = 0; i < d; ++i) x += hidden[r * d + i] * weight[k * d + i];
      const auto t = static_cast<double>(inputs.values[r * outputs + k]);
      const double probability = 1 / (1 + std::exp(-x));
      const bool squared = c.kind == ElementLoss::squared_error;
      // -log σ(x) = log(1 + exp(-x)), and log(1 + exp(x)) = x + log(1 + exp(-x)) stays finite for large x.
      const double miss = x > 0 ? std::log1p(std::exp(-x)) : -x + std::log1p(std::exp(x));
      const double loss = squared ? (x - t) * (x - t) : t * miss + (1 - t) * (x + miss);
      const double slope = (squared ? 2 * (x - t) : probability - t) / static_cast<double>(outputs) / normalizer;
      correct = correct && (x > 0) == (t > 0.5);
      result.row_losses[r] += loss / static_cast<double>(outputs);
      result.loss += loss / static_cast<double>(outputs) / normalizer;
      result.d_bias[k] += slope;
      for (std::size_t i = 0; i < d; ++i) {
        result.d_hidden[r * d + i] += slope * weight[k * d + i];
        result.d_weight[k * d + i] += slope * hidden[r * d + i];
      }
    }
    result.correct += correct;
  }
  return result;
}

void compare(const Case& c) {
  SCOPED_TRACE(fmt::format("{} rows, d {}, {} outputs, {}, {}", c.rows, c.d, c.outputs, name_of(c.dtype),
                           c.kind == ElementLoss::squared_error ? "squared error" : "binary cross-entropy"));
  const Inputs inputs(c);
  const Expected want = expected(c, inputs);
  const Variable hidden = Variable::leaf(inputs.hidden), weight = Variable::leaf(inputs.weight),
                 bias = Variable::leaf(inputs.bias);
  weight.slot()->dtype = bias.slot()->dtype = accumulate_dtype(c.dtype);  // as in the parameter store
  Tape tape{testing::stream()};
  ops::CrossEntropyOptions options{.count_correct = true, .keep_row_losses = true};
  if (c.normalizer > 0) options.normalizer = c.normalizer;
  const auto result = ops::element_loss(tape, c.kind, hidden, weight, c.with_bias ? &bias : nullptr, inputs.targets,
                                        inputs.stored_values(c), options);
  tape.backward(result.loss);
  const double error = 4 * rounding_of(accumulate_dtype(c.dtype)) * c.scale * static_cast<double>(c.d + 16);
  EXPECT_THAT(result.counts.to_vector<std::int32_t>(), ::testing::ElementsAre(want.valid, want.correct));
  const double magnitude = 1 + c.scale * static_cast<double>(c.d);  // of an error before it is squared
  EXPECT_NEAR(doubles(result.loss.value())[0], want.loss, error * magnitude);
  const std::vector<double> row_losses = doubles(result.row_losses);
  ASSERT_EQ(row_losses.size(), want.row_losses.size());
  for (std::size_t r = 0; r < row_losses.size(); ++r)
    EXPECT_NEAR(row_losses[r], want.row_losses[r], error * magnitude) << r;
  const double gradient_error = c.dtype == DType::bfloat16 ? 3 * 0x1p-8 : 3 * error;
  EXPECT_LE(relative_difference(doubles(hidden.gradient()), want.d_hidden), gradient_error);
  EXPECT_LE(relative_difference(doubles(weight.gradient()), want.d_weight), gradient_error);
  if (!c.with_bias) return;
  EXPECT_LE(relative_difference(doubles(bias.gradient()), want.d_bias), gradient_error);
}

constexpr std::array kinds{ElementLoss::squared_error, ElementLoss::binary_cross_entropy};

TEST_P(ElementLossTest, MatchesDefinition) {
  for (const ElementLoss kind : kinds) {
    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      compare({.rows = 6, .d = 5, .outputs = 1, .dtype = dtype, .kind = kind});
      compare({.rows = 17, .d = 9, .outputs = 3, .dtype = dtype, .kind = kind, .normalizer = 23});
      compare({.rows = 33, .d = 16, .outputs = 70, .dtype = dtype, .kind = kind, .scale = 0.3, .with_bias = false});
    }
  }
}

TEST_P(ElementLossTest, StaysFiniteForLogitsOfThousands) {
  compare({.rows = 9, .d = 8, .outputs = 5, .dtype = DType::float32, .kind = kinds[1], .scale = 1000.0});
}

TEST_P(ElementLossTest, GradientsMatchFiniteDifferences) {
  for (const ElementLoss kind : kinds) {
    const Case c{.rows = 5, .d = 3, .outputs = 4, .dtype = DType::float64, .kind = kind};
    const Inputs inputs(c);
    const Tensor values = inputs.stored_values(c);
    const Tensor targets = Tensor::from(std::vector<std::int32_t>{0, -1, 0, 0, -1}, {5}, testing::device());
    const auto function = [&](Tape& tape, const std::vector<Variable>& v) {
      return ops::element_loss(tape, kind, v[0], v[1], &v[2], targets, values).loss;
    };
    const auto result = check_gradients(function, {inputs.hidden, inputs.weight, inputs.bias});
    EXPECT_LE(result.worst_relative_error, 1e-8) << result.where;
  }
}

TEST_P(ElementLossTest, IgnoredRowsAloneGiveZero) {
  const Case c{.rows = 3, .d = 4, .outputs = 2, .dtype = DType::float32, .kind = kinds[0]};
  const Inputs inputs(c);
  const Variable hidden = Variable::leaf(inputs.hidden), weight = Variable::leaf(inputs.weight);
  Tape tape{testing::stream()};
  const Tensor none = Tensor::from(std::vector<std::int32_t>{-1, -1, -1}, {3}, testing::device());
  const auto result = ops::element_loss(tape, c.kind, hidden, weight, nullptr, none, inputs.stored_values(c));
  tape.backward(result.loss);
  EXPECT_EQ(doubles(result.loss.value())[0], 0);
  EXPECT_THAT(doubles(weight.gradient()), ::testing::Each(0));
  EXPECT_THROW(ops::element_loss(tape, c.kind, hidden, weight, nullptr, none, none), ContractError);
}

}  // namespace
}  // namespace furlong::element_loss
