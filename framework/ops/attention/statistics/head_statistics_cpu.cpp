#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/statistics/head_statistics_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>

#include "framework/core/parallel.h"
#include "framework/core/tensor.h"
#include "framework/ops/attention/statistics/head_statistics_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
constexpr std::int64_t rows_per_partial = 64;  // summed in the compute type before they are added in double

template <class Compute>
void flush(Compute* partial, double* total, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) total[i] += static_cast<double>(partial[i]);
  std::fill_n(partial, width, Compute{0});
}

/// Sums x and x² of one head of x [batch, n, heads, d] into total [2 d].
template <class T>
void sum_head(const Tensor& x, const std::int32_t* kept, std::int64_t head, compute_t<T>* partial, double* total) {
  using Compute = compute_t<T>;
  const std::int64_t batch = x.extent(0), n = x.extent(1), d = x.extent(3);
  std::fill_n(partial, 2 * d, Compute{0});
  std::fill_n(total, 2 * d, 0.0);
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < n; ++t) {
      if (kept && kept[b * n + t] == 0) continue;
      const T* row = x.data<T>() + b * x.strides()[0] + t * x.strides()[1] + head * x.strides()[2];
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t count) {
        const auto value = load_n(row + i, count);
        store_n<Compute>(hn::Add(load_n<Compute>(partial + i, count), value), partial + i, count);
        store_n<Compute>(hn::MulAdd(value, value, load_n<Compute>(partial + d + i, count)), partial + d + i, count);
      });
      if (++rows % rows_per_partial == 0) flush(partial, total, 2 * d);
    }
  }
  flush(partial, total, 2 * d);
}

void SumHeads(const Tensor& query, const Tensor& key, const Tensor& kept, const Tensor& partial, const Tensor& total) {
  const std::int64_t heads = query.extent(2), width = total.extent(1);
  const std::int32_t* mask = kept.defined() ? kept.data<std::int32_t>() : nullptr;
  with_float_type(query.dtype(), "head_statistics", [&]<class T>(std::type_identity<T>) {
    parallel_tasks(heads + key.extent(2), [&](std::int64_t task) {
      const bool is_key = task >= heads;
      sum_head<T>(is_key ? key : query, mask, is_key ? task - heads : task, partial.data<compute_t<T>>() + task * width,
                  total.data<double>() + task * width);
    });
  });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(SumHeads);

namespace {

template <class T>
void add_totals(const Tensor& total, std::int64_t tokens, std::int64_t group, const Tensor& statistics) {
  const std::int64_t heads = statistics.extent(0), d = total.extent(1) / 2;
  for (std::int64_t head = 0; head < heads; ++head) {
    const double* query = total.data<double>() + head * 2 * d;
    const double* key = total.data<double>() + (heads + head / group) * 2 * d;
    const auto finite = [](double value) { return std::isfinite(value); };
    if (!std::all_of(query, query + 2 * d, finite) || !std::all_of(key, key + 2 * d, finite)) continue;
    T* row = statistics.data<T>() + head * statistics.extent(1);
    row[0] += static_cast<T>(tokens);
    for (std::int64_t i = 0; i < d; ++i) {
      row[1 + i] += static_cast<T>(query[i]);
      row[1 + d + i] += static_cast<T>(key[i]);
      row[1 + 2 * d + i] += static_cast<T>(query[d + i]);
      row[1 + 3 * d + i] += static_cast<T>(key[d + i]);
    }
  }
}

}  // namespace

void add_head_statistics_cpu(const Tensor& query, const Tensor& key, const Tensor& kept, const Tensor& partial,
                             const Tensor& total, const Tensor& statistics) {
  HWY_DYNAMIC_DISPATCH(SumHeads)(query, key, kept, partial, total);
  std::int64_t tokens = query.extent(0) * query.extent(1);
  if (kept.defined()) {
    const std::int32_t* mask = kept.data<std::int32_t>();
    tokens = std::count_if(mask, mask + tokens, [](std::int32_t keep) { return keep != 0; });
  }
  const std::int64_t group = query.extent(2) / key.extent(2);
  if (statistics.dtype() == DType::float64) {
    add_totals<double>(total, tokens, group, statistics);
  } else {
    add_totals<float>(total, tokens, group, statistics);
  }
}

}  // namespace furlong::ops
#endif
