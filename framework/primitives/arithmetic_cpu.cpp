#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/primitives/arithmetic_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/core/tensor.h"
#include "framework/primitives/arithmetic_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/rows.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
constexpr std::int64_t grain = 1 << 15;  // with fewer elements a second thread costs more than it saves

template <class To, class From>
void add_span(To* target, const From* source, std::int64_t n, bool accumulate, double scale_) {
  // Both are converted to the wider compute type. float and double mix only in tests, where float64 parameters meet
  // float32 values.
  if constexpr (std::is_same_v<compute_t<To>, compute_t<From>>) {
    using Compute = compute_t<To>;
    const typename Lanes<To>::D d;
    const auto scale = hn::Set(d, static_cast<Compute>(scale_));
    const std::int64_t step = Lanes<To>::count();
    for (std::int64_t i = 0; i < n; i += step) {
      const std::int64_t k = std::min(step, n - i);
      auto value = hn::Mul(load_n(source + i, k), scale);
      if (accumulate) value = hn::Add(value, load_n(target + i, k));
      store_n(value, target + i, k);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      const double value =
          static_cast<double>(source[i]) * scale_ + (accumulate ? static_cast<double>(target[i]) : 0.0);
      target[i] = static_cast<To>(static_cast<compute_t<To>>(value));
    }
  }
}

template <class To, class From>
void add_tensors(const Tensor& target, const Tensor& source, bool accumulate, double scale) {
  To* to = static_cast<To*>(target.address());
  const From* from = static_cast<const From*>(source.address());
  if (target.is_contiguous() && source.is_contiguous()) {
    parallel_ranges(target.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
      add_span(to + begin, from + begin, end - begin, accumulate, scale);
    });
    return;
  }
  const auto view = simd::row_view(target);
  parallel_ranges(view.rows, std::max<std::int64_t>(1, grain / std::max<std::int64_t>(view.columns, 1)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      add_span(to + simd::row_offset(target, row), from + simd::row_offset(source, row), view.columns,
                               accumulate, scale);
                    }
                  });
}

void Add(const Tensor& target, const Tensor& source, bool accumulate, double scale) {
  with_float_type(target.dtype(), "add", [&]<class To>(std::type_identity<To>) {
    with_float_type(source.dtype(), "add", [&]<class From>(std::type_identity<From>) {
      add_tensors<To, From>(target, source, accumulate, scale);
    });
  });
}

template <class T>
double squares_of_block(const T* values, std::int64_t n) {
  // Vectorizing with float64 partial sums would need conversions. A block is short, so one scalar pass in double is
  // fine.
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(values[i]);
    sum += value * value;
  }
  return sum;
}

void SumOfSquares(const Tensor& tensor, const Tensor& result) {
  constexpr std::int64_t block = sum_of_squares_block;
  const std::int64_t n = tensor.elements(), blocks = (n + block - 1) / block;
  std::vector<double> partial(static_cast<std::size_t>(blocks));
  with_float_type(tensor.dtype(), "sum_of_squares", [&]<class T>(std::type_identity<T>) {
    const T* values = static_cast<const T*>(tensor.address());
    parallel_ranges(blocks, 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b)
        partial[static_cast<std::size_t>(b)] = squares_of_block(values + b * block, std::min(block, n - b * block));
    });
  });
  double sum = 0;
  for (double value : partial) sum += value;
  *result.data<double>() = sum;
}

std::int64_t CountNonFinite(const Tensor& tensor) {
  std::int64_t bad = 0;
  const auto view = simd::row_view(tensor);
  const std::int64_t step = tensor.shape().rank() == 0 ? 1 : tensor.strides()[-1];
  with_float_type(tensor.dtype(), "count_non_finite", [&]<class T>(std::type_identity<T>) {
    const T* values = static_cast<const T*>(tensor.address());
    for (std::int64_t row = 0; row < view.rows; ++row) {
      const T* line = values + simd::row_offset(tensor, row);
      for (std::int64_t i = 0; i < view.columns; ++i) bad += !std::isfinite(static_cast<compute_t<T>>(line[i * step]));
    }
  });
  return bad;
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(Add);
HWY_EXPORT(SumOfSquares);
HWY_EXPORT(CountNonFinite);

void add_cpu(const Tensor& target, const Tensor& source, bool accumulate, double scale) {
  HWY_DYNAMIC_DISPATCH(Add)(target, source, accumulate, scale);
}
void sum_of_squares_cpu(const Tensor& tensor, const Tensor& result) {
  HWY_DYNAMIC_DISPATCH(SumOfSquares)(tensor, result);
}
std::int64_t count_non_finite_cpu(const Tensor& tensor) { return HWY_DYNAMIC_DISPATCH(CountNonFinite)(tensor); }

void fill_cpu(const Tensor& tensor, double value) {
  const auto view = simd::row_view(tensor);
  with_float_type(tensor.dtype(), "fill", [&]<class T>(std::type_identity<T>) {
    const T filler = static_cast<T>(static_cast<compute_t<T>>(value));
    T* values = static_cast<T*>(tensor.address());
    if (tensor.is_contiguous()) {
      parallel_ranges(tensor.elements(), 1 << 16,
                      [&](std::int64_t begin, std::int64_t end) { std::fill(values + begin, values + end, filler); });
    } else {
      for (std::int64_t row = 0; row < view.rows; ++row)
        std::fill_n(values + simd::row_offset(tensor, row), view.columns, filler);
    }
  });
}
}  // namespace furlong::ops
#endif
