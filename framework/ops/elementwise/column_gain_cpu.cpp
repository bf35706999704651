#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/elementwise/column_gain_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>

#include "framework/core/parallel.h"
#include "framework/ops/elementwise/column_gain_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/rows.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
constexpr std::int64_t grain = 1 << 14;  // with fewer elements a second thread costs more than it saves

/// out = in · gain, row by row, or out += in · gain.
template <class T>
void scale_rows(const Tensor& in, const Tensor& gain, const Tensor& out, bool accumulate) {
  const std::int64_t columns = in.extent(-1);
  const auto* factors = gain.data<compute_t<T>>();
  parallel_ranges(in.shape().rows(), std::max<std::int64_t>(1, grain / columns),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      const T* from = in.data<T>() + simd::row_offset(in, row);
                      T* to = out.data<T>() + simd::row_offset(out, row);
                      for_lanes<T>(columns, [&](std::int64_t i, std::int64_t n) {
                        const auto scaled = hn::Mul(load_n(from + i, n), load_n<compute_t<T>>(factors + i, n));
                        store_n<T>(accumulate ? hn::Add(scaled, load_n<T>(to + i, n)) : scaled, to + i, n);
                      });
                    }
                  });
}

void ScaleRows(const Tensor& in, const Tensor& gain, const Tensor& out, bool accumulate) {
  with_float_type(in.dtype(), "column_gain",
                  [&]<class T>(std::type_identity<T>) { scale_rows<T>(in, gain, out, accumulate); });
}

void SumProducts(const Tensor& x, const Tensor& d_y, const Tensor& blocks, const Tensor& d_gain) {
  with_float_type(x.dtype(), "column_gain", [&]<class T>(std::type_identity<T>) {
    using Compute = compute_t<T>;
    const std::int64_t columns = x.extent(-1), rows = x.shape().rows(), n_blocks = blocks.extent(0);
    parallel_ranges(n_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) {
        Compute* sum = blocks.data<Compute>() + block * columns;
        std::fill_n(sum, columns, Compute{0});
        for (std::int64_t row = rows * block / n_blocks; row < rows * (block + 1) / n_blocks; ++row) {
          const T* a = x.data<T>() + row * columns;
          const T* b = d_y.data<T>() + simd::row_offset(d_y, row);
          for_lanes<T>(columns, [&](std::int64_t i, std::int64_t n) {
            store_n<Compute>(hn::MulAdd(load_n(a + i, n), load_n(b + i, n), load_n<Compute>(sum + i, n)), sum + i, n);
          });
        }
      }
    });
    Compute* total = d_gain.data<Compute>();
    std::fill_n(total, columns, Compute{0});
    for (std::int64_t block = 0; block < n_blocks; ++block) {
      for (std::int64_t i = 0; i < columns; ++i) total[i] += blocks.data<Compute>()[block * columns + i];
    }
  });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(ScaleRows);
HWY_EXPORT(SumProducts);

void column_gain_cpu(const Tensor& in, const Tensor& gain, const Tensor& out, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(ScaleRows)(in, gain, out, accumulate);
}
void column_gain_d_gain_cpu(const Tensor& x, const Tensor& d_y, const Tensor& blocks, const Tensor& d_gain) {
  HWY_DYNAMIC_DISPATCH(SumProducts)(x, d_y, blocks, d_gain);
}

}  // namespace furlong::ops
#endif
