#pragma once
// Gradients by the tape against gradients by finite differences, in double. Every op's test uses it.
#include <functional>
#include <string>
#include <vector>

#include "framework/autodiff/tape.h"

namespace furlong {

/// A function of its inputs alone: it gives the same output for the same inputs however often it is called.
using CheckedFunction = std::function<Variable(Tape&, const std::vector<Variable>&)>;

struct GradientCheckResult {
  double worst_relative_error = 0;  ///< |analytic - numeric| over the largest |numeric| of that input's gradient
  std::string where;                ///< the element it was found at, with both values
};

/// Projects `function`'s output, of any shape, on a fixed random direction and compares the projection's gradient with
/// respect to every element of every input (float64, all on one device) with the central difference of fourth order,
///   (8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / 12h,
/// whose truncation error is h^4 |f^(5)| / 30 and rounding error about 1e-16 |f| / h: near 1e-13 for values of order 1
/// at the default step. Inputs must lie further than 2h from any point where `function` is not smooth. Throws
/// ContractError on inputs that are not float64.
GradientCheckResult check_gradients(const CheckedFunction& function, const std::vector<Tensor>& inputs,
                                    double step = 1e-3);

}  // namespace furlong
