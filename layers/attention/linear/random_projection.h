#pragma once
// Random projection matrices ω of feature maps.
#include <vector>

#include "framework/core/enum_names.h"
#include "framework/core/random.h"

namespace furlong::layers {

/// Distribution of the rows of a random projection.
enum class RandomProjectionKind : std::uint8_t {
  iid,  ///< independent rows from N(0, I_d)
  /// Blocks of d rows from a Haar-distributed orthogonal matrix. Each row is scaled by an independent χ_d norm
  /// (Choromanski et al. 2021, section 3).
  orthogonal,
  orthogonal_fixed_norm,  ///< the same blocks; every row has norm √d: less variance, a small bias
  norm_stratified,        ///< the same blocks; the norms are the quantiles i/(m+1) of χ_d, i = 1..m, in random order
  /// Blocks of p rows of √p H D₃ H D₂ H D₁, cut to the first d columns (Yu et al. 2016, "Orthogonal Random Features").
  /// H is the orthonormal Walsh-Hadamard matrix of size p, the smallest power of two >= d; D are random signs. The mean
  /// square norm is d. If d is a power of two, every norm is √d and the rows of a block are orthogonal.
  structured
};
constexpr auto names_of(RandomProjectionKind) {
  return std::array{"iid", "orthogonal", "orthogonal_fixed_norm", "norm_stratified", "structured"};
}

/// Draws a random projection [m, d], row-major, from `key`. Draws in double precision on the host and rounds to
/// bfloat16. ω is *defined* as the rounded values, so a model does not depend on its storage type, and products with
/// 16-bit inputs are exact in float32 sums. m need not be a multiple of d: the last block is cut.
std::vector<float> draw_random_projection(RandomProjectionKind kind, std::int64_t m, std::int64_t d,
                                          const RandomKey& key);

/// Returns the r with P(χ_d <= r) = probability, for a probability in (0, 1). The relative error is at most 1e-12 up to
/// probability 0.9999; above, the rounding of the probability itself limits it.
double chi_quantile(double probability, std::int64_t d);

}  // namespace furlong::layers
