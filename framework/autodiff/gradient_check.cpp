#include "framework/autodiff/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/core/random.h"

namespace furlong {
namespace {

constexpr RandomKey projection_key{.seed = 20, .step = 0, .stream = random_stream("gradient_check.projection")};

std::vector<double> projection(std::int64_t elements) {
  std::vector<double> direction(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < direction.size(); ++i) direction[i] = random_normal(projection_key, i);
  return direction;
}

/// Returns the output values with one input element shifted. Inputs are copied on each call, because `function` may
/// work in place.
std::vector<double> values_at(const CheckedFunction& function, const std::vector<Tensor>& inputs, std::size_t input,
                              std::int64_t element, double offset) {
  std::vector<Variable> moved;
  for (const Tensor& tensor : inputs) moved.emplace_back(tensor.clone());
  std::vector<double> values = inputs[input].to_vector<double>();
  values[static_cast<std::size_t>(element)] += offset;
  moved[input] = Variable(Tensor::from(values, inputs[input].shape(), inputs[input].device()));
  Tape tape(Stream{inputs[input].device()});
  const Tape::NoGradient guard(tape);
  return function(tape, moved).value().to_vector<double>();
}

/// Returns the mean gradients of `uses` calls on the same leaves.
std::vector<std::vector<double>> tape_gradients(const CheckedFunction& function, const std::vector<Tensor>& inputs,
                                                int uses) {
  Tape tape(Stream{inputs.front().device()});
  std::vector<Variable> leaves;
  for (const Tensor& tensor : inputs) leaves.push_back(Variable::leaf(tensor.clone()));
  {
    std::vector<Variable> outputs;
    std::vector<Tensor> d_outputs;
    for (int use = 0; use < uses; ++use) {
      const Variable output = function(tape, leaves);
      std::vector<double> direction = projection(output.shape().elements());
      for (double& value : direction) value /= uses;
      outputs.push_back(output);
      d_outputs.push_back(Tensor::from(direction, output.shape(), inputs.front().device()));
    }
    tape.backward(outputs, d_outputs);
  }
  std::vector<std::vector<double>> gradients;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor gradient = leaves[i].gradient();
    gradients.push_back(gradient.defined() ? gradient.to_vector<double>()
                                           : std::vector<double>(static_cast<std::size_t>(inputs[i].elements())));
  }
  return gradients;
}

double numeric_derivative(const CheckedFunction& function, const std::vector<Tensor>& inputs, std::size_t input,
                          std::int64_t element, double step) {
  const auto up = values_at(function, inputs, input, element, step),
             down = values_at(function, inputs, input, element, -step);
  const auto up2 = values_at(function, inputs, input, element, 2 * step),
             down2 = values_at(function, inputs, input, element, -2 * step);
  const auto direction = projection(static_cast<std::int64_t>(up.size()));
  // Subtract before projecting, so that outputs that do not depend on the element add no rounding error.
  double sum = 0;
  for (std::size_t i = 0; i < up.size(); ++i) sum += direction[i] * (8 * (up[i] - down[i]) - (up2[i] - down2[i]));
  return sum / (12 * step);
}

}  // namespace

GradientCheckResult check_gradients(const CheckedFunction& function, const std::vector<Tensor>& inputs, double step) {
  require(!inputs.empty() && step > 0,
          "check_gradients: {} inputs and step {}, expected at least one input and a positive step", inputs.size(),
          step);
  for (const Tensor& input : inputs) {
    require(input.dtype() == DType::float64 && input.device() == inputs.front().device(),
            "check_gradients: a {} input on {}, expected float64 on {}", name_of(input.dtype()), input.device().text(),
            inputs.front().device().text());
  }
  const auto once = tape_gradients(function, inputs, 1), twice = tape_gradients(function, inputs, 2);
  GradientCheckResult result;
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    std::vector<double> numeric;
    double largest = 1e-6;  // a gradient that is zero everywhere is compared absolutely
    for (std::int64_t element = 0; element < inputs[input].elements(); ++element) {
      numeric.push_back(numeric_derivative(function, inputs, input, element, step));
      largest = std::max(largest, std::abs(numeric.back()));
    }
    const auto compare = [&](const std::vector<double>& analytic, const char* calls) {
      for (std::size_t element = 0; element < numeric.size(); ++element) {
        double error = std::abs(analytic[element] - numeric[element]) / largest;
        if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
        if (error <= result.worst_relative_error) continue;
        result.worst_relative_error = error;
        result.where = fmt::format("input {}, element {}: {:.12g} from {}, {:.12g} from finite differences", input,
                                   element, analytic[element], calls, numeric[element]);
      }
    };
    compare(once[input], "the tape");
    compare(twice[input], "the tape (mean of two calls on the same inputs)");
  }
  return result;
}

}  // namespace furlong
