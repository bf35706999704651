// Each kernel makes one pass over memory, so plain loops reach the memory bandwidth.
#include <vector>

#include "framework/core/parallel.h"
#include "framework/ops/dense/pooling_kernels.h"
#include "framework/primitives/dispatch.h"

namespace furlong::ops {
namespace {

constexpr std::int64_t grain = 1 << 15;  // with fewer elements a second thread costs more than it saves

template <class T>
void write(T& target, compute_t<T> value, bool accumulate) {
  target = static_cast<T>(accumulate ? static_cast<compute_t<T>>(target) + value : value);
}

/// Returns the number of unmasked positions in row `b`.
std::int64_t kept(const std::int32_t* mask, std::int64_t b, std::int64_t n) {
  if (!mask) return n;
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < n; ++t) count += mask[b * n + t] != 0;
  return count;
}

const std::int32_t* values_of(const Tensor& mask) { return mask.defined() ? mask.data<std::int32_t>() : nullptr; }

template <class T>
void mean_of_rows(const Tensor& x, const std::int32_t* mask, const Tensor& output) {
  const std::int64_t n = x.extent(1), d = x.extent(2);
  parallel_ranges(x.extent(0), std::max<std::int64_t>(1, grain / (n * d)), [&](std::int64_t begin, std::int64_t end) {
    std::vector<compute_t<T>> sum(static_cast<std::size_t>(d));
    for (std::int64_t b = begin; b < end; ++b) {
      std::fill(sum.begin(), sum.end(), compute_t<T>{0});
      for (std::int64_t t = 0; t < n; ++t) {
        if (mask && mask[b * n + t] == 0) continue;
        const T* row = x.data<T>() + (b * n + t) * d;
        for (std::int64_t i = 0; i < d; ++i) sum[static_cast<std::size_t>(i)] += static_cast<compute_t<T>>(row[i]);
      }
      const auto scale = compute_t<T>{1} / static_cast<compute_t<T>>(std::max<std::int64_t>(1, kept(mask, b, n)));
      for (std::int64_t i = 0; i < d; ++i)
        output.data<T>()[b * d + i] = static_cast<T>(sum[static_cast<std::size_t>(i)] * scale);
    }
  });
}

template <class T>
void spread(const Tensor& d_output, const std::int32_t* mask, bool mean, const Tensor& d_x, bool accumulate) {
  const std::int64_t n = d_x.extent(1), d = d_x.extent(2);
  parallel_ranges(
      d_output.extent(0), std::max<std::int64_t>(1, grain / (n * d)), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) {
          const T* from = d_output.data<T>() + b * d;
          const auto scale =
              mean ? compute_t<T>{1} / static_cast<compute_t<T>>(std::max<std::int64_t>(1, kept(mask, b, n)))
                   : compute_t<T>{1};
          for (std::int64_t t = 0; t < n; ++t) {
            const bool reached = mean ? !mask || mask[b * n + t] != 0 : t == 0;
            if (!reached && accumulate) continue;
            T* to = d_x.data<T>() + (b * n + t) * d;
            for (std::int64_t i = 0; i < d; ++i)
              write(to[i], reached ? static_cast<compute_t<T>>(from[i]) * scale : compute_t<T>{0}, accumulate);
          }
        }
      });
}

}  // namespace

void pool_cpu(const Tensor& x, const Tensor& mask, bool mean, const Tensor& output) {
  with_float_type(x.dtype(), "pool", [&]<class T>(std::type_identity<T>) {
    if (mean) return mean_of_rows<T>(x, values_of(mask), output);
    const std::int64_t n = x.extent(1), d = x.extent(2);
    for (std::int64_t b = 0; b < x.extent(0); ++b) std::copy_n(x.data<T>() + b * n * d, d, output.data<T>() + b * d);
  });
}

void pool_backward_cpu(const Tensor& d_output, const Tensor& mask, bool mean, const Tensor& d_x, bool accumulate) {
  with_float_type(d_output.dtype(), "pool",
                  [&]<class T>(std::type_identity<T>) { spread<T>(d_output, values_of(mask), mean, d_x, accumulate); });
}

void pair_features_cpu(const Tensor& x, const Tensor& output) {
  with_float_type(x.dtype(), "pair_features", [&]<class T>(std::type_identity<T>) {
    const std::int64_t d = x.extent(1);
    for (std::int64_t pair = 0; pair < output.extent(0); ++pair) {
      const T *u = x.data<T>() + 2 * pair * d, *v = u + d;
      T* y = output.data<T>() + 4 * pair * d;
      for (std::int64_t i = 0; i < d; ++i) {
        const auto a = static_cast<compute_t<T>>(u[i]), b = static_cast<compute_t<T>>(v[i]);
        y[i] = u[i];
        y[d + i] = v[i];
        y[2 * d + i] = static_cast<T>(a * b);
        y[3 * d + i] = static_cast<T>(a - b);
      }
    }
  });
}

void pair_features_backward_cpu(const Tensor& x, const Tensor& d_output, const Tensor& d_x, bool accumulate) {
  with_float_type(x.dtype(), "pair_features", [&]<class T>(std::type_identity<T>) {
    const std::int64_t d = x.extent(1);
    for (std::int64_t pair = 0; pair < x.extent(0) / 2; ++pair) {
      const T *u = x.data<T>() + 2 * pair * d, *v = u + d, *dy = d_output.data<T>() + 4 * pair * d;
      T *du = d_x.data<T>() + 2 * pair * d, *dv = du + d;
      for (std::int64_t i = 0; i < d; ++i) {
        const auto at = [&](std::int64_t part) { return static_cast<compute_t<T>>(dy[part * d + i]); };
        write(du[i], at(0) + at(2) * static_cast<compute_t<T>>(v[i]) + at(3), accumulate);
        write(dv[i], at(1) + at(2) * static_cast<compute_t<T>>(u[i]) - at(3), accumulate);
      }
    }
  });
}

}  // namespace furlong::ops
