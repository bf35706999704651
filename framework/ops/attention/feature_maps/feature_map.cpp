#include "framework/ops/attention/feature_maps/feature_map.h"

#include "framework/core/error.h"

namespace furlong::ops {

const std::vector<FeatureMapInfo>& feature_maps() {
  using enum FeatureForm;
  // What can_vanish marks: sums that are exactly zero for some finite rows. favor_relu has its constant, logarithms
  // have no zero.
  static const std::vector<FeatureMapInfo> maps{
      // map, name, form, needs_directions, features_a_direction, estimates_softmax, can_vanish
      {FeatureMap::elu1, "elu1", logarithms, false, 0, false, false},
      {FeatureMap::relu, "relu", values, false, 0, false, true},
      {FeatureMap::exp, "exp", logarithms, false, 0, false, false},
      {FeatureMap::favor_positive, "favor_positive", logarithms, true, 1, true, false},
      {FeatureMap::favor_hyperbolic, "favor_hyperbolic", logarithms, true, 2, true, false},
      {FeatureMap::favor_trig, "favor_trig", values, true, 2, true, true},
      {FeatureMap::favor_relu, "favor_relu", values, true, 1, false, false},
      {FeatureMap::taylor, "taylor", values, false, 0, true, true},
      {FeatureMap::limit, "limit", values, false, 0, true, true},
      {FeatureMap::cosine, "cosine", values, false, 0, false, true},
      {FeatureMap::oprf, "oprf", logarithms, true, 1, true, false},
      {FeatureMap::hedgehog, "hedgehog", logarithms, false, 0, false, false},
  };
  return maps;
}

const FeatureMapInfo& feature_map_info(const std::string& name) {
  std::string known;
  for (const FeatureMapInfo& info : feature_maps()) {
    if (name == info.name) return info;
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  throw UserError("feature map '{}' is unknown; expected one of {}", name, known);
}

const FeatureMapInfo& feature_map_info(FeatureMap map) {
  for (const FeatureMapInfo& info : feature_maps()) {
    if (info.map == map) return info;
  }
  throw ContractError("a feature map without a row in the table");
}

bool can_cancel(FeatureMap map) {
  return feature_map_info(map).form == FeatureForm::values && map != FeatureMap::relu && map != FeatureMap::favor_relu;
}

bool can_be_negative(FeatureMap map, const FeatureMapOptions& options) {
  if (map == FeatureMap::taylor || map == FeatureMap::limit) return options.order % 2 == 1;
  return map == FeatureMap::favor_trig;
}

namespace {

/// Monomials of degree 0 to `order` in d variables: C(d + order, order), in double since it need not fit an integer.
double monomial_count(std::int64_t d, std::int64_t order) {
  double count = 1;
  for (std::int64_t r = 1; r <= order; ++r) count = count * static_cast<double>(d + r) / static_cast<double>(r);
  return count;
}

std::int64_t polynomial_count(const FeatureMapInfo& info, const FeatureMapOptions& options, std::int64_t d) {
  const std::int64_t highest = info.map == FeatureMap::taylor ? 3 : 4;
  if (options.order < 1 || options.order > highest)
    throw UserError("feature map {} has orders 1 to {}, found {}", info.name, highest, options.order);
  const double count = monomial_count(d, options.order);
  if (count <= static_cast<double>(options.most_features)) return static_cast<std::int64_t>(count);
  std::string hint = "narrower heads have fewer";
  for (std::int64_t lower = options.order - 1; lower >= 1; --lower) {
    if (monomial_count(d, lower) > static_cast<double>(options.most_features)) continue;
    hint = fmt::format("order {} has {:.0f}", lower, monomial_count(d, lower));
    break;
  }
  throw UserError(
      "feature map {} of order {} has {:.0f} features for heads of width {}, more than most_features = {}; {}",
      info.name, options.order, count, d, options.most_features, hint);
}

}  // namespace

std::int64_t feature_count(FeatureMap map, const FeatureMapOptions& options, std::int64_t d,
                           std::int64_t n_directions) {
  const FeatureMapInfo& info = feature_map_info(map);
  if (info.needs_directions) return n_directions * info.features_a_direction;
  switch (map) {
    case FeatureMap::taylor:
    case FeatureMap::limit:
      return polynomial_count(info, options, d);
    case FeatureMap::cosine:
      return d + 1;
    case FeatureMap::hedgehog:
      return 2 * d;
    default:
      return d;
  }
}

std::int64_t direction_count(FeatureMap map, std::int64_t m) {
  const FeatureMapInfo& info = feature_map_info(map);
  if (!info.needs_directions) return 0;
  if (m < 1 || m % info.features_a_direction != 0)
    throw UserError(
        "feature map {} has {} feature{} a direction, so that the number of features is a positive multiple of it; "
        "found {}",
        info.name, info.features_a_direction, info.features_a_direction == 1 ? "" : "s", m);
  return m / info.features_a_direction;
}

}  // namespace furlong::ops
