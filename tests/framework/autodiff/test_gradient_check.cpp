#include "framework/autodiff/gradient_check.h"

#include <gtest/gtest.h>

#include <cmath>

namespace furlong {
namespace {

/// sum_j x_j^3 y_j as one number, with d_x multiplied by `factor`: 1 is correct, any other value is a planted fault,
/// and so is `adds` = false, with which d_y overwrites what it should be added to.
Variable cubic(Tape& tape, const std::vector<Variable>& inputs, double factor, std::int64_t wrong_element = -1,
               bool adds = true) {
  const Tensor x = inputs[0].value(), y = inputs[1].value();
  const auto a = x.to_vector<double>(), b = y.to_vector<double>();
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * a[i] * a[i] * b[i];
  return tape.record_one(
      "cubic", inputs, Tensor::from<double>({sum}, {1}), {x, y},
      [factor, wrong_element, adds](BackwardContext& context) {
        const double d_output = context.d_output().data<double>()[0];
        const auto a = context.saved(0).to_vector<double>(), b = context.saved(1).to_vector<double>();
        const GradientTarget d_x = context.d_input(0), d_y = context.d_input(1);
        const auto put = [](const GradientTarget& target, std::size_t i, double value, bool adds) {
          if (!target.wanted()) return;
          double& element = target.tensor.data<double>()[i];
          element = value + (adds && target.accumulates() ? element : 0);
        };
        for (std::size_t i = 0; i < a.size(); ++i) {
          const double scale = wrong_element < 0 || wrong_element == static_cast<std::int64_t>(i) ? factor : 1.0;
          put(d_x, i, scale * d_output * 3 * a[i] * a[i] * b[i], true);
          put(d_y, i, d_output * a[i] * a[i] * a[i], adds);
        }
      });
}

const std::vector<Tensor> inputs() {
  return {Tensor::from<double>({0.3, -1.2, 0.7}, {3}), Tensor::from<double>({1.1, 0.4, -0.9}, {3})};
}

TEST(GradientCheck, AcceptsCorrectGradient) {
  const auto result = check_gradients([](Tape& tape, const auto& in) { return cubic(tape, in, 1.0); }, inputs());
  EXPECT_LT(result.worst_relative_error, 1e-11) << result.where;
}

TEST(GradientCheck, DetectsRelativeErrorOfOneInAHundredThousand) {
  const auto result = check_gradients([](Tape& tape, const auto& in) { return cubic(tape, in, 1.00001); }, inputs());
  EXPECT_NEAR(result.worst_relative_error, 1e-5, 1e-8);
  EXPECT_EQ(result.where.find("input 0, element 1:"), 0u) << result.where;
}

TEST(GradientCheck, NamesTheWrongElement) {
  const auto result = check_gradients([](Tape& tape, const auto& in) { return cubic(tape, in, -1.0, 2); }, inputs());
  EXPECT_GT(result.worst_relative_error, 0.5);
  EXPECT_EQ(result.where.find("input 0, element 2:"), 0u) << result.where;
}

TEST(GradientCheck, DetectsNanGradient) {
  const auto result =
      check_gradients([](Tape& tape, const auto& in) { return cubic(tape, in, std::nan(""), 0); }, inputs());
  EXPECT_TRUE(std::isinf(result.worst_relative_error));
  EXPECT_EQ(result.where.find("input 0, element 0:"), 0u) << result.where;
}

TEST(GradientCheck, DetectsMissingGradient) {
  const auto omits_y_gradient = [](Tape& tape, const std::vector<Variable>& in) {
    return cubic(tape, {in[0], Variable(in[1].value())}, 1.0);
  };
  const auto result = check_gradients(omits_y_gradient, inputs());
  EXPECT_NEAR(result.worst_relative_error, 1.0, 1e-9);
  EXPECT_EQ(result.where.find("input 1"), 0u) << result.where;
}

TEST(GradientCheck, DetectsGradientThatOverwritesAnEarlierOne) {
  const auto overwrites = [](Tape& tape, const auto& in) { return cubic(tape, in, 1.0, -1, false); };
  const auto result = check_gradients(overwrites, inputs());
  EXPECT_NEAR(result.worst_relative_error, 0.5, 1e-9);
  EXPECT_EQ(result.where.find("input 1"), 0u) << result.where;
  EXPECT_NE(result.where.find("two calls"), std::string::npos) << result.where;
}

TEST(GradientCheck, RejectsNonDoubleInputs) {
  EXPECT_THROW(check_gradients([](Tape&, const auto& in) { return in[0]; }, {Tensor::zeros({2}, DType::float32)}),
               ContractError);
  EXPECT_THROW(check_gradients([](Tape&, const auto& in) { return in[0]; }, {}), ContractError);
}

}  // namespace
}  // namespace furlong
