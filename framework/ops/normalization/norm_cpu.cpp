#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/normalization/norm_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>

#include "framework/core/parallel.h"
#include "framework/ops/normalization/norm_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
constexpr std::int64_t grain = 1 << 14;  // with fewer elements a second thread costs more than it saves

template <class T>
T* pointer(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

template <class D>
HWY_INLINE hn::TFromD<D> lane_sum(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

template <class T>
void add_row(const T* a, const T* b, T* sum, std::int64_t columns) {
  for_lanes<T>(columns, [&](std::int64_t i, std::int64_t n) {
    store_n(hn::Add(load_n(a + i, n), load_n(b + i, n)), sum + i, n);
  });
}

template <class T>
compute_t<T> row_mean(const T* row, std::int64_t columns) {
  const typename Lanes<T>::D d;
  auto sum = hn::Zero(d);
  for_lanes<T>(columns, [&](std::int64_t i, std::int64_t n) { sum = hn::Add(sum, load_n(row + i, n)); });
  return lane_sum(d, sum) / static_cast<compute_t<T>>(columns);
}

/// Returns mean((row - center)^2) in a second pass over the row, which is still in the cache. The difference of two
/// large sums would lose the variance.
template <class T>
compute_t<T> mean_square(const T* row, std::int64_t columns, compute_t<T> center) {
  const typename Lanes<T>::D d;
  const auto middle = hn::Set(d, center);
  auto sum = hn::Zero(d);
  for_lanes<T>(columns, [&](std::int64_t i, std::int64_t n) {
    auto difference = hn::Sub(load_n(row + i, n), middle);
    if (n < Lanes<T>::count()) difference = hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n)), difference);
    sum = hn::MulAdd(difference, difference, sum);
  });
  return lane_sum(d, sum) / static_cast<compute_t<T>>(columns);
}

template <class T>
void scale_row(const T* row, const compute_t<T>* gain, const compute_t<T>* bias, T* normed, std::int64_t columns,
               compute_t<T> mean, compute_t<T> reciprocal_deviation) {
  using Compute = compute_t<T>;
  const typename Lanes<T>::D d;
  const auto middle = hn::Set(d, mean), factor = hn::Set(d, reciprocal_deviation);
  for_lanes<T>(columns, [&](std::int64_t i, std::int64_t n) {
    const auto x_hat = hn::Mul(hn::Sub(load_n(row + i, n), middle), factor);
    const auto g = load_n<Compute>(gain + i, n);
    store_n<T>(bias ? hn::MulAdd(x_hat, g, load_n<Compute>(bias + i, n)) : hn::Mul(x_hat, g), normed + i, n);
  });
}

template <class T>
void forward_rows(const NormForward& work, std::int64_t begin, std::int64_t end) {
  using Compute = compute_t<T>;
  const std::int64_t columns = work.normed.extent(-1);
  const T* residual_in = pointer<T>(work.residual_in);
  const T* branch = pointer<T>(work.branch);
  T* residual = pointer<T>(work.residual);
  T* normed = pointer<T>(work.normed);
  Compute* means = pointer<Compute>(work.mean);
  Compute* reciprocal_deviations = pointer<Compute>(work.reciprocal_deviation);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = residual_in + row * columns;
    if (branch) {
      // Statistics use the sum as it is stored, so that backward uses the same numbers.
      add_row(x, branch + row * columns, residual + row * columns, columns);
      x = residual + row * columns;
    }
    const Compute mean = means ? row_mean(x, columns) : Compute{0};
    const Compute variance = mean_square(x, columns, mean);
    const auto reciprocal_deviation = static_cast<Compute>(1 / std::sqrt(static_cast<double>(variance) + work.epsilon));
    if (means) means[row] = mean;
    reciprocal_deviations[row] = reciprocal_deviation;
    scale_row(x, pointer<Compute>(work.gain), pointer<Compute>(work.bias), normed + row * columns, columns, mean,
              reciprocal_deviation);
  }
}

void NormForwardBody(const NormForward& work) {
  const Shape& shape = work.normed.shape();
  with_float_type(work.normed.dtype(), "norm", [&]<class T>(std::type_identity<T>) {
    parallel_ranges(shape.rows(), std::max<std::int64_t>(1, grain / shape[-1]),
                    [&](std::int64_t begin, std::int64_t end) { forward_rows<T>(work, begin, end); });
  });
}

/// Returns the means over a row of g = d_normed * gain and of g * x_hat. Adds d_normed * x_hat and d_normed to the
/// block's sums if requested.
template <class T>
struct RowMeans {
  compute_t<T> g, g_x_hat;
};
template <class T>
RowMeans<T> backward_means(const T* x, const T* d_normed, const compute_t<T>* gain, compute_t<T>* d_gain,
                           compute_t<T>* d_bias, std::int64_t columns, compute_t<T> mean,
                           compute_t<T> reciprocal_deviation) {
  using Compute = compute_t<T>;
  const typename Lanes<T>::D d;
  const auto middle = hn::Set(d, mean), factor = hn::Set(d, reciprocal_deviation);
  auto sum_g = hn::Zero(d), sum_g_x_hat = hn::Zero(d);
  for_lanes<T>(columns, [&](std::int64_t i, std::int64_t n) {
    // In lanes past the end d_normed is zero, so they add nothing to the sums.
    const auto x_hat = hn::Mul(hn::Sub(load_n(x + i, n), middle), factor);
    const auto d_y = load_n(d_normed + i, n);
    const auto g = hn::Mul(d_y, load_n<Compute>(gain + i, n));
    sum_g = hn::Add(sum_g, g);
    sum_g_x_hat = hn::MulAdd(g, x_hat, sum_g_x_hat);
    if (d_gain) {
      store_n<Compute>(hn::MulAdd(d_y, x_hat, load_n<Compute>(d_gain + i, n)), d_gain + i, n);
      store_n<Compute>(hn::Add(d_y, load_n<Compute>(d_bias + i, n)), d_bias + i, n);
    }
  });
  const auto size = static_cast<Compute>(columns);
  return {lane_sum(d, sum_g) / size, lane_sum(d, sum_g_x_hat) / size};
}

