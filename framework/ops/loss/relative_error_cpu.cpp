#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/loss/relative_error_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>
#include <vector>

#include "framework/ops/loss/relative_error_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/integers.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

struct ErrorSums {
  double error = 0, size = 0;
};

/// Sums of one row, in the compute type.
template <class T>
HWY_INLINE ErrorSums row_sums(const T* x, const T* reference, std::int64_t columns) {
  const typename Lanes<T>::D d;
  auto error = hn::Zero(d), size = hn::Zero(d);
  for_lanes<T>(columns, [&](std::int64_t i, std::int64_t k) {
    const auto r = load_n(reference + i, k), difference = hn::Sub(load_n(x + i, k), r);
    error = hn::MulAdd(difference, difference, error);
    size = hn::MulAdd(r, r, size);
  });
  return {static_cast<double>(hn::GetLane(hn::SumOfLanes(d, error))),
          static_cast<double>(hn::GetLane(hn::SumOfLanes(d, size)))};
}

template <class T>
void sum_errors(const Tensor& x, const Tensor& reference, const Tensor& mask, const Tensor& sums, const Tensor& loss) {
  const std::int64_t rows = x.shape().rows(), columns = x.extent(-1);
  const std::int64_t rows_of_block = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, columns));
  std::vector<ErrorSums> blocks(static_cast<std::size_t>((rows + rows_of_block - 1) / rows_of_block));
  parallel_ranges(static_cast<std::int64_t>(blocks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      ErrorSums total;
      for (std::int64_t row = block * rows_of_block; row < std::min(rows, (block + 1) * rows_of_block); ++row) {
        if (mask.defined() && simd::integer_at(mask, row) == 0) continue;
        const ErrorSums row_total = row_sums(x.data<T>() + simd::row_offset(x, row),
                                             reference.data<T>() + simd::row_offset(reference, row), columns);
        total.error += row_total.error;
        total.size += row_total.size;
      }
      blocks[static_cast<std::size_t>(block)] = total;
    }
  });
  ErrorSums total;
  for (const ErrorSums& block : blocks) {
    total.error += block.error;
    total.size += block.size;
  }
  sums.data<double>()[0] = total.error;
  sums.data<double>()[1] = total.size;
  loss.data<compute_t<T>>()[0] = static_cast<compute_t<T>>(total.size == 0 ? 0 : total.error / total.size);
}

template <class T>
void add_gradients(const Tensor& x, const Tensor& reference, const Tensor& mask, double size, double d_loss,
                   const Tensor& d_x, bool accumulate) {
  const typename Lanes<T>::D d;
  const std::int64_t columns = x.extent(-1);
  const auto factor = hn::Set(d, static_cast<compute_t<T>>(size == 0 ? 0 : 2 * d_loss / size));
  parallel_ranges(x.shape().rows(), std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, columns)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      const T *values = x.data<T>() + simd::row_offset(x, row),
                              *against = reference.data<T>() + simd::row_offset(reference, row);
                      T* target = d_x.data<T>() + simd::row_offset(d_x, row);
                      if (size == 0 || (mask.defined() && simd::integer_at(mask, row) == 0)) {
                        if (!accumulate) std::fill_n(target, columns, T{});
                        continue;
                      }
                      for_lanes<T>(columns, [&](std::int64_t i, std::int64_t k) {
                        const auto before = accumulate ? load_n(target + i, k) : hn::Zero(d);
                        store_n<T>(hn::MulAdd(hn::Sub(load_n(values + i, k), load_n(against + i, k)), factor, before),
                                   target + i, k);
                      });
                    }
                  });
}

void SumErrors(const Tensor& x, const Tensor& reference, const Tensor& mask, const Tensor& sums, const Tensor& loss) {
  with_float_type(x.dtype(), "relative_error",
                  [&]<class T>(std::type_identity<T>) { sum_errors<T>(x, reference, mask, sums, loss); });
}

void AddGradients(const Tensor& x, const Tensor& reference, const Tensor& mask, double size, double d_loss,
                  const Tensor& d_x, bool accumulate) {
  with_float_type(x.dtype(), "relative_error", [&]<class T>(std::type_identity<T>) {
    add_gradients<T>(x, reference, mask, size, d_loss, d_x, accumulate);
  });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(SumErrors);
HWY_EXPORT(AddGradients);

void relative_error_cpu(const Tensor& x, const Tensor& reference, const Tensor& mask, const Tensor& sums,
                        const Tensor& loss) {
  HWY_DYNAMIC_DISPATCH(SumErrors)(x, reference, mask, sums, loss);
}

void relative_error_backward_cpu(const Tensor& x, const Tensor& reference, const Tensor& mask, const Tensor& sums,
                                 const Tensor& d_loss, const Tensor& d_x, bool accumulate) {
  const double d =
      d_loss.dtype() == DType::float64 ? d_loss.data<double>()[0] : static_cast<double>(d_loss.data<float>()[0]);
  HWY_DYNAMIC_DISPATCH(AddGradients)(x, reference, mask, sums.data<double>()[1], d, d_x, accumulate);
}
}  // namespace furlong::ops
#endif
