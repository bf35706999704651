#pragma once
// The feature maps φ of linear attention: names, properties, and how many features each has. A map is what its file in
// maps/ says; feature_map_list.h lists them; docs/numerics.md has their definitions and sources.
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

/// How a map hands over its features.
enum class FeatureForm : std::uint8_t {
  logarithms,  ///< positive features as logarithms [rows, m]: any range of magnitudes
  values       ///< plain numbers [rows, m], of either sign, times exp of one logarithm a row
};

/// What the fused kernels of linear attention on GPUs (linear/cuda/fused_tile.cuh) compute features as; u is ω·x or an
/// entry of the row.
enum class FusedForm : std::uint8_t {
  none,                  ///< the fused kernels do not compute this map: it takes the general form
  projection,            ///< logarithm: ω·x', keys - |k'|²/2
  stretched_projection,  ///< logarithm: A|ω|² + √(1-4A) ω·x', keys - |k'|²/2
  rectified_projection,  ///< value: max(ω·x', 0) + kernel_epsilon
  entry,                 ///< logarithm: u
  softmax,               ///< logarithms: log softmax of the row, then of the negative row; m = 2d
  elu1,                  ///< logarithm: u where u <= 0, log(1 + u) above
  relu                   ///< value: max(u, 0)
};

/// What a map's file says of it, besides its arithmetic.
struct FeatureMapProperties {
  const char* summary;  ///< for the reference of settings
  FeatureForm form;
  int features_a_direction = 0;       ///< of random projections; 0 without them
  bool mean_over_directions = false;  ///< the kernel is the mean over random projections, not over features
  int highest_order = 0;              ///< of polynomials, which have FeatureMapOptions::order
  bool estimates_softmax = false;  ///< of exp(q·k/√d), so that centring and scaling of q and k change no expectation
  bool can_vanish = false;         ///< the denominator may be exactly zero for finite rows; logarithms have no zero
  bool can_cancel = false;         ///< features have both signs, so that a sum of weights can cancel down to rounding
                                   ///< noise: denominators are guarded
  bool can_be_negative = false;    ///< single weights φ(q)·φ(k) can; those of polynomials only in odd orders
  bool uses_kernel_epsilon = false;
  bool needs_oprf_a = false;   ///< a constant A <= 0 of each head
  bool learns_inputs = false;  ///< rows come from a learned matrix
  FusedForm fused = FusedForm::none;
};

struct FeatureMapInfo : FeatureMapProperties {
  FeatureMap map;
  const char* name;
  bool needs_directions;                  ///< random ω
  std::int64_t (*count)(std::int64_t d);  ///< features of heads of width d; null: they depend on more
};
/// One row for each feature map: what names, checks, help texts and tests loop over.
const std::vector<FeatureMapInfo>& feature_maps();
/// Throws UserError naming the known ones.
const FeatureMapInfo& feature_map_info(const std::string& name);
const FeatureMapInfo& feature_map_info(FeatureMap map);

/// Numbers that belong to a map's definition.
struct FeatureMapOptions {
  std::int64_t order = 2;             ///< taylor: 1 to 3; limit: 1 to 4
  double kernel_epsilon = 1e-3;       ///< favor_relu: added to every feature
  std::int64_t most_features = 4096;  ///< taylor and limit are refused above it
  bool operator==(const FeatureMapOptions&) const = default;
};
/// Whether single weights φ(q)·φ(k) can be negative.
bool can_be_negative(FeatureMap map, const FeatureMapOptions& options);
/// Whether features have both signs, so that a sum of weights can cancel down to rounding noise: denominators of such
/// maps are guarded.
bool can_cancel(FeatureMap map);
/// m for heads of width d and `n_directions` directions (ignored where the map takes none). Throws UserError, with the
/// number, where taylor or limit would have more than most_features, or for an order that the map does not have.
std::int64_t feature_count(FeatureMap map, const FeatureMapOptions& options, std::int64_t d, std::int64_t n_directions);
/// The directions that m features need: the inverse of the above. Throws UserError when m is not a multiple of
/// features_a_direction.
std::int64_t direction_count(FeatureMap map, std::int64_t m);

}  // namespace furlong::ops
