#include "evaluation/analyze/analyze_kernel.h"

#include <algorithm>
#include <cmath>

#include "evaluation/statistics.h"
#include "framework/core/parallel.h"
#include "framework/core/shape.h"
#include "framework/ops/attention/feature_maps/feature_map_cpu.h"

namespace furlong {
namespace {

constexpr std::int64_t most_queries = 32, most_keys = 64, most_heads = 8;

std::vector<std::int64_t> spread(std::int64_t n, std::int64_t most) {
  const std::int64_t count = std::min(n, most);
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < count; ++i) chosen.push_back((2 * i + 1) * n / (2 * count));
  return chosen;
}

/// Rows of one head's queries or keys, centered and scaled, and their features for one random projection.
struct Rows {
  std::int64_t count = 0, d = 0;
  std::vector<double> x;         // [count, d]
  std::vector<double> features;  // [count, m]: logarithms or values
  std::vector<double> row_log;   // [count]
  /// Keys: logarithms of their weights in every denominator, a·(k − b)/√d with centers a of queries and b of keys.
  std::vector<double> log_weight;  // [count]
};

std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }

double inner(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Returns the selected rows of x [1, n, d], minus `center` [d] and times factor^power [d]. Both can be undefined.
Rows rows_of(const Tensor& x, const std::vector<std::int64_t>& chosen, const Tensor& center, const Tensor& factor,
             double power) {
  Rows rows;
  rows.count = static_cast<std::int64_t>(chosen.size());
  rows.d = x.extent(2);
  const std::vector<double> all = x.to_vector<double>();
  const std::vector<double> shift =
      center.defined() ? center.to_vector<double>() : std::vector<double>(at(rows.d), 0.0);
  const std::vector<double> psi = factor.defined() ? factor.to_vector<double>() : std::vector<double>(at(rows.d), 1.0);
  for (const std::int64_t row : chosen) {
    for (std::int64_t i = 0; i < rows.d; ++i)
      rows.x.push_back((all[at(row * rows.d + i)] - shift[at(i)]) * std::pow(psi[at(i)], power));
  }
  return rows;
}

/// Returns Rows::log_weight of the selected keys k [1, n, d].
std::vector<double> log_weights(const Tensor& k, const std::vector<std::int64_t>& chosen, const Tensor& query_center,
                                const Tensor& key_center) {
  if (!query_center.defined()) return std::vector<double>(chosen.size(), 0.0);
  const Rows keys = rows_of(k, chosen, key_center, Tensor{}, 1);
  const std::vector<double> a = query_center.to_vector<double>();
  std::vector<double> found;
  for (std::int64_t j = 0; j < keys.count; ++j)
    found.push_back(inner(a.data(), keys.x.data() + j * keys.d, keys.d) / std::sqrt(static_cast<double>(keys.d)));
  return found;
}

/// The feature map of one head, with the tensors that it points to.
class HeadFeatures {
 public:
  HeadFeatures(const AttentionCandidate& candidate, std::int64_t d, std::int64_t m, double oprf_a)
      : functions_(ops::feature_map_functions_cpu<double>(candidate.map)) {
    tile_.d = d;
    tile_.m = m;
    tile_.ld_x = padded(d);
    tile_.ld_m = padded(m);
    tile_.scale = std::pow(static_cast<double>(d), -0.25);
    tile_.oprf_a = oprf_a;
    tile_.kernel_epsilon = candidate.map_options.kernel_epsilon;
    tile_.order = candidate.map_options.order;
  }

  /// Random projection [count, d].
  void set_directions(std::vector<double> random_projection) {
    random_projection_ = std::move(random_projection);
    tile_.n_projections = static_cast<std::int64_t>(random_projection_.size()) / tile_.d;
    tile_.ld_directions = padded(tile_.n_projections);
    transposed_.assign(at(tile_.d * tile_.ld_directions), 0.0);
    norms_.assign(at(tile_.n_projections), 0.0);
    for (std::int64_t f = 0; f < tile_.n_projections; ++f) {
      for (std::int64_t i = 0; i < tile_.d; ++i) {
        const double entry = random_projection_[at(f * tile_.d + i)];
        transposed_[at(i * tile_.ld_directions + f)] = entry;
        norms_[at(f)] += entry * entry;
      }
    }
    tile_.random_projection = random_projection_.data();
    tile_.directions_transposed = transposed_.data();
    tile_.direction_norms = norms_.data();
  }

  void fill(Rows& rows, bool keys) {
    std::vector<double> x(at(rows.count * tile_.ld_x)), features(at(rows.count * tile_.ld_m));
    for (std::int64_t r = 0; r < rows.count; ++r)
      std::copy_n(rows.x.begin() + r * rows.d, rows.d, x.begin() + r * tile_.ld_x);
    std::vector<double> scratch(at(rows.count * (tile_.ld_m + tile_.ld_x)));
    tile_.scratch = scratch.data();
    rows.row_log.assign(at(rows.count), 0.0);
    functions_.features(tile_, x.data(), rows.count, keys, features.data(), rows.row_log.data());
    rows.features.clear();
    for (std::int64_t r = 0; r < rows.count; ++r)
      rows.features.insert(rows.features.end(), features.begin() + r * tile_.ld_m,
                           features.begin() + r * tile_.ld_m + tile_.m);
  }

 private:
  ops::FeatureMapFunctions<double> functions_;
  ops::FeatureTile<double> tile_;
  std::vector<double> random_projection_, transposed_, norms_;
};

/// Returns exp(row − its maximum) for rows of logarithms, and the maxima.
std::pair<std::vector<double>, std::vector<double>> scaled_rows(const std::vector<double>& logarithms, std::int64_t m) {
  std::vector<double> values(logarithms.size()), tops;
  for (std::size_t begin = 0; begin < logarithms.size(); begin += at(m)) {
    tops.push_back(*std::max_element(logarithms.begin() + static_cast<std::ptrdiff_t>(begin),
                                     logarithms.begin() + static_cast<std::ptrdiff_t>(begin) + m));
    for (std::size_t f = begin; f < begin + at(m); ++f) values[f] = std::exp(logarithms[f] - tops.back());
  }
  return {values, tops};
}

/// Returns log Σ_f exp(a_f + b_f).
double log_sum_exp(const double* a, const double* b, std::int64_t m) {
  double top = -HUGE_VAL, sum = 0;
  for (std::int64_t f = 0; f < m; ++f) top = std::max(top, a[f] + b[f]);
  for (std::int64_t f = 0; f < m; ++f) sum += std::exp(a[f] + b[f] - top);
  return top + std::log(sum);
}

/// Returns estimate / kernel for all pairs, [queries, keys].
std::vector<double> ratios(const Rows& queries, const Rows& keys, bool logarithms, std::int64_t m) {
  std::pair<std::vector<double>, std::vector<double>> q, k;
  if (logarithms) q = scaled_rows(queries.features, m), k = scaled_rows(keys.features, m);
  const double scale = 1 / std::sqrt(static_cast<double>(queries.d));
  std::vector<double> found;
  for (std::int64_t i = 0; i < queries.count; ++i) {
    for (std::int64_t j = 0; j < keys.count; ++j) {
      const double exponent = queries.row_log[at(i)] + keys.row_log[at(j)] -
                              scale * inner(queries.x.data() + i * queries.d, keys.x.data() + j * keys.d, queries.d);
      if (!logarithms) {
        found.push_back(inner(queries.features.data() + i * m, keys.features.data() + j * m, m) * std::exp(exponent));
        continue;
      }
      const double product = inner(q.first.data() + i * m, k.first.data() + j * m, m);
      // The product of opposite rows with large norms underflows. Recompute the sum with the maximum of the pair.
      const double sum = product > 1e-30
                             ? std::log(product) + q.second[at(i)] + k.second[at(j)]
                             : log_sum_exp(queries.features.data() + i * m, keys.features.data() + j * m, m);
      found.push_back(std::exp(sum + exponent));
    }
  }
  return found;
}

/// Computes Σ|w| and √Σw² of w_f = φ_f(q) Σ_j c_j φ_f(k_j) over the keys visible to each query, with weights c of keys.
double effective_features(const Rows& queries, const Rows& keys, const std::vector<bool>& sees, bool logarithms,
                          std::int64_t m) {
  std::vector<double> key_features = keys.features, top(at(m), 0.0);
  if (logarithms) {
    top.assign(at(m), -HUGE_VAL);
    for (std::int64_t j = 0; j < keys.count; ++j)
      for (std::int64_t f = 0; f < m; ++f)
        top[at(f)] = std::max(top[at(f)], keys.features[at(j * m + f)] + keys.log_weight[at(j)]);
    for (std::int64_t j = 0; j < keys.count; ++j)
      for (std::int64_t f = 0; f < m; ++f)
        key_features[at(j * m + f)] = std::exp(keys.features[at(j * m + f)] + keys.log_weight[at(j)] - top[at(f)]);
  } else {
    std::vector<double> logs = keys.row_log;
    for (std::size_t j = 0; j < logs.size(); ++j) logs[j] += keys.log_weight[j];
    const double largest = *std::max_element(logs.begin(), logs.end());
    for (std::int64_t j = 0; j < keys.count; ++j)
      for (std::int64_t f = 0; f < m; ++f) key_features[at(j * m + f)] *= std::exp(logs[at(j)] - largest);
  }
  double sum = 0;
  std::int64_t counted = 0;
  std::vector<double> state(at(m));
  for (std::int64_t i = 0; i < queries.count; ++i) {
    std::fill(state.begin(), state.end(), 0.0);
    for (std::int64_t j = 0; j < keys.count; ++j) {
      if (!sees[at(i * keys.count + j)]) continue;
      for (std::int64_t f = 0; f < m; ++f) state[at(f)] += key_features[at(j * m + f)];
    }
    const double* query = queries.features.data() + i * m;
    double shift = -HUGE_VAL, total = 0, squares = 0;
    for (std::int64_t f = 0; f < m && logarithms; ++f) shift = std::max(shift, query[f] + top[at(f)]);
    for (std::int64_t f = 0; f < m; ++f) {
      const double weight = std::abs(state[at(f)] * (logarithms ? std::exp(query[f] + top[at(f)] - shift) : query[f]));
      total += weight;
      squares += weight * weight;
    }
    if (squares == 0) continue;
    sum += total * total / squares;
    ++counted;
  }
  return counted > 0 ? sum / static_cast<double>(counted) : 0;
}

/// Accumulates statistics of the same rows over draws.
struct Sums {
  std::vector<double> ratio, square;  // of ratio − 1, [pairs]
  double error = 0, largest_error = 0, effective = 0;
};

KernelStatistics of_head(const AttentionData& data, std::int64_t head, const AttentionCandidate& candidate,
                         std::int64_t m, std::int64_t draws, std::uint64_t seed) {
  const AttentionSample sample = data.samples()[0].first_sequence().of_head(head);
  const ops::FeatureMapInfo& info = ops::feature_map_info(candidate.map);
  const bool logarithms = info.form == ops::FeatureForm::logarithms;
  const ops::LinearAttentionConstants constants = data.constants(candidate);
  const auto own = [&](const Tensor& tensor) { return tensor.defined() ? tensor.narrow(0, head, 1) : Tensor{}; };
  const std::vector<std::int64_t> query_rows = spread(sample.n(), most_queries),
                                  key_rows = spread(sample.n_key(), most_keys);
  Rows queries = rows_of(sample.query, query_rows, own(constants.query_center), own(constants.scaling), 1);
  Rows keys = rows_of(sample.key, key_rows, own(constants.key_center), own(constants.scaling), -1);
  keys.log_weight = log_weights(sample.key, key_rows, own(constants.query_center), own(constants.key_center));
  const Visibility visible(sample, 0);
  std::vector<bool> sees;
  for (const std::int64_t i : query_rows)
    for (const std::int64_t j : key_rows) sees.push_back(visible(i, j));

  HeadFeatures features(candidate, sample.d(), m,
                        constants.oprf_a.defined() ? own(constants.oprf_a).to_vector<double>()[0] : 0);
  Sums sums{std::vector<double>(sees.size()), std::vector<double>(sees.size())};
  const std::int64_t repeats = candidate.is_random() ? draws : 1;
  const std::int64_t pairs = std::count(sees.begin(), sees.end(), true);
  for (std::int64_t draw = 0; draw < repeats; ++draw) {
    if (candidate.is_random()) {
      const RandomKey key{seed, static_cast<std::uint32_t>(draw),
                          random_stream("analyze.kernel." + std::to_string(head))};
      const std::vector<float> drawn =
          layers::draw_random_projection(candidate.kind, ops::projection_count(candidate.map, m), sample.d(), key);
      features.set_directions({drawn.begin(), drawn.end()});
    }
    features.fill(queries, false);
    features.fill(keys, true);
    sums.effective += effective_features(queries, keys, sees, logarithms, m) / static_cast<double>(repeats);
    if (!info.estimates_softmax) continue;
    const std::vector<double> of_draw = ratios(queries, keys, logarithms, m);
    for (std::size_t pair = 0; pair < of_draw.size(); ++pair) {
      if (!sees[pair]) continue;
      const double error = of_draw[pair] - 1;
      sums.ratio[pair] += error;
      sums.square[pair] += error * error;
      sums.error += error * error;
      sums.largest_error = std::max(sums.largest_error, error * error);
    }
  }
  KernelStatistics found;
  found.effective_features = sums.effective;
  if (!info.estimates_softmax || pairs == 0) return found;
  const double count = static_cast<double>(repeats);
  double variance = 0;
  for (std::size_t pair = 0; pair < sees.size() && repeats > 1; ++pair)
    variance += std::max(0.0, sums.square[pair] - sums.ratio[pair] * sums.ratio[pair] / count) / (count - 1);
  const double error = std::sqrt(sums.error / count / static_cast<double>(pairs));
  found.relative_error = std::isfinite(error) ? error : HUGE_VAL;
  found.relative_variance = std::isfinite(variance) ? variance / static_cast<double>(pairs) : HUGE_VAL;
  // Of few terms each has more.
  const double largest_share = std::max(0.02, 20 / (count * static_cast<double>(pairs)));
  found.is_resolved = repeats == 1 || sums.largest_error <= largest_share * sums.error;
  return found;
}

}  // namespace

KernelStatistics kernel_statistics(const AttentionData& data, const AttentionCandidate& candidate, std::int64_t m,
                                   std::int64_t draws, std::uint64_t seed) {
  require(draws >= 2, "kernel_statistics: a variance over {} draws", draws);
  const std::vector<std::int64_t> heads = spread(data.n_heads(), most_heads);
  std::vector<KernelStatistics> by_head(heads.size());
  parallel_tasks(static_cast<std::int64_t>(heads.size()),
                 [&](std::int64_t i) { by_head[at(i)] = of_head(data, heads[at(i)], candidate, m, draws, seed); });
  std::vector<double> variances, errors, effective;
  bool is_resolved = true;
  for (const KernelStatistics& one : by_head) {
    effective.push_back(one.effective_features);
    if (!one.relative_error) continue;
    variances.push_back(*one.relative_variance);
    errors.push_back(*one.relative_error);
    is_resolved = is_resolved && one.is_resolved;
  }
  KernelStatistics found;
  found.is_resolved = is_resolved;
  found.effective_features = median(effective);
  if (errors.empty()) return found;
  found.relative_variance = median(variances);
  found.relative_error = median(errors);
  return found;
}

}  // namespace furlong
