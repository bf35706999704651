#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/linformer/sequence_projection_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/autodiff/variable.h"
#include "framework/ops/attention/linformer/sequence_projection_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/rows.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
constexpr std::int64_t grain = 1 << 14;  // elements per thread below which another thread does not pay off

std::int64_t rows_for_a_thread(std::int64_t elements_a_row) {
  return std::max<std::int64_t>(1, grain / std::max<std::int64_t>(elements_a_row, 1));
}

/// The tokens that contribute to one row of the result.
template <class T>
struct Window {
  const T* x = nullptr;  // first token; rows `row_stride` apart
  const std::int32_t* keys = nullptr;
  std::int64_t tokens = 0, row_stride = 0, channels = 0;

  /// Window number `index` of all sequences, windows_a_sequence = ⌈n / stride⌉.
  Window(const Tensor& tensor, const Tensor& mask, std::int64_t stride, std::int64_t index)
      : row_stride(tensor.strides()[1]), channels(tensor.extent(2)) {
    const std::int64_t n = tensor.extent(1), windows = (n + stride - 1) / stride, batch = index / windows;
    const std::int64_t first = index % windows * stride;
    tokens = std::min(stride, n - first);
    x = tensor.data<T>() + batch * tensor.strides()[0] + first * row_stride;
    if (mask.defined()) keys = mask.data<std::int32_t>() + batch * n + first;
  }
  bool kept(std::int64_t j) const { return keys == nullptr || keys[j] != 0; }
  /// Returns 1 / number of kept tokens; 0 if there are none.
  compute_t<T> weight_of_mean() const {
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < tokens; ++j) count += kept(j);
    return count > 0 ? compute_t<T>{1} / static_cast<compute_t<T>>(count) : compute_t<T>{0};
  }
};

/// y = scale Σ_j taps[j] x_j over kept tokens, for `Vectors` vectors of channels from `c` on (a single one has `k`
/// lanes); taps null: all 1.
template <class T, int Vectors>
HWY_INLINE void pool_channels(const Window<T>& window, const compute_t<T>* taps, compute_t<T> scale, std::int64_t c,
                              std::int64_t k, T* y) {
  const typename Lanes<T>::D d;
  const std::int64_t step = Lanes<T>::count();
  typename Lanes<T>::V sums[Vectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (std::int64_t j = 0; j < window.tokens; ++j) {
    if (!window.kept(j)) continue;
    const T* row = window.x + j * window.row_stride + c;
    for (int v = 0; v < Vectors; ++v) {
      const auto value = Vectors == 1 ? load_n(row, k) : Lanes<T>::load(row + v * step);
      if (taps) {
        const auto* tap = taps + j * window.channels + c;
        sums[v] = hn::MulAdd(Vectors == 1 ? load_n(tap, k) : Lanes<compute_t<T>>::load(tap + v * step), value, sums[v]);
      } else {
        sums[v] = hn::Add(sums[v], value);
      }
    }
  }
  for (int v = 0; v < Vectors; ++v) {
    const auto result = hn::Mul(sums[v], hn::Set(d, scale));
    Vectors == 1 ? store_n(result, y + c, k) : Lanes<T>::store(result, y + c + v * step);
  }
}

template <class T>
void pool_windows(const Tensor& x, const Tensor& by_tap, const Tensor& keys, std::int64_t stride, const Tensor& y) {
  const std::int64_t channels = x.extent(2), step = Lanes<T>::count();
  const auto* taps = by_tap.defined() ? by_tap.data<compute_t<T>>() : nullptr;
  T* out = y.data<T>();
  parallel_ranges(y.shape().rows(), rows_for_a_thread(stride * channels), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      const Window<T> window(x, keys, stride, index);
      const compute_t<T> scale = taps ? compute_t<T>{1} : window.weight_of_mean();
      T* row = out + index * channels;
      std::int64_t c = 0;
      for (; c + 4 * step <= channels; c += 4 * step) pool_channels<T, 4>(window, taps, scale, c, step, row);
      for (; c < channels; c += step) pool_channels<T, 1>(window, taps, scale, c, std::min(step, channels - c), row);
    }
  });
}

/// target (+)= taps · d_y over the channels, or scale · d_y if taps is null.
template <class T>
HWY_INLINE void scaled_row(const T* d_y, const compute_t<T>* taps, compute_t<T> scale, std::int64_t channels, T* target,
                           bool accumulate) {
  const typename Lanes<T>::D d;
  const std::int64_t step = Lanes<T>::count();
  for (std::int64_t c = 0; c < channels; c += step) {
    const std::int64_t k = std::min(step, channels - c);
    const auto factor = taps ? load_n(taps + c, k) : hn::Set(d, scale);
    const auto before = accumulate ? load_n(target + c, k) : hn::Zero(d);
    store_n(hn::MulAdd(factor, load_n(d_y + c, k), before), target + c, k);
  }
}

