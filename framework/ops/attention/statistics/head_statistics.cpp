#include "framework/ops/attention/statistics/head_statistics.h"

#include "framework/ops/attention/statistics/head_statistics_kernels.h"

namespace furlong::ops {

void add_head_statistics(const Stream& stream, const Tensor& query, const Tensor& key, const Tensor& kept,
                         std::int64_t n_heads, std::int64_t n_kv_heads, const Tensor& statistics) {
  const char* const op = "head_statistics";
  require(
      query.shape().rank() == 3 && key.shape().rank() == 3 && query.has_contiguous_rows() && key.has_contiguous_rows(),
      "{}: query is {} and key is {}, expected three dimensions with contiguous rows", op, query.shape().text(),
      key.shape().text());
  require(n_heads > 0 && n_kv_heads > 0 && n_heads % n_kv_heads == 0 && query.extent(2) % n_heads == 0,
          "{}: {} heads over {} key-value heads do not divide {} columns", op, n_heads, n_kv_heads, query.extent(2));
  const std::int64_t d = query.extent(2) / n_heads, batch = query.extent(0), n = query.extent(1);
  require(key.shape() == Shape({batch, n, n_kv_heads * d}) && key.dtype() == query.dtype(),
          "{}: key is {} {}, expected {} [{}, {}, {}]", op, name_of(key.dtype()), key.shape().text(),
          name_of(query.dtype()), batch, n, n_kv_heads * d);
  require(
      !kept.defined() || (kept.dtype() == DType::int32 && kept.is_contiguous() && kept.shape() == Shape({batch, n})),
      "{}: token mask is {}, expected int32 [{}, {}]", op, kept.shape().text(), batch, n);
  require(statistics.shape() == Shape({n_heads, head_statistics_width(d)}) && statistics.is_contiguous() &&
              (statistics.dtype() == DType::float32 || statistics.dtype() == DType::float64),
          "{}: statistics are {} {}, expected float32 or float64 [{}, {}]", op, name_of(statistics.dtype()),
          statistics.shape().text(), n_heads, head_statistics_width(d));
  if (stream.device.is_gpu())
    return add_head_statistics_gpu(stream, query.split_last(d), key.split_last(d), kept, statistics);
  const Tensor partial = Tensor::empty({n_heads + n_kv_heads, 2 * d}, accumulate_dtype(query.dtype()), stream.device);
  const Tensor total = Tensor::empty({n_heads + n_kv_heads, 2 * d}, DType::float64, stream.device);
  if (stream.device.is_cpu())
    add_head_statistics_cpu(query.split_last(d), key.split_last(d), kept, partial, total, statistics);
}

}  // namespace furlong::ops
