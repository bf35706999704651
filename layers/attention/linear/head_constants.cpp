#include "layers/attention/linear/head_constants.h"

#include <algorithm>
#include <cmath>

#include "framework/core/tensor_values.h"
#include "framework/ops/attention/statistics/head_statistics.h"

namespace furlong::layers {
namespace {

constexpr double largest_scaling = 64;

/// Returns E x², or the variance if `centering`; rounding must not make it negative.
double second_moment(double square, double mean, bool centering) {
  return centering ? std::max(square - mean * mean, 0.0) : square;
}

/// Reads one row of the statistics: tokens, Σ q, Σ k, Σ q², Σ k². All moments are zero without tokens.
HeadMoments moments_of(const double* row, std::int64_t d) {
  const double tokens = row[0];
  const auto means = [&](std::int64_t part) {
    std::vector<double> result(static_cast<std::size_t>(d));
    for (std::int64_t i = 0; i < d && tokens > 0; ++i)
      result[static_cast<std::size_t>(i)] = row[1 + part * d + i] / tokens;
    return result;
  };
  return {means(0), means(1), means(2), means(3)};
}

void check_map(const AttentionConfig& config) {
  const ops::FeatureMapInfo& info = ops::feature_map_info(config.feature_map);
  if (info.estimates_softmax) return;
  if (!config.centering && config.scaling == Scaling::none) return;
  throw UserError(
      "model.attention.{} is exact only for feature maps that estimate softmax's exp(q·k/√d), and would change the "
      "meaning of {}; remove it, or use such a map (favor_positive)",
      config.centering ? "centering" : "scaling", info.name);
}

}  // namespace

std::vector<double> saderf_scaling(const HeadMoments& moments, bool centering) {
  std::vector<double> scaling(moments.query_mean.size(), 1.0);
  for (std::size_t i = 0; i < scaling.size(); ++i) {
    const double query = second_moment(moments.query_square[i], moments.query_mean[i], centering);
    const double key = second_moment(moments.key_square[i], moments.key_mean[i], centering);
    if (query > 0 && key > 0)
      scaling[i] = std::clamp(std::pow(key / query, 0.25), 1 / largest_scaling, largest_scaling);
  }
  return scaling;
}

double oprf_constant(const HeadMoments& moments, bool centering, const std::vector<double>* scaling) {
  const std::size_t d = moments.query_mean.size();
  double sum = 0;
  for (std::size_t i = 0; i < d; ++i) {
    const double psi = scaling ? (*scaling)[i] : 1.0;
    sum += second_moment(moments.query_square[i], moments.query_mean[i], centering) * psi * psi +
           second_moment(moments.key_square[i], moments.key_mean[i], centering) / (psi * psi);
    if (!centering) sum += 2 * moments.query_mean[i] * moments.key_mean[i];
  }
  const double width = static_cast<double>(d), phi = sum / std::sqrt(width) / width;
  return (1 - 2 * phi - std::sqrt((2 * phi + 1) * (2 * phi + 1) + 8 * phi)) / 16;
}

HeadConstants::HeadConstants(ParameterStore& store, const std::string& name, const AttentionConfig& config)
    : config_(config) {
  check_map(config);
  const bool scaled = config.scaling == Scaling::saderf, oprf = ops::feature_map_info(config.feature_map).needs_oprf_a;
  if (!config.centering && !scaled && !oprf) return;
  const Shape per_dimension{config.n_heads, config.d_head};
  statistics_ =
      &store.add_buffer(name + ".statistics", {config.n_heads, ops::head_statistics_width(config.d_head)}, true);
  if (config.centering) {
    query_center_ = &store.add_buffer(name + ".query_center", per_dimension);
    key_center_ = &store.add_buffer(name + ".key_center", per_dimension);
  }
  if (scaled) scaling_ = &store.add_buffer(name + ".scaling", per_dimension);
  if (oprf) oprf_a_ = &store.add_buffer(name + ".oprf_a", {config.n_heads});
}

void HeadConstants::observe(const ForwardContext& context, const Tensor& query, const Tensor& key) const {
  // Skips the first run of a recomputed segment: backward runs it again.
  if (!statistics_ || !context.training || context.tape.will_rerun()) return;
  ops::add_head_statistics(context.stream(), query, key, context.attention_mask.keys, config_.n_heads,
                           config_.n_kv_heads, statistics_->master());
}

void HeadConstants::update() {
  if (!statistics_ || statistics_->master().device().is_shape_only()) return;
  const std::int64_t d = config_.d_head, width = ops::head_statistics_width(d);
  std::vector<double> statistics = host_values(statistics_->master()), query_center, key_center, scaling, oprf_a;
  for (std::int64_t head = 0; head < config_.n_heads; ++head) {
    const HeadMoments moments = moments_of(statistics.data() + head * width, d);
    const std::vector<double> psi = saderf_scaling(moments, config_.centering);
    query_center.insert(query_center.end(), moments.query_mean.begin(), moments.query_mean.end());
    key_center.insert(key_center.end(), moments.key_mean.begin(), moments.key_mean.end());
    scaling.insert(scaling.end(), psi.begin(), psi.end());
    oprf_a.push_back(oprf_constant(moments, config_.centering, scaling_ ? &psi : nullptr));
  }
  if (query_center_) set_values(query_center_->master(), query_center);
  if (key_center_) set_values(key_center_->master(), key_center);
  if (scaling_) set_values(scaling_->master(), scaling);
  if (oprf_a_) set_values(oprf_a_->master(), oprf_a);
  for (double& value : statistics) value *= statistics_decay;
  set_values(statistics_->master(), statistics);
}

void HeadConstants::put_into(ops::LinearAttentionConstants& constants) const {
  if (query_center_) constants.query_center = query_center_->master();
  if (key_center_) constants.key_center = key_center_->master();
  if (scaling_) constants.scaling = scaling_->master();
  if (oprf_a_) constants.oprf_a = oprf_a_->master();
}

}  // namespace furlong::layers
