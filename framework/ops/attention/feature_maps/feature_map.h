#pragma once
// The feature maps φ of linear attention: names, forms, and how many features each has. The arithmetic of a map is in
// NAME_cpu.cpp beside this file; docs/numerics.md has their definitions and sources.
#include <cstdint>
#include <string>
#include <vector>

#include "framework/core/tensor.h"

namespace furlong::ops {

enum class FeatureMap : std::uint8_t {
  elu1,              ///< elu(x) + 1, element by element; m = d (Katharopoulos et al. 2020, equation 7)
  relu,              ///< max(x, 0); m = d
  exp,               ///< exp(x); m = d
  favor_positive,    ///< exp(ω·x' - |x'|²/2), x' = x d^(-1/4) (Choromanski et al. 2021, lemma 1)
  favor_hyperbolic,  ///< the same for ω and -ω: two features a direction (ibid., lemma 1)
  favor_trig,        ///< exp(|x'|²/2) (cos ω·x', sin ω·x'): two features a direction; signed (Rahimi & Recht 2007)
  favor_relu,        ///< max(ω·x', 0) + kernel_epsilon (Choromanski et al. 2021, generalised attention)
  taylor,            ///< Σ_{r ≤ order} (q'·k')^r / r!, symmetric monomials stored once; signed when order is odd
  limit,             ///< (1 + q'·k' / order)^order, likewise; signed when order is odd
  cosine,            ///< 1 + q̂·k̂ of normalised rows: m = d + 1; the kernel is never negative
  oprf,  ///< optimal positive random features (Likhosherstov et al. 2022, FAVOR++): favor_positive with a constant A a
         ///< head
  hedgehog  ///< softmax over (x, -x): m = 2d, of rows that a learned matrix made (Zhang et al. 2024)
};

/// How a map hands over its features.
enum class FeatureForm : std::uint8_t {
  logarithms,  ///< positive features as logarithms [rows, m]: any range of magnitudes
  values       ///< plain numbers [rows, m], of either sign, times exp of one logarithm a row
};

struct FeatureMapInfo {
  FeatureMap map;
  const char* name;
  FeatureForm form;
  bool needs_directions;     ///< random ω
  int features_a_direction;  ///< 0 without directions
  bool estimates_softmax;    ///< of exp(q·k/√d), so that centring and scaling of q and k change no expectation
  bool can_vanish;           ///< the denominator may be zero (relu)
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
