// Shared by maps with a random projection: u = ω·x' and |x'|²/2 with x' = scale · x, and their gradients. Per-target
// include guard; see framework/simd/simd-inl.h.
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

/// target [rows, n_projections] = x ωᵀ, rows ld_m apart. It omits the scale, so that with 16-bit inputs every term is
/// exact in float32.
template <class T>
HWY_INLINE void project(const FeatureTile<T>& tile, const T* x, std::int64_t rows, T* target) {
  small_gemm_nn<T>(rows, tile.n_projections, tile.d, x, tile.ld_x, tile.directions_transposed, tile.ld_directions,
                   target, tile.ld_m, false);
}

template <class T>
HWY_INLINE T half_square(const FeatureTile<T>& tile, const T* row) {
  return dot(row, row, tile.d) * tile.scale * tile.scale / 2;
}

/// d_x [rows, d] = factor · d_u ω + d_half_square(i) ∂(|x'|²/2)/∂x: the complete gradient of functions of u and
/// |x'|²/2. d_u has rows ld_m apart; `factor` is the factor of u.
template <class T, class DHalfSquare>
HWY_INLINE void project_back(const FeatureTile<T>& tile, const T* x, std::int64_t rows, const T* d_u, T factor,
                             const DHalfSquare& d_half_square, T* d_x) {
  const typename Lanes<T>::D d;
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

/// Returns ∂ loss / ∂(|x'|²/2) of row i, for log features that include -|k'|²/2 for keys and leave it to the row
/// logarithm for queries.
template <class T>
HWY_INLINE T d_half_square_of_logs(const FeatureTile<T>& tile, std::int64_t i, bool is_key, const T* d_features,
                                   const T* d_row_log) {
  if (is_key) return -row_sum(d_features + i * tile.ld_m, tile.m);
  return d_row_log ? -d_row_log[i] : T{0};
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
