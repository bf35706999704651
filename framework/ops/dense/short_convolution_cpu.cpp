#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/dense/short_convolution_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/autodiff/variable.h"
#include "framework/ops/dense/short_convolution.h"
#include "framework/ops/dense/short_convolution_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/rows.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
constexpr std::int64_t grain = 1 << 14;  // with fewer elements a second thread costs more than it saves

/// The inputs of one batch entry, starting with the history.
template <class T>
struct Inputs {
  const T* x;                 // [n, channels], row stride `stride`
  const T* history;           // [width - 1, channels], or null
  const std::int32_t* place;  // [n], position of each token in its document; null: one document
  std::int64_t stride, channels, before;

  Inputs(const Tensor& x_, const Tensor& history_, const Tensor& positions, std::int64_t batch, std::int64_t width)
      : x(x_.data<T>() + batch * x_.strides()[0]),
        history(history_.defined() ? history_.data<T>() + batch * history_.strides()[0] : nullptr),
        place(positions.defined() ? positions.data<std::int32_t>() + batch * positions.extent(1) : nullptr),
        stride(x_.strides()[1]),
        channels(x_.extent(2)),
        before(width - 1) {}
  /// Returns the row `back` positions before row t; null if its document does not reach that far.
  const T* row(std::int64_t t, std::int64_t back) const {
    if (place && back > place[t]) return nullptr;
    if (t >= back) return x + (t - back) * stride;
    return history ? history + (before + t - back) * channels : nullptr;
  }
  /// Returns the number of rows from t on, at most `limit`, that lie in one document. For all of them the null rows
  /// come first.
  std::int64_t rows_in_document(std::int64_t t, std::int64_t limit) const {
    if (!place) return limit;
    std::int64_t count = 1;
    while (count < limit && place[t + count] > 0) ++count;
    return count;
  }
};

/// out = Σ_j taps[j] · rows[j] over j in [first, width), element-wise over the channels; added to `out` if it
/// accumulates.
template <class T>
HWY_INLINE void weighted_sum(const T* const* rows, const compute_t<T>* taps, std::int64_t first, std::int64_t width,
                             std::int64_t channels, T* out, bool accumulate) {
  const typename Lanes<T>::D d;
  const std::int64_t step = Lanes<T>::count();
  for (std::int64_t c = 0; c < channels; c += step) {
    const std::int64_t k = std::min(step, channels - c);
    auto sum = accumulate ? load_n(out + c, k) : hn::Zero(d);
    for (std::int64_t j = first; j < width; ++j)
      sum = hn::MulAdd(load_n(taps + j * channels + c, k), load_n(rows[j] + c, k), sum);
    store_n(sum, out + c, k);
  }
}

template <class T>
void convolve(const Tensor& x, const Tensor& by_tap, const Tensor& history, const Tensor& positions, const Tensor& y) {
  const std::int64_t n = x.extent(1), width = by_tap.extent(0), channels = by_tap.extent(1);
  const auto* taps = by_tap.data<compute_t<T>>();
  T* out = y.data<T>();
  parallel_ranges(x.shape().rows(), std::max<std::int64_t>(1, grain / channels),
                  [&](std::int64_t begin, std::int64_t end) {
                    const T* rows[max_short_convolution_width];
                    for (std::int64_t row = begin; row < end; ++row) {
                      const Inputs<T> inputs(x, history, positions, row / n, width);
                      std::int64_t first = 0;  // null rows, before the start, come first
                      for (std::int64_t j = 0; j < width; ++j) {
                        rows[j] = inputs.row(row % n, width - 1 - j);
                        if (!rows[j]) first = j + 1;
                      }
                      weighted_sum(rows, taps, first, width, channels, out + row * channels, false);
                    }
                  });
}

