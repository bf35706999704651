#pragma once
// The feature maps φ of linear attention: names, properties and numbers of features. Each map is defined by its file in
// maps/; feature_map_list.h lists them; docs/internals/numerics.md has definitions and sources.
#include <cstdint>
#include <string>
#include <vector>

#include "framework/core/tensor.h"
#include "framework/ops/attention/feature_maps/feature_map_list.h"

namespace furlong::ops {

enum class FeatureMap : std::uint8_t {
#define FURLONG_FEATURE_MAP_ENUMERATOR(name) name,
  FURLONG_FEATURE_MAPS(FURLONG_FEATURE_MAP_ENUMERATOR)
#undef FURLONG_FEATURE_MAP_ENUMERATOR
};

/// How a map represents its features.
enum class FeatureForm : std::uint8_t {
  logarithms,  ///< positive features as their logarithms [rows, m]: no limit on the range of magnitudes
  values       ///< plain values [rows, m], of either sign, times exp of one logarithm per row
};

/// Feature types that the fused CUDA kernels of linear attention compute (linear/cuda/fused_tile.cuh). u is ω·x or an
/// entry of the row.
enum class FusedForm : std::uint8_t {
  none,                  ///< not supported by the fused kernels: the composed kernels compute this map
  projection,            ///< logarithm: ω·x', keys - |k'|²/2
  stretched_projection,  ///< logarithm: A|ω|² + √(1-4A) ω·x', keys - |k'|²/2
  rectified_projection,  ///< value: max(ω·x', 0) + kernel_epsilon
  entry,                 ///< logarithm: u
  softmax,               ///< logarithms: log softmax of the row, then of the negative row; m = 2d
  elu1,                  ///< logarithm: u where u <= 0, log(1 + u) above
  relu                   ///< value: max(u, 0)
};

/// Properties that a map's file declares, besides its arithmetic.
struct FeatureMapProperties {
  const char* summary;  ///< for the configuration reference
  FeatureForm form;
  int features_per_projection = 0;     ///< features per random projection; 0: the map has no random projections
  bool mean_over_projections = false;  ///< the kernel is the mean over random projections instead of features
  int highest_order = 0;               ///< of polynomials, which use FeatureMapOptions::order; 0: not a polynomial
  bool estimates_softmax = false;      ///< estimates exp(q·k/√d): centering and scaling q and k keep the expectation
  bool can_vanish = false;             ///< the denominator may be exactly zero for finite rows; never for logarithms
  /// Features have both signs, so a sum of weights can cancel down to rounding noise. Denominators are guarded.
  bool can_cancel = false;
  bool can_be_negative = false;  ///< single weights φ(q)·φ(k) can be negative; for polynomials only in odd orders
  bool uses_kernel_epsilon = false;
  bool needs_oprf_a = false;   ///< needs a constant A <= 0 for each head
  bool learns_inputs = false;  ///< the rows come from a learned matrix
  FusedForm fused = FusedForm::none;
};

struct FeatureMapInfo : FeatureMapProperties {
  FeatureMap map;
  const char* name;
  bool needs_random_projection;           ///< needs a random projection ω
  std::int64_t (*count)(std::int64_t d);  ///< features for heads of width d; null: the number depends on more than d
};
/// Returns one row per feature map. Names, checks, help texts and tests loop over this table.
const std::vector<FeatureMapInfo>& feature_maps();
/// Returns the row of the map `name`. Throws UserError, listing the known names, if there is none.
const FeatureMapInfo& feature_map_info(const std::string& name);
const FeatureMapInfo& feature_map_info(FeatureMap map);
/// Returns the names of the maps for which wanted(info) is true, in the order of the table.
template <class Wanted>
std::vector<std::string> feature_maps_where(const Wanted& wanted) {
  std::vector<std::string> names;
  for (const FeatureMapInfo& info : feature_maps())
    if (wanted(info)) names.emplace_back(info.name);
  return names;
}
/// Returns the orders of each polynomial for help texts: "1 to 3 for taylor, 1 to 4 for limit".
std::string polynomial_orders();

/// Parameters of a map's definition.
struct FeatureMapOptions {
  std::int64_t order = 2;            ///< taylor: 1 to 3; limit: 1 to 4
  double kernel_epsilon = 1e-3;      ///< favor_relu: added to every feature
  std::int64_t max_features = 4096;  ///< taylor, limit: more features are an error
  bool operator==(const FeatureMapOptions&) const = default;
};
/// Returns whether single weights φ(q)·φ(k) can be negative.
bool can_be_negative(FeatureMap map, const FeatureMapOptions& options);
/// Returns whether features have both signs, so that a sum of weights can cancel down to rounding noise. The
/// denominators of such maps are guarded.
bool can_cancel(FeatureMap map);
/// Returns the number of features m for heads of width d. `n_projections` is the number of random projections, ignored
/// for maps without them. Throws UserError if the map does not have options.order, or if taylor or limit would have
/// more than max_features; the message gives the number.
std::int64_t feature_count(FeatureMap map, const FeatureMapOptions& options, std::int64_t d,
                           std::int64_t n_projections);
/// Returns the number of random projections for m features, the inverse of feature_count(). Throws UserError if m is
/// not a positive multiple of features_per_projection.
std::int64_t projection_count(FeatureMap map, std::int64_t m);

}  // namespace furlong::ops
