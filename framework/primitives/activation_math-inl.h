// Activations and their derivatives over a lane type L (see framework/simd/lane_value-inl.h): a SIMD vector or a
// scalar. An engine includes this file inside its own namespace, once for each instruction set. It must define
// FURLONG_LANE_FUNCTION first, the declaration prefix of such functions.

/// A function's value and its derivative at the same argument.
template <class L>
struct ValueAndDerivative {
  L value, derivative;
};

/// sigmoid(z) = 1 / (1 + e^-z) and its derivative. exp is bounded above, so nothing overflows. e^-z sigmoid(z) equals
/// 1 - sigmoid(z) without cancellation.
template <class L>
FURLONG_LANE_FUNCTION ValueAndDerivative<L> sigmoid(L z) {
  const L e = exp(-z), s = L(1.0) / (L(1.0) + e);
  return {s, e * s * s};
}

/// Returns the standard normal distribution function Phi(x) and its derivative, the density phi(x). They share one
/// exponential.
template <class L>
FURLONG_LANE_FUNCTION ValueAndDerivative<L> normal_distribution(L x) {
  // Clamped, so that squares stay finite: at 64 the density is 0 in both types.
  const L a = at_most(absolute(x), L(64.0)), square = a * a;
  // e^(-a^2 / 2), corrected to first order for the rounding error of the square. In the tail that error reaches 90
  // half-ulps of 1.
  const L lost = multiply_subtract(a, a, square);
  const L bell = exp(L(-0.5) * square) * multiply_add(L(-0.5), lost, L(1.0));
  const L density = bell * L(0.39894228040143267794);
  if constexpr (sizeof(typename L::Scalar) == 8) {
    return {map_lanes(x, [](double lane) { return 0.5 * std::erfc(-lane * 0.70710678118654752440); }), density};
  } else {
    // Phi(-a) = e^(-a^2 / 2) t P(t) with t = 3.5 / (3.5 + a). P is fitted to a relative error of 6e-9 over 0 <= a
    // <= 13.6, beyond which Phi(-a) is subnormal in float32. The lower tail thus keeps its relative accuracy, which 1 +
    // erf would lose.
    const L t = L(3.5) / (L(3.5) + a);
    L p = L(-0.016736709577663433);
    p = multiply_add(p, t, L(0.10667965631579379));
    p = multiply_add(p, t, L(-0.2580122153740803));
    p = multiply_add(p, t, L(0.27387607627455707));
    p = multiply_add(p, t, L(-0.14137344877998012));
    p = multiply_add(p, t, L(0.1339553612820909));
    p = multiply_add(p, t, L(0.06577543676372219));
    p = multiply_add(p, t, L(0.10820285165291982));
    p = multiply_add(p, t, L(0.11363448262294223));
    p = multiply_add(p, t, L(0.11399851173058895));
    const L tail = bell * t * p;
    return {select(less(x, L(0.0)), tail, L(1.0) - tail), density};
  }
}

// Each struct below is one ActivationKind; both(x) returns f(x) and f'(x).

/// x Phi(x).
struct Gelu {
  template <class L>
  static FURLONG_LANE_FUNCTION ValueAndDerivative<L> both(L x) {
    const ValueAndDerivative<L> normal = normal_distribution(x);
    // x phi(x) is 0 long before x squared overflows. Clamping x avoids infinity times 0.
    const L bounded = at_least(at_most(x, L(64.0)), L(-64.0));
    return {x * normal.value, multiply_add(bounded, normal.derivative, normal.value)};
  }
};

/// The approximation of gelu by tanh, x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
struct GeluTanh {
  template <class L>
  static FURLONG_LANE_FUNCTION ValueAndDerivative<L> both(L x) {
    constexpr double linear = 1.5957691216057307117, cubic = 0.044715;  // 2 sqrt(2 / pi)
    // Beyond 64 the sigmoid is 0 or 1. Clamping x keeps its cube finite.
    const L bounded = at_least(at_most(x, L(64.0)), L(-64.0)), square = bounded * bounded;
    const auto s = sigmoid(L(linear) * bounded * multiply_add(L(cubic), square, L(1.0)));
    const L inner = L(linear) * multiply_add(L(3 * cubic), square, L(1.0));
    return {x * s.value, multiply_add(bounded * inner, s.derivative, s.value)};
  }
};

/// max(x, 0).
struct Relu {
  template <class L>
  static FURLONG_LANE_FUNCTION ValueAndDerivative<L> both(L x) {
    // Written so that NaN stays NaN: it is not less than anything.
    const L zero(0.0);
    return {select(less(x, zero), zero, x), select(less(zero, x), L(1.0), zero)};
  }
};

/// x sigmoid(x).
struct Silu {
  template <class L>
  static FURLONG_LANE_FUNCTION ValueAndDerivative<L> both(L x) {
    const auto s = sigmoid(x);
    const L bounded = at_least(at_most(x, L(1e4)), L(-1e4));
    return {x * s.value, multiply_add(bounded, s.derivative, s.value)};
  }
};

/// Calls body(function) with the function's type. In a kernel `kind` is the same in all threads, so this is one branch.
template <class Body>
FURLONG_LANE_FUNCTION void with_kind(ActivationKind kind, const Body& body) {
  switch (kind) {
    case ActivationKind::gelu:
      return body(Gelu{});
    case ActivationKind::gelu_tanh:
      return body(GeluTanh{});
    case ActivationKind::relu:
      return body(Relu{});
    case ActivationKind::silu:
      return body(Silu{});
  }
}