/// d_x[t] = Σ_j weight[j] · d_y[t + (width - 1) - j], within d_y and the document.
template <class T>
void input_gradient(const Tensor& d_y, const Tensor& by_tap, const Tensor& positions, const GradientTarget& d_x) {
  const std::int64_t n = d_y.extent(1), width = by_tap.extent(0), channels = by_tap.extent(1);
  const auto* taps = by_tap.data<compute_t<T>>();
  const auto* place = positions.defined() ? positions.data<std::int32_t>() : nullptr;
  const T* dy = d_y.data<T>();
  T* dx = d_x.tensor.data<T>();
  parallel_ranges(
      d_y.shape().rows(), std::max<std::int64_t>(1, grain / channels), [&](std::int64_t begin, std::int64_t end) {
        const T* rows[max_short_convolution_width];
        for (std::int64_t row = begin; row < end; ++row) {
          std::int64_t last = std::min(width, n - row % n);  // number of outputs that this row contributes to
          for (std::int64_t ahead = 1; place && ahead < last; ++ahead) {
            if (place[row + ahead] == 0) last = ahead;
          }
          const std::int64_t first = width - last;
          for (std::int64_t j = first; j < width; ++j) rows[j] = dy + (row + width - 1 - j) * channels;
          weighted_sum(rows, taps, first, width, channels, dx + simd::row_offset(d_x.tensor, row), d_x.accumulates());
        }
      });
}

/// sums[j, c] += Σ over `count` rows of d_y[t, c] · x[t - (width - 1) + j, c]. The rows belong to one document, start
/// at t and fit in the cache.
template <class T>
HWY_INLINE void add_tap_sums(const Inputs<T>& inputs, const T* d_y, std::int64_t t, std::int64_t count,
                             std::int64_t width, std::int64_t channels, compute_t<T>* sums) {
  const std::int64_t step = Lanes<T>::count();
  for (std::int64_t j = 0; j < width; ++j) {
    const T* rows[8];
    std::int64_t first = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      rows[i] = inputs.row(t + i, width - 1 - j);
      if (!rows[i]) first = i + 1;
    }
    for (std::int64_t c = 0; c < channels; c += step) {
      const std::int64_t k = std::min(step, channels - c);
      auto sum = load_n(sums + j * channels + c, k);
      for (std::int64_t i = first; i < count; ++i)
        sum = hn::MulAdd(load_n(d_y + i * channels + c, k), load_n(rows[i] + c, k), sum);
      store_n(sum, sums + j * channels + c, k);
    }
  }
}

template <class T>
void weight_gradient_blocks(const Tensor& x, const Tensor& history, const Tensor& positions, const Tensor& d_y,
                            const Tensor& partial) {
  const std::int64_t n = x.extent(1), rows = x.shape().rows();
  const std::int64_t blocks = partial.extent(0), width = partial.extent(1), channels = partial.extent(2);
  const T* dy = d_y.data<T>();
  auto* sums = partial.data<compute_t<T>>();
  parallel_ranges(blocks, std::max<std::int64_t>(1, grain * blocks / (rows * channels + 1)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t block = begin; block < end; ++block) {
                      auto* block_sums = sums + block * width * channels;
                      std::fill_n(block_sums, width * channels, compute_t<T>{0});
                      const std::int64_t last = rows * (block + 1) / blocks;
                      for (std::int64_t row = rows * block / blocks; row < last;) {
                        const Inputs<T> inputs(x, history, positions, row / n, width);
                        const std::int64_t t = row % n, count = inputs.rows_in_document(
                                                            t, std::min({std::int64_t{8}, last - row, n - t}));
                        add_tap_sums(inputs, dy + row * channels, t, count, width, channels, block_sums);
                        row += count;
                      }
                    }
                  });
}