/// d_x = (g - x_hat mean(g x_hat) - mean(g)) / deviation plus the addend; the last mean only for layernorm.
template <class T>
void backward_row(const T* x, const T* d_normed, const compute_t<T>* gain, const T* addend, T* d_x,
                  std::int64_t columns, compute_t<T> mean, compute_t<T> reciprocal_deviation, RowMeans<T> means) {
  using Compute = compute_t<T>;
  const typename Lanes<T>::D d;
  const auto middle = hn::Set(d, mean), factor = hn::Set(d, reciprocal_deviation);
  const auto mean_g = hn::Set(d, means.g), mean_g_x_hat = hn::Set(d, means.g_x_hat);
  for_lanes<T>(columns, [&](std::int64_t i, std::int64_t n) {
    const auto x_hat = hn::Mul(hn::Sub(load_n(x + i, n), middle), factor);
    const auto g = hn::Mul(load_n(d_normed + i, n), load_n<Compute>(gain + i, n));
    const auto centered = hn::Sub(hn::NegMulAdd(x_hat, mean_g_x_hat, g), mean_g);
    store_n<T>(addend ? hn::MulAdd(centered, factor, load_n(addend + i, n)) : hn::Mul(centered, factor), d_x + i, n);
  });
}

template <class T>
void backward_block(const NormBackward& work, std::int64_t block, std::int64_t blocks) {
  using Compute = compute_t<T>;
  const std::int64_t columns = work.residual.extent(-1), rows = work.residual.shape().rows();
  const T* x = pointer<T>(work.residual);
  const T* d_normed = pointer<T>(work.d_normed);
  const T* addend = pointer<T>(work.addend);
  T* d_x = pointer<T>(work.d_residual);
  const Compute* gain = pointer<Compute>(work.gain);
  const Compute* mean_of = pointer<Compute>(work.mean);
  const Compute* reciprocal_deviation_of = pointer<Compute>(work.reciprocal_deviation);
  Compute* d_gain = pointer<Compute>(work.d_gain_bias_blocks);
  Compute* d_bias = nullptr;
  if (d_gain) {
    d_gain += block * 2 * columns;
    d_bias = d_gain + columns;
    std::fill_n(d_gain, 2 * columns, Compute{0});
  }
  for (std::int64_t row = rows * block / blocks; row < rows * (block + 1) / blocks; ++row) {
    const std::int64_t at = row * columns;
    const Compute mean = mean_of ? mean_of[row] : Compute{0}, reciprocal_deviation = reciprocal_deviation_of[row];
    RowMeans<T> means =
        backward_means(x + at, d_normed + at, gain, d_gain, d_bias, columns, mean, reciprocal_deviation);
    if (work.kind == NormKind::rmsnorm) means.g = 0;
    if (d_x)
      backward_row(x + at, d_normed + at, gain, addend ? addend + at : nullptr, d_x + at, columns, mean,
                   reciprocal_deviation, means);
  }
}

template <class Compute>
void sum_blocks(const NormBackward& work, std::int64_t blocks) {
  const std::int64_t columns = work.residual.extent(-1);
  const Compute* partial = pointer<Compute>(work.d_gain_bias_blocks);
  Compute* sums[2] = {pointer<Compute>(work.d_gain), pointer<Compute>(work.d_bias)};
  for (std::int64_t which = 0; which < 2; ++which) {
    std::fill_n(sums[which], columns, Compute{0});
    for (std::int64_t block = 0; block < blocks; ++block) {
      const Compute* row = partial + (2 * block + which) * columns;
      add_row(sums[which], row, sums[which], columns);
    }
  }
}

void NormBackwardBody(const NormBackward& work) {
  const std::int64_t rows = work.residual.shape().rows(),
                     blocks = norm_row_blocks(Device{}, rows, work.residual.extent(-1));
  with_float_type(work.residual.dtype(), "norm", [&]<class T>(std::type_identity<T>) {
    const std::int64_t block_elements =
        std::max<std::int64_t>(1, work.residual.elements() / std::max<std::int64_t>(1, blocks));
    parallel_ranges(blocks, std::max<std::int64_t>(1, grain / block_elements),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t block = begin; block < end; ++block) backward_block<T>(work, block, blocks);
                    });
    if (work.d_gain_bias_blocks.defined()) sum_blocks<compute_t<T>>(work, blocks);
  });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(NormForwardBody);
HWY_EXPORT(NormBackwardBody);
void norm_forward_cpu(const NormForward& work) { HWY_DYNAMIC_DISPATCH(NormForwardBody)(work); }
void norm_backward_cpu(const NormBackward& work) { HWY_DYNAMIC_DISPATCH(NormBackwardBody)(work); }
}  // namespace furlong::ops
#endif
