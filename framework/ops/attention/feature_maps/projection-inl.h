// Shared by maps with a random projection ω [n_projections, d]: u = ω·x and |x'|²/2 with x' = scale · x, and their
// gradients. x and d_x are tiles [rows, d] with row stride ld_x, u and d_u [rows, n_projections] with row stride ld_m.
// Compiled once for each instruction set; see framework/simd/simd-inl.h.
#if defined(FURLONG_FEATURE_MAP_PROJECTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_FEATURE_MAP_PROJECTION_INL_H_
#undef FURLONG_FEATURE_MAP_PROJECTION_INL_H_
#else
#define FURLONG_FEATURE_MAP_PROJECTION_INL_H_
#endif

#include "framework/ops/attention/feature_maps/rows-inl.h"
#include "framework/simd/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

/// Overwrites `target` with u = x ωᵀ. x is not scaled, so that with 16-bit inputs every term is exact in float32.
template <class T>
HWY_INLINE void project(const FeatureTile<T>& tile, const T* x, std::int64_t rows, T* target) {
  if constexpr (std::is_same_v<T, float>) {
    if (tile.packed_directions_transposed) {
      auto* left = reinterpret_cast<simd::BFloat16Pair*>(tile.scratch);
      tile.bfloat16->pack_rows(rows, tile.d, x, tile.ld_x, left, tile.ld_x / 2);
      return tile.bfloat16->multiply(rows, tile.n_projections, tile.d, left, tile.ld_x / 2,
                                     tile.packed_directions_transposed, tile.ld_directions, target, tile.ld_m, false);
    }
  }
  small_gemm_nn<T>(rows, tile.n_projections, tile.d, x, tile.ld_x, tile.directions_transposed, tile.ld_directions,
                   target, tile.ld_m, false);
}

/// Returns |x'|²/2 of one row [d].
template <class T>
HWY_INLINE T half_square(const FeatureTile<T>& tile, const T* row) {
  return dot(row, row, tile.d) * tile.scale * tile.scale / 2;
}

/// Overwrites d_x with the gradient of functions of factor · u and |x'|²/2: row i is factor · (d_u ω)_i + scale² d_half
/// x_i. d_u is the gradient of factor · u, and d_half = d_half_square(i) that of row i's |x'|²/2.
template <class T, class DHalfSquare>
HWY_INLINE void project_back(const FeatureTile<T>& tile, const T* x, std::int64_t rows, const T* d_u, T factor,
                             const DHalfSquare& d_half_square, T* d_x) {
  const typename Lanes<T>::D d;
  bool done = false;
  if constexpr (std::is_same_v<T, float>) {
    if (tile.packed_directions) {
      done = true;
      auto* left = reinterpret_cast<simd::BFloat16Pair*>(tile.scratch + rows * tile.ld_x);  // after d_half_square's
      tile.bfloat16->pack_rows(rows, tile.n_projections, d_u, tile.ld_m, left, tile.ld_m / 2);
      tile.bfloat16->multiply(rows, tile.d, tile.n_projections, left, tile.ld_m / 2, tile.packed_directions, tile.ld_x,
                              d_x, tile.ld_x, false);
    }
  }
  if (!done)
    small_gemm_nn<T>(rows, tile.d, tile.n_projections, d_u, tile.ld_m, tile.random_projection, tile.d, d_x, tile.ld_x,
                     false);
  const auto v_factor = hn::Set(d, factor);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto radial = hn::Set(d, d_half_square(i) * tile.scale * tile.scale);
    T* target = d_x + i * tile.ld_x;
    map_rows(x + i * tile.ld_x, target, tile.d, target,
             [&](auto value, auto d_value) HWY_ATTR { return hn::MulAdd(value, radial, hn::Mul(d_value, v_factor)); });
  }
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
