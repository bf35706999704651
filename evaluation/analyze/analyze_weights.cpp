// Total variation: one-hot values make an attention output its weights.
#include <algorithm>
#include <cmath>

#include "evaluation/analyze/analyze_attention.h"
#include "framework/core/parallel.h"
#include "framework/core/shape.h"
#include "framework/primitives/dispatch.h"

namespace furlong {
namespace {

/// Returns up to 64 of n queries, evenly spaced.
std::vector<std::int64_t> spread_queries(std::int64_t n) {
  const std::int64_t count = std::min<std::int64_t>(n, 64);
  std::vector<std::int64_t> queries;
  for (std::int64_t i = 0; i < count; ++i) queries.push_back((2 * i + 1) * n / (2 * count));
  return queries;
}

/// Returns softmax over the keys that are visible to one query; zeros for all others.
std::vector<double> softmax_row(const double* query, const double* keys, std::int64_t stride, std::int64_t n_key,
                                std::int64_t d, const std::vector<bool>& visible) {
  std::vector<double> weights(at(n_key), -HUGE_VAL);
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (std::int64_t j = 0; j < n_key; ++j) {
    if (!visible[at(j)]) continue;
    double product = 0;
    for (std::int64_t i = 0; i < d; ++i) product += query[i] * keys[j * stride + i];
    weights[at(j)] = product * scale;
  }
  const double top = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - top);
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// Returns one-hot values [1, n_key, n_kv_heads·width]: in every head, row start + c has a one in column c.
Tensor one_hot(const AttentionSample& sample, DType dtype, std::int64_t start, std::int64_t width) {
  Tensor values;
  ops::with_float_type(dtype, "analyze", [&](auto type) {
    using T = typename decltype(type)::type;
    std::vector<T> rows(at(sample.n_key() * sample.n_kv_heads * width), T(0.0f));
    for (std::int64_t j = start; j < std::min(start + width, sample.n_key()); ++j) {
      for (std::int64_t head = 0; head < sample.n_kv_heads; ++head)
        rows[at((j * sample.n_kv_heads + head) * width + j - start)] = T(1.0f);
    }
    values = Tensor::from(rows, {1, sample.n_key(), sample.n_kv_heads * width}, sample.query.device());
  });
  return values;
}

/// Returns the weights [head][query][key] of the sampled queries.
std::vector<double> read_weights(const AttentionSample& sample, const std::vector<std::int64_t>& queries,
                                 const std::function<Tensor(const Tensor&)>& attend, DType dtype, std::int64_t width) {
  const std::int64_t heads = sample.n_heads, n_key = sample.n_key(), count = static_cast<std::int64_t>(queries.size());
  std::vector<double> weights(at(heads * count * n_key));
  for (std::int64_t start = 0; start < n_key; start += width) {
    const std::vector<double> output = as_float64(attend(one_hot(sample, dtype, start, width))).to_vector<double>();
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t q = 0; q < count; ++q) {
        const double* row = output.data() + (queries[at(q)] * heads + head) * width;
        std::copy(row, row + std::min(width, n_key - start), weights.begin() + (head * count + q) * n_key + start);
      }
    }
  }
  return weights;
}

}  // namespace

TotalVariation total_variation(const AttentionSample& whole, const std::function<Tensor(const Tensor& value)>& attend,
                               DType dtype, std::int64_t width) {
  const AttentionSample sample = whole.first_sequence();
  const std::int64_t heads = sample.n_heads, group = heads / sample.n_kv_heads, n_key = sample.n_key(), d = sample.d();
  const Visibility is_visible(sample, 0);
  std::vector<std::int64_t> queries = spread_queries(sample.n());
  std::vector<std::vector<bool>> visible;
  std::erase_if(queries, [&](std::int64_t query) {
    std::vector<bool> keys(at(n_key));
    for (std::int64_t j = 0; j < n_key; ++j) keys[at(j)] = is_visible(query, j);
    if (std::find(keys.begin(), keys.end(), true) == keys.end()) return true;
    visible.push_back(std::move(keys));
    return false;
  });
  const std::vector<double> weights = read_weights(sample, queries, attend, dtype, width);
  const std::vector<double> query = sample.query.to_vector<double>(), key = sample.key.to_vector<double>();
  const std::int64_t count = static_cast<std::int64_t>(queries.size());
  TotalVariation found{std::vector<double>(at(heads)), std::vector<double>(at(heads))};
  parallel_tasks(heads, [&](std::int64_t head) {
    for (std::int64_t q = 0; q < count; ++q) {
      const std::vector<bool>& keys = visible[at(q)];
      const double* row = weights.data() + (head * count + q) * n_key;
      const std::vector<double> exact =
          softmax_row(query.data() + (queries[at(q)] * heads + head) * d, key.data() + head / group * d,
                      sample.n_kv_heads * d, n_key, d, keys);
      const double n_visible = static_cast<double>(std::count(keys.begin(), keys.end(), true));
      double to_softmax = 0, to_uniform = 0;
      for (std::int64_t j = 0; j < n_key; ++j) {
        to_softmax += std::abs(row[j] - exact[at(j)]);
        to_uniform += std::abs(row[j] - (keys[at(j)] ? 1 / n_visible : 0));
      }
      found.to_softmax[at(head)] += to_softmax / 2 / static_cast<double>(count);
      found.to_uniform[at(head)] += to_uniform / 2 / static_cast<double>(count);
    }
  });
  return found;
}

}  // namespace furlong
