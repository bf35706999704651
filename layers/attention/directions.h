#pragma once
// Random directions ω of feature maps.
#include <string>
#include <vector>

#include "framework/core/random.h"

namespace furlong::layers {

enum class DirectionsKind : std::uint8_t {
  iid,        ///< rows independent N(0, I_d)
  orthogonal  ///< blocks of d rows from a Haar-distributed orthogonal matrix, each scaled by an independent χ_d norm (Choromanski et al.
              ///< 2021, section 3)
};
/// Names as in YAML; tests loop over them.
const std::vector<std::pair<DirectionsKind, const char*>>& directions_kinds();
/// Throws UserError naming the known ones.
DirectionsKind directions_kind(const std::string& name);

/// m rows of width d, row-major, drawn in double on the host from `key` and rounded to bfloat16: ω is *defined* as that rounding, so that a
/// model is the same whatever its storage type, and products with 16-bit inputs are exact in float32 sums.
std::vector<float> draw_directions(DirectionsKind kind, std::int64_t m, std::int64_t d, const RandomKey& key);

}  // namespace furlong::layers
