#include "framework/ops/attention/feature_maps/feature_map.h"

#include <cmath>

#include "framework/core/error.h"

#define FURLONG_LANE_FUNCTION inline

namespace furlong::ops {
namespace {

// Neither FURLONG_MAPS_ON_CPU nor FURLONG_MAPS_ON_GPU is defined: the maps declare properties only.
#include "framework/ops/attention/feature_maps/feature_map-inl.h"

constexpr bool is_projected(FusedForm fused) {
  using enum FusedForm;
  return fused == projection || fused == stretched_projection || fused == rectified_projection;
}
constexpr FeatureForm form_of(FusedForm fused) {
  using enum FusedForm;
  return fused == rectified_projection || fused == relu ? FeatureForm::values : FeatureForm::logarithms;
}

template <FeatureMap map>
FeatureMapInfo info_of(const char* name) {
  using M = Map<map>;
  constexpr FeatureMapProperties properties = M::properties;
  constexpr bool projects = M::kind == MapKind::projections;
  static_assert(projects == (properties.features_per_projection > 0));
  static_assert(properties.fused == FusedForm::none ||
                    (is_projected(properties.fused) == projects && form_of(properties.fused) == properties.form),
                "a map's fused form must match its kind and feature form");
  FeatureMapInfo info{properties, map, name, projects, nullptr};
  if constexpr (requires { &M::count; }) info.count = &M::count;
  return info;
}

}  // namespace

const std::vector<FeatureMapInfo>& feature_maps() {
  static const std::vector<FeatureMapInfo> maps{
#define FURLONG_FEATURE_MAP_INFO(name) info_of<FeatureMap::name>(#name),
      FURLONG_FEATURE_MAPS(FURLONG_FEATURE_MAP_INFO)
#undef FURLONG_FEATURE_MAP_INFO
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
  const auto row = static_cast<std::size_t>(map);
  require(row < feature_maps().size(), "feature map {} is not in the list", row);
  return feature_maps()[row];
}

std::string polynomial_orders() {
  std::string text;
  for (const FeatureMapInfo& info : feature_maps()) {
    if (info.highest_order > 0)
      text += fmt::format("{}1 to {} for {}", text.empty() ? "" : ", ", info.highest_order, info.name);
  }
  return text;
}

bool can_cancel(FeatureMap map) { return feature_map_info(map).can_cancel; }

bool can_be_negative(FeatureMap map, const FeatureMapOptions& options) {
  const FeatureMapInfo& info = feature_map_info(map);
  return info.can_be_negative && (info.highest_order == 0 || options.order % 2 == 1);
}

namespace {

/// Number of monomials of degree 0 to `order` in d variables: C(d + order, order). A double, because an integer may
/// overflow.
double monomial_count(std::int64_t d, std::int64_t order) {
  double count = 1;
  for (std::int64_t r = 1; r <= order; ++r) count = count * static_cast<double>(d + r) / static_cast<double>(r);
  return count;
}

std::int64_t polynomial_count(const FeatureMapInfo& info, const FeatureMapOptions& options, std::int64_t d) {
  if (options.order < 1 || options.order > info.highest_order)
    throw UserError("feature map {} has orders 1 to {}, found {}", info.name, info.highest_order, options.order);
  const double count = monomial_count(d, options.order);
  if (count <= static_cast<double>(options.max_features)) return static_cast<std::int64_t>(count);
  std::string hint = "narrower heads have fewer";
  for (std::int64_t lower = options.order - 1; lower >= 1; --lower) {
    if (monomial_count(d, lower) > static_cast<double>(options.max_features)) continue;
    hint = fmt::format("order {} has {:.0f}", lower, monomial_count(d, lower));
    break;
  }
  throw UserError(
      "feature map {} of order {} has {:.0f} features for heads of width {}, more than max_features = {}; {}",
      info.name, options.order, count, d, options.max_features, hint);
}

}  // namespace

std::int64_t feature_count(FeatureMap map, const FeatureMapOptions& options, std::int64_t d,
                           std::int64_t n_projections) {
  const FeatureMapInfo& info = feature_map_info(map);
  if (info.needs_random_projection) return n_projections * info.features_per_projection;
  return info.count ? info.count(d) : polynomial_count(info, options, d);
}

std::int64_t projection_count(FeatureMap map, std::int64_t m) {
  const FeatureMapInfo& info = feature_map_info(map);
  if (!info.needs_random_projection) return 0;
  if (m < 1 || m % info.features_per_projection != 0)
    throw UserError(
        "feature map {} has {} feature{} per random projection: the number of features must be a positive multiple of "
        "it, found {}",
        info.name, info.features_per_projection, info.features_per_projection == 1 ? "" : "s", m);
  return m / info.features_per_projection;
}

}  // namespace furlong::ops
