// Polynomial kernels Σ_r c_r (q'·k')^r with every monomial stored once: the feature of a multi-index α with |α| = r is
// sqrt(c_r r! / Π α_i!) Π x'_i^α_i. Per-target include guard; see framework/cpu/simd-inl.h.
//
// The monomials of degree r with indices i_1 <= ... <= i_r are in lexicographic order, so that those of degree r - 1
// with all indices >= i are the end of their block, and x_i times that end is a run of degree r. Inside the end,
// monomials with i itself a times come before those with fewer: a run for each a, each with one coefficient.
#if defined(FURLONG_FEATURE_MAP_POLYNOMIAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_FEATURE_MAP_POLYNOMIAL_INL_H_
#undef FURLONG_FEATURE_MAP_POLYNOMIAL_INL_H_
#else
#define FURLONG_FEATURE_MAP_POLYNOMIAL_INL_H_
#endif

#include "framework/cpu/small_gemm-inl.h"
#include "framework/ops/attention/feature_maps/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

/// Coefficients::ratio(order, r) is c_r / c_(r-1); c_0 = 1. Order up to 4.
template <class T, class Coefficients>
struct Polynomial {
  static constexpr std::int64_t highest = 4;

  /// Monomials of degree r in v variables.
  static std::int64_t monomials(std::int64_t v, std::int64_t r) {
    std::int64_t count = 1;
    for (std::int64_t i = 0; i < r; ++i) count = count * (v + i) / (i + 1);
    return count;
  }
  /// From a feature of degree r - 1 whose index i occurs a times, times x_i, to one of degree r.
  static T factor(const FeatureTile<T>& tile, std::int64_t r, std::int64_t a) {
    const double ratio = Coefficients::ratio(tile.order, r) * static_cast<double>(r) / static_cast<double>(a + 1);
    return static_cast<T>(static_cast<double>(tile.scale) * std::sqrt(ratio));
  }

  /// Calls run(i, factor, source, target, n) for all runs of degree r in ascending order; source and target are offsets
  /// in a row.
  template <class Run>
  static HWY_INLINE void for_runs(const FeatureTile<T>& tile, std::int64_t r, std::int64_t source, const Run& run) {
    T factors[highest];
    for (std::int64_t a = 0; a < r; ++a) factors[a] = factor(tile, r, a);
    std::int64_t target = source + monomials(tile.d, r - 1);
    for (std::int64_t i = 0; i < tile.d; ++i) {
      std::int64_t from = source;
      for (std::int64_t a = r - 1; a >= 0; --a) {
        if (a == 0) source = from;  // where the end with all indices >= i + 1 begins
        const std::int64_t n = monomials(tile.d - i - 1, r - 1 - a);
        run(i, factors[a], from, target, n);
        from += n;
        target += n;
      }
    }
  }
  /// Where degree r begins.
  static std::int64_t offset(std::int64_t d, std::int64_t r) {
    std::int64_t at = 0;
    for (std::int64_t lower = 0; lower < r; ++lower) at += monomials(d, lower);
    return at;
  }

  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, T* features,
                       T* row_log) {
    const typename Lanes<T>::D d;
    const std::int64_t lanes = Lanes<T>::count();
    const auto first = hn::Set(d, factor(tile, 1, 0));
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = features + i * tile.ld_m;
      row[0] = 1;
      map_row(x + i * tile.ld_x, tile.d, row + 1, [&](auto value) HWY_ATTR { return hn::Mul(value, first); });
    }
    for (std::int64_t r = 2; r <= tile.order; ++r) {
      for_runs(tile, r, offset(tile.d, r - 1),
               [&](std::int64_t c, T coefficient, std::int64_t source, std::int64_t target, std::int64_t n) HWY_ATTR {
                 for (std::int64_t i = 0; i < rows; ++i) {
                   T* row = features + i * tile.ld_m;
                   const T weight = x[i * tile.ld_x + c] * coefficient;
                   const auto v_weight = hn::Set(d, weight);
                   std::int64_t f = 0;
                   // Whole vectors may run over into places that later runs, or nobody, will fill.
                   for (; f < n && target + f + lanes <= tile.ld_m; f += lanes)
                     hn::StoreU(hn::Mul(hn::LoadU(d, row + source + f), v_weight), d, row + target + f);
                   for (; f < n; ++f) row[target + f] = row[source + f] * weight;
                 }
               });
    }
    no_row_log(row_log, rows);
  }

  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool /*is_key*/, const T* features,
                       T* d_features, const T* /*d_row_log*/, T* d_x) {
    const typename Lanes<T>::D d;
    const std::int64_t lanes = Lanes<T>::count();
    for (std::int64_t i = 0; i < rows; ++i) std::fill_n(d_x + i * tile.ld_x, tile.d, T{0});
    // From the highest degree down, since d_features of a degree gather what came through higher ones.
    for (std::int64_t r = tile.order; r >= 2; --r) {
      for_runs(tile, r, offset(tile.d, r - 1),
               [&](std::int64_t c, T coefficient, std::int64_t source, std::int64_t target, std::int64_t n) HWY_ATTR {
                 const auto mask = hn::FirstN(d, static_cast<std::size_t>(n % lanes));
                 for (std::int64_t i = 0; i < rows; ++i) {
                   const T* lower = features + i * tile.ld_m + source;
                   const T* g = d_features + i * tile.ld_m + target;
                   T* d_lower = d_features + i * tile.ld_m + source;
                   const auto weight = hn::Set(d, x[i * tile.ld_x + c] * coefficient);
                   auto sum = hn::Zero(d);
                   std::int64_t f = 0;
                   for (; f + lanes <= n; f += lanes) {
                     const auto gradient = hn::LoadU(d, g + f);
                     sum = hn::MulAdd(gradient, hn::LoadU(d, lower + f), sum);
                     hn::StoreU(hn::MulAdd(gradient, weight, hn::LoadU(d, d_lower + f)), d, d_lower + f);
                   }
                   if (f < n) {
                     const auto gradient = small_gemm::load_part(d, mask, g + f, n - f);
                     sum = hn::MulAdd(gradient, small_gemm::load_part(d, mask, lower + f, n - f), sum);
                     small_gemm::store_part(
                         hn::MulAdd(gradient, weight, small_gemm::load_part(d, mask, d_lower + f, n - f)), d, mask,
                         d_lower + f, n - f);
                   }
                   d_x[i * tile.ld_x + c] += coefficient * hn::GetLane(hn::SumOfLanes(d, sum));
                 }
               });
    }
    const auto first = hn::Set(d, factor(tile, 1, 0));
    for (std::int64_t i = 0; i < rows; ++i) {
      T* target = d_x + i * tile.ld_x;
      map_rows(target, d_features + i * tile.ld_m + 1, tile.d, target,
               [&](auto higher, auto gradient) HWY_ATTR { return hn::MulAdd(gradient, first, higher); });
    }
  }
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
