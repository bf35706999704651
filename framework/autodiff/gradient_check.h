#pragma once
// Compares the tape's gradients with finite differences, in float64. Every op's test uses it.
#include <functional>
#include <string>
#include <vector>

#include "framework/autodiff/tape.h"

namespace furlong {

/// A pure function of its inputs: repeated calls with the same inputs return the same output.
using CheckedFunction = std::function<Variable(Tape&, const std::vector<Variable>&)>;

struct GradientCheckResult {
  /// |analytic - numeric| over the largest |numeric| of that input's gradient.
  double worst_relative_error = 0;
  /// The element with the worst error, with both values.
  std::string where;
};

/// Checks the gradient of `function` against central differences of fourth order:
///   (8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / 12h, with h = `step`.
/// The output, of any shape, is projected on a fixed random direction. The projection is differentiated with respect to
/// every element of every input (float64, all on one device). The truncation error is h^4 |f^(5)| / 30 and the rounding
/// error about 1e-16 |f| / h: near 1e-13 for values of order 1 at the default step. Inputs must lie more than 2h from
/// any point at which `function` is not smooth. The gradient is computed once more with two calls of `function` on the
/// same inputs, where each gradient is added to an earlier one. Throws ContractError if an input is not float64.
GradientCheckResult check_gradients(const CheckedFunction& function, const std::vector<Tensor>& inputs,
                                    double step = 1e-3);

}  // namespace furlong
