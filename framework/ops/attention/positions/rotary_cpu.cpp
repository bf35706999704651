#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/positions/rotary_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/core/tensor.h"
#include "framework/ops/attention/positions/rotary_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/rows.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
constexpr std::int64_t grain = 1 << 14;  // elements per thread below which another thread does not pay off

/// Rotates all heads of one row; each run of angles is loaded once for all heads.
template <class T>
HWY_INLINE void rotate_row(T* row, const compute_t<T>* cosines, const compute_t<T>* sines, std::int64_t n_heads,
                           std::int64_t half, bool inverse) {
  const typename Lanes<T>::D d;
  const std::int64_t step = Lanes<T>::count();
  for (std::int64_t i = 0; i < half; i += step) {
    const std::int64_t k = std::min(step, half - i);
    const auto cosine = load_n(cosines + i, k);
    auto sine = load_n(sines + i, k);
    if (inverse) sine = hn::Sub(hn::Zero(d), sine);
    for (std::int64_t head = 0; head < n_heads; ++head) {
      T* first = row + head * 2 * half + i;
      T* second = first + half;
      const auto a = load_n(first, k), b = load_n(second, k);
      store_n(hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), first, k);
      store_n(hn::MulAdd(a, sine, hn::Mul(b, cosine)), second, k);
    }
  }
}

template <class T>
void rotate(const Tensor& x, const Tensor& table, const Tensor& own, std::int64_t n_heads, bool inverse) {
  const std::int64_t table_rows = table.extent(0), half = table.extent(2), rows = x.shape().rows();
  T* values = x.data<T>();
  const auto* angles = table.data<compute_t<T>>();  // [table rows, 2, half]
  const auto* own_row = own.defined() ? own.data<std::int32_t>() : nullptr;
  parallel_ranges(rows, std::max<std::int64_t>(1, grain / (n_heads * half)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto* cosines = angles + (own_row ? own_row[row] : row % table_rows) * 2 * half;
      rotate_row(values + simd::row_offset(x, row), cosines, cosines + half, n_heads, half, inverse);
    }
  });
}

void Rotate(const Tensor& x, const Tensor& table, const Tensor& own, std::int64_t n_heads, bool inverse) {
  with_float_type(x.dtype(), "rotary",
                  [&]<class T>(std::type_identity<T>) { rotate<T>(x, table, own, n_heads, inverse); });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(Rotate);

void rotary_cpu(const Tensor& x, const Tensor& table, const Tensor& rows, std::int64_t n_heads, bool inverse) {
  HWY_DYNAMIC_DISPATCH(Rotate)(x, table, rows, n_heads, inverse);
}

namespace {

/// Fills row i of the table with the angles of position_of(i).
template <class PositionOf>
void fill_rows(const Tensor& table, const Tensor& frequencies, const PositionOf& position_of) {
  const std::int64_t half = table.extent(2);
  with_float_type(table.dtype(), "rotary", [&]<class T>(std::type_identity<T>) {
    T* values = table.data<T>();
    parallel_ranges(half, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const double theta = frequencies.data<double>()[i];
        for (std::int64_t row = 0; row < table.extent(0); ++row) {
          const double angle = static_cast<double>(position_of(row)) * theta;
          values[2 * row * half + i] = static_cast<T>(static_cast<compute_t<T>>(std::cos(angle)));
          values[(2 * row + 1) * half + i] = static_cast<T>(static_cast<compute_t<T>>(std::sin(angle)));
        }
      }
    });
  });
}

}  // namespace

void rotary_table_cpu(const Tensor& table, const Tensor& frequencies, std::int64_t first_position) {
  fill_rows(table, frequencies, [&](std::int64_t row) { return first_position + row; });
}

void rotary_rows_cpu(const Tensor& table, const Tensor& frequencies, const Tensor& positions) {
  fill_rows(table, frequencies,
            [position = positions.data<std::int32_t>()](std::int64_t row) { return position[row]; });
}
}  // namespace furlong::ops
#endif
