#pragma once
// Random directions ω of feature maps.
#include <vector>

#include "framework/core/enum_names.h"
#include "framework/core/random.h"

namespace furlong::layers {

enum class DirectionsKind : std::uint8_t {
  iid,         ///< rows independent N(0, I_d)
  orthogonal,  ///< blocks of d rows from a Haar-distributed orthogonal matrix, each scaled by an independent χ_d norm
               ///< (Choromanski et al. 2021, section 3)
  orthogonal_fixed_norm,  ///< the same blocks, every norm √d: less variance, a small bias
  norm_stratified,        ///< the same blocks; the norms are the quantiles i/(m+1) of χ_d, i = 1..m, in a random order
  structured  ///< blocks of p rows of √p H D₃ H D₂ H D₁, cut to the first d columns: H the orthonormal Walsh-Hadamard
              ///< matrix of size p, the least power of two that is at least d, and D random signs (Yu et al. 2016,
              ///< "Orthogonal Random Features"). Mean square norm d; where d is a power of two, every norm is √d and
              ///< the rows of a block are orthogonal.
};
constexpr auto names_of(DirectionsKind) {
  return std::array{"iid", "orthogonal", "orthogonal_fixed_norm", "norm_stratified", "structured"};
}

/// m rows of width d, row-major, drawn in double on the host from `key` and rounded to bfloat16: ω is *defined* as that
/// rounding, so that a model is the same whatever its storage type, and products with 16-bit inputs are exact in
/// float32 sums. m need not be a multiple of d: the last block is cut.
std::vector<float> draw_directions(DirectionsKind kind, std::int64_t m, std::int64_t d, const RandomKey& key);

/// The r with P(χ_d <= r) = probability, in (0, 1): to a relative 1e-12 up to 0.9999, beyond which the probability
/// itself tells less.
double chi_quantile(double probability, std::int64_t d);

}  // namespace furlong::layers