void Convolve(const Tensor& x, const Tensor& by_tap, const Tensor& history, const Tensor& positions, const Tensor& y) {
  with_float_type(x.dtype(), "short_convolution",
                  [&]<class T>(std::type_identity<T>) { convolve<T>(x, by_tap, history, positions, y); });
}
void InputGradient(const Tensor& d_y, const Tensor& by_tap, const Tensor& positions, const GradientTarget& d_x) {
  with_float_type(d_y.dtype(), "short_convolution",
                  [&]<class T>(std::type_identity<T>) { input_gradient<T>(d_y, by_tap, positions, d_x); });
}
void WeightGradientBlocks(const Tensor& x, const Tensor& history, const Tensor& positions, const Tensor& d_y,
                          const Tensor& partial) {
  with_float_type(x.dtype(), "short_convolution", [&]<class T>(std::type_identity<T>) {
    weight_gradient_blocks<T>(x, history, positions, d_y, partial);
  });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(Convolve);
HWY_EXPORT(InputGradient);
HWY_EXPORT(WeightGradientBlocks);

void short_convolution_taps_cpu(const Tensor& weight, const Tensor& by_tap) {
  const std::int64_t channels = weight.extent(0), width = weight.extent(1);
  with_float_type(weight.dtype(), "short_convolution", [&]<class T>(std::type_identity<T>) {
    const T* from = weight.data<T>();
    auto* to = by_tap.data<compute_t<T>>();
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t j = 0; j < width; ++j) to[j * channels + c] = static_cast<compute_t<T>>(from[c * width + j]);
    }
  });
}

void short_convolution_cpu(const Tensor& x, const Tensor& by_tap, const Tensor& history, const Tensor& positions,
                           const Tensor& y) {
  HWY_DYNAMIC_DISPATCH(Convolve)(x, by_tap, history, positions, y);
}

void short_convolution_history_cpu(const Tensor& x, const Tensor& history, const Tensor& updated_history) {
  const std::int64_t batch = x.extent(0), n = x.extent(1), before = updated_history.extent(1), channels = x.extent(2);
  with_float_type(x.dtype(), "short_convolution", [&]<class T>(std::type_identity<T>) {
    for (std::int64_t b = 0; b < batch; ++b) {
      const T* inputs = x.data<T>() + b * x.strides()[0];
      const T* old = history.defined() ? history.data<T>() + b * before * channels : nullptr;
      T* next = updated_history.data<T>() + b * before * channels;
      // Oldest first: if the history is overwritten in place, every row is read before it is overwritten.
      for (std::int64_t i = 0; i < before; ++i) {
        const std::int64_t t = n - before + i;
        if (t >= 0) {
          std::copy_n(inputs + t * x.strides()[1], channels, next + i * channels);
        } else if (old) {
          std::copy_n(old + (before + t) * channels, channels, next + i * channels);
        } else {
          std::fill_n(next + i * channels, channels, T{});
        }
      }
    }
  });
}

void short_convolution_d_x_cpu(const Tensor& d_y, const Tensor& by_tap, const Tensor& positions,
                               const GradientTarget& d_x) {
  HWY_DYNAMIC_DISPATCH(InputGradient)(d_y, by_tap, positions, d_x);
}

void short_convolution_d_weight_cpu(const Tensor& x, const Tensor& history, const Tensor& positions, const Tensor& d_y,
                                    const Tensor& partial, const GradientTarget& d_weight) {
  HWY_DYNAMIC_DISPATCH(WeightGradientBlocks)(x, history, positions, d_y, partial);
  const std::int64_t blocks = partial.extent(0), width = partial.extent(1), channels = partial.extent(2);
  with_float_type(partial.dtype(), "short_convolution", [&]<class Sum>(std::type_identity<Sum>) {
    with_float_type(d_weight.tensor.dtype(), "short_convolution", [&]<class To>(std::type_identity<To>) {
      const Sum* sums = partial.data<Sum>();
      To* target = d_weight.tensor.data<To>();
      parallel_ranges(
          channels, std::max<std::int64_t>(1, 16384 / (blocks * width)), [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t c = begin; c < end; ++c) {
              for (std::int64_t j = 0; j < width; ++j) {
                compute_t<Sum> sum{0};
                for (std::int64_t block = 0; block < blocks; ++block)
                  sum += static_cast<compute_t<Sum>>(sums[(block * width + j) * channels + c]);
                To& place = target[c * width + j];
                const auto gradient = static_cast<compute_t<To>>(sum);
                place =
                    static_cast<To>(d_weight.accumulates() ? static_cast<compute_t<To>>(place) + gradient : gradient);
              }
            }
          });
    });
  });
}
}  // namespace furlong::ops
#endif