template <class T>
void pool_windows_d_x(const Tensor& d_y, const Tensor& by_tap, const Tensor& keys, std::int64_t stride,
                      const GradientTarget& d_x) {
  const std::int64_t channels = d_y.extent(2), row_stride = d_x.tensor.strides()[1];
  const auto* taps = by_tap.defined() ? by_tap.data<compute_t<T>>() : nullptr;
  const T* dy = d_y.data<T>();
  T* dx = d_x.tensor.data<T>();
  parallel_ranges(d_y.shape().rows(), rows_for_a_thread(stride * channels), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) {
      const Window<T> window(d_x.tensor, keys, stride, index);
      const compute_t<T> scale = taps ? compute_t<T>{1} : window.weight_of_mean();
      T* target = dx + (window.x - dx);
      for (std::int64_t j = 0; j < window.tokens; ++j, target += row_stride) {
        if (window.kept(j)) {
          scaled_row(dy + index * channels, taps ? taps + j * channels : nullptr, scale, channels, target,
                     d_x.accumulates());
        } else if (!d_x.accumulates()) {
          std::fill_n(target, channels, T{});
        }
      }
    }
  });
}

/// sums[j, c] = Σ over all windows of d_y[c] x_j[c] for one tap j and `Vectors` vectors of channels (a single one has
/// `k` lanes). Windows are summed in blocks, so that rounding errors do not grow with their number.
template <class T, int Vectors>
HWY_INLINE void sum_tap(const Tensor& x, const Tensor& d_y, const Tensor& keys, const Tensor& sums, std::int64_t j,
                        std::int64_t c, std::int64_t k) {
  const typename Lanes<T>::D d;
  constexpr std::int64_t block = 64;
  const std::int64_t stride = sums.extent(0), channels = sums.extent(1), windows = d_y.shape().rows(),
                     step = Lanes<T>::count();
  typename Lanes<T>::V totals[Vectors], parts[Vectors];
  for (auto& total : totals) total = hn::Zero(d);
  for (std::int64_t first = 0; first < windows; first += block) {
    for (auto& part : parts) part = hn::Zero(d);
    for (std::int64_t index = first; index < std::min(first + block, windows); ++index) {
      const Window<T> window(x, keys, stride, index);
      if (j >= window.tokens || !window.kept(j)) continue;
      const T *dy = d_y.data<T>() + index * channels + c, *row = window.x + j * window.row_stride + c;
      for (int v = 0; v < Vectors; ++v) {
        parts[v] = Vectors == 1 ? hn::MulAdd(load_n(dy, k), load_n(row, k), parts[v])
                                : hn::MulAdd(Lanes<T>::load(dy + v * step), Lanes<T>::load(row + v * step), parts[v]);
      }
    }
    for (int v = 0; v < Vectors; ++v) totals[v] = hn::Add(totals[v], parts[v]);
  }
  auto* to = sums.data<compute_t<T>>() + j * channels + c;
  for (int v = 0; v < Vectors; ++v)
    Vectors == 1 ? store_n(totals[v], to, k) : Lanes<compute_t<T>>::store(totals[v], to + v * step);
}

/// Each task has one tap and a few channels, so no two tasks write to the same place.
template <class T>
void pool_windows_d_taps(const Tensor& x, const Tensor& d_y, const Tensor& keys, const Tensor& sums) {
  const std::int64_t channels = sums.extent(1), step = Lanes<T>::count(), width = 4 * step;
  const std::int64_t tasks_a_tap = (channels + width - 1) / width;
  parallel_ranges(sums.extent(0) * tasks_a_tap, rows_for_a_thread(d_y.shape().rows() * width),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t task = begin; task < end; ++task) {
                      const std::int64_t j = task / tasks_a_tap;
                      std::int64_t c = task % tasks_a_tap * width;
                      if (c + width <= channels) {
                        sum_tap<T, 4>(x, d_y, keys, sums, j, c, step);
                      } else {
                        for (; c < channels; c += step)
                          sum_tap<T, 1>(x, d_y, keys, sums, j, c, std::min(step, channels - c));
                      }
                    }
                  });
}

/// target (+)= source, with zeros for masked tokens, whose source is not read. Both [batch, n, channels]; keys
/// [batch, n] or undefined.
template <class T>
void masked_rows(const Tensor& target, const Tensor& source, const Tensor& keys, bool accumulate) {
  const std::int64_t channels = target.extent(2);
  const std::int32_t* kept = keys.defined() ? keys.data<std::int32_t>() : nullptr;
  parallel_ranges(target.shape().rows(), rows_for_a_thread(channels), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      T* to = target.data<T>() + simd::row_offset(target, row);
      if (!kept || kept[row] != 0) {
        scaled_row<T>(source.data<T>() + simd::row_offset(source, row), nullptr, compute_t<T>{1}, channels, to,
                      accumulate);
      } else if (!accumulate) {
        std::fill_n(to, channels, T{});
      }
    }
  });
}

