#include "communication/reduction.h"

#include <cstring>
#include <type_traits>

#include "framework/core/error.h"

namespace furlong {
namespace {

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;  // unsigned sums wrap around
      return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
    } else {
      return a + b;
    }
  }
};

// Propagate NaN from either operand: every comparison with NaN is false except a != a.
struct Maximum {
  template <class T>
  T operator()(T a, T b) const {
    return (a != a) || a > b ? a : b;
  }
};

struct Minimum {
  template <class T>
  T operator()(T a, T b) const {
    return (a != a) || a < b ? a : b;
  }
};

template <class T, class Function>
T combine(T a, T b) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return bfloat16(Function()(static_cast<float>(a), static_cast<float>(b)));
  } else {
    return Function()(a, b);
  }
}

// A loop without aliasing, which the compiler vectorizes. The operand order affects a result only if both are NaN or
// zeros of different sign; `swapped` keeps the order if b is the target.
template <class T, class Function, bool swapped>
void into(T* __restrict target, const T* __restrict other, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    target[i] = swapped ? combine<T, Function>(other[i], target[i]) : combine<T, Function>(target[i], other[i]);
  }
}

template <class T, class Function>
void reduce(void* out, const void* a, const void* b, std::size_t n) {
  if (n == 0) return;
  auto* target = static_cast<T*>(out);
  if (out == b) {
    into<T, Function, true>(target, static_cast<const T*>(a), n);
    return;
  }
  if (out != a) std::memcpy(out, a, n * sizeof(T));
  into<T, Function, false>(target, static_cast<const T*>(b), n);
}

template <class T>
ReductionFunction of_type(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return reduce<T, Sum>;
    case Reduction::maximum:
      return reduce<T, Maximum>;
    case Reduction::minimum:
      return reduce<T, Minimum>;
  }
  throw ContractError("an unknown reduction");
}

}  // namespace

ReductionFunction reduction_function(DType dtype, Reduction reduction) {
  switch (dtype) {
    case DType::float32:
      return of_type<float>(reduction);
    case DType::float64:
      return of_type<double>(reduction);
    case DType::bfloat16:
      return of_type<bfloat16>(reduction);
    case DType::int32:
      return of_type<std::int32_t>(reduction);
    case DType::uint8:
      return of_type<std::uint8_t>(reduction);
  }
  throw ContractError("an unknown dtype");
}

}  // namespace furlong