void PoolWindows(const Tensor& x, const Tensor& by_tap, const Tensor& keys, std::int64_t stride, const Tensor& y) {
  with_float_type(x.dtype(), "sequence_projection",
                  [&]<class T>(std::type_identity<T>) { pool_windows<T>(x, by_tap, keys, stride, y); });
}
void PoolWindowsDX(const Tensor& d_y, const Tensor& by_tap, const Tensor& keys, std::int64_t stride,
                   const GradientTarget& d_x) {
  with_float_type(d_y.dtype(), "sequence_projection",
                  [&]<class T>(std::type_identity<T>) { pool_windows_d_x<T>(d_y, by_tap, keys, stride, d_x); });
}
void PoolWindowsDTaps(const Tensor& x, const Tensor& d_y, const Tensor& keys, const Tensor& sums) {
  with_float_type(x.dtype(), "sequence_projection",
                  [&]<class T>(std::type_identity<T>) { pool_windows_d_taps<T>(x, d_y, keys, sums); });
}
void MaskedRows(const Tensor& target, const Tensor& source, const Tensor& keys, bool accumulate) {
  with_float_type(target.dtype(), "sequence_projection",
                  [&]<class T>(std::type_identity<T>) { masked_rows<T>(target, source, keys, accumulate); });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(PoolWindows);
HWY_EXPORT(PoolWindowsDX);
HWY_EXPORT(PoolWindowsDTaps);
HWY_EXPORT(MaskedRows);

void masked_rows_cpu(const Tensor& target, const Tensor& source, const Tensor& keys, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(MaskedRows)(target, source, keys, accumulate);
}
void pool_windows_cpu(const Tensor& x, const Tensor& by_tap, const Tensor& keys, std::int64_t stride, const Tensor& y) {
  HWY_DYNAMIC_DISPATCH(PoolWindows)(x, by_tap, keys, stride, y);
}
void pool_windows_d_x_cpu(const Tensor& d_y, const Tensor& by_tap, const Tensor& keys, std::int64_t stride,
                          const GradientTarget& d_x) {
  HWY_DYNAMIC_DISPATCH(PoolWindowsDX)(d_y, by_tap, keys, stride, d_x);
}

/// by_tap[j, c] = weight[c mod rows, j]: a weight shared by heads is repeated for each head.
void projection_taps_cpu(const Tensor& weight, const Tensor& by_tap) {
  const std::int64_t stride = by_tap.extent(0), channels = by_tap.extent(1), rows = weight.extent(0);
  with_float_type(weight.dtype(), "sequence_projection", [&]<class T>(std::type_identity<T>) {
    const T* from = weight.data<T>();
    auto* to = by_tap.data<compute_t<T>>();
    for (std::int64_t j = 0; j < stride; ++j) {
      for (std::int64_t c = 0; c < channels; ++c)
        to[j * channels + c] = static_cast<compute_t<T>>(from[c % rows * stride + j]);
    }
  });
}

void pool_windows_d_weight_cpu(const Tensor& x, const Tensor& d_y, const Tensor& keys, const Tensor& by_tap_sums,
                               const GradientTarget& d_weight) {
  HWY_DYNAMIC_DISPATCH(PoolWindowsDTaps)(x, d_y, keys, by_tap_sums);
  const std::int64_t stride = by_tap_sums.extent(0), channels = by_tap_sums.extent(1), rows = d_weight.tensor.extent(0);
  with_float_type(by_tap_sums.dtype(), "sequence_projection", [&]<class Sum>(std::type_identity<Sum>) {
    with_float_type(d_weight.tensor.dtype(), "sequence_projection", [&]<class To>(std::type_identity<To>) {
      const Sum* sums = by_tap_sums.data<Sum>();
      To* target = d_weight.tensor.data<To>();
      for (std::int64_t c = 0; c < rows; ++c) {
        for (std::int64_t j = 0; j < stride; ++j) {
          compute_t<To> sum =
              d_weight.accumulates() ? static_cast<compute_t<To>>(target[c * stride + j]) : compute_t<To>{0};
          for (std::int64_t channel = c; channel < channels; channel += rows) {
            sum += static_cast<compute_t<To>>(static_cast<compute_t<Sum>>(sums[j * channels + channel]));
          }
          target[c * stride + j] = static_cast<To>(sum);
        }
      }
    });
  });
}

/// stride 0: the window of every row is the whole sequence.
void projection_mask_cpu(const Tensor& keys, std::int64_t stride, const Tensor& row_keys) {
  const std::int64_t n = keys.extent(1), rows = row_keys.extent(1);
  const std::int32_t* kept = keys.data<std::int32_t>();
  std::int32_t* row_kept = row_keys.data<std::int32_t>();
  for (std::int64_t batch = 0; batch < keys.extent(0); ++batch, kept += n, row_kept += rows) {
    const auto any = [&](std::int64_t begin, std::int64_t end) {
      return static_cast<std::int32_t>(
          std::any_of(kept + begin, kept + end, [](std::int32_t key) { return key != 0; }));
    };
    if (stride == 0) {
      std::fill_n(row_kept, rows, any(0, n));
    } else {
      for (std::int64_t row = 0; row < rows; ++row) row_kept[row] = any(row * stride, std::min((row + 1) * stride, n));
    }
  }
}
}  // namespace furlong::ops
#endif
