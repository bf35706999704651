// Polynomial kernels Σ_r c_r (q'·k')^r of degree r <= order, for example of two entries and degree 2:
//   (q'·k')² = q'_0² k'_0² + 2 q'_0 q'_1 k'_0 k'_1 + q'_1² k'_1², so the features are x'_0², √2 x'_0 x'_1 and x'_1².
// In general a feature is a monomial Π x'_i^α_i of degree r = Σ α_i with the coefficient sqrt(c_r r! / Π α_i!). Every
// monomial is stored once, whatever the order of its factors.
//
// Layout of a row of features: blocks of degree 0, 1, 2, ... In the block of degree r, monomials x_(i_1) ... x_(i_r)
// with i_1 <= ... <= i_r are in lexicographic order of their indices. So the monomials of degree r that start with x_i
// are x_i times those of degree r - 1 whose indices are all >= i, and these are the last ones of their block. In both
// places monomials with more factors x_i come first. Monomials with equally many share one coefficient: they are a
// run, computed by multiplying consecutive features of degree r - 1 by x_i and one factor.

/// The ratio r c_r / c_(r-1) as a fraction; c_0 = 1.
struct Growth {
  int numerator, denominator;
};

/// A map with such a kernel. Self::growth(order, r) returns the ratio for degree r; the order is at most 4.
template <class Self>
struct PolynomialMap : RowMap {
  static constexpr int highest_degree = 4;

#if defined(FURLONG_MAPS_ON_CPU)

  /// Returns the number of monomials of degree r in v variables.
  static std::int64_t monomials(std::int64_t v, std::int64_t r) {
    std::int64_t count = 1;
    for (std::int64_t i = 0; i < r; ++i) count = count * (v + i) / (i + 1);
    return count;
  }
  /// Returns the factor F in: feature of degree r = F · x_i · feature of degree r - 1, if the latter has x_i a times.
  /// It includes the scale of x'.
  template <class T>
  static T factor(const FeatureTile<T>& tile, std::int64_t r, std::int64_t a) {
    const Growth growth = Self::growth(static_cast<int>(tile.order), static_cast<int>(r));
    const double ratio = static_cast<double>(growth.numerator) / static_cast<double>(r * growth.denominator) *
                         static_cast<double>(r) / static_cast<double>(a + 1);
    return static_cast<T>(static_cast<double>(tile.scale) * std::sqrt(ratio));
  }

  /// Calls run(i, factor, source, target, n) for all runs of degree r in ascending order of `target`. A run is
  /// features[target + f] = factor · x_i · features[source + f] for f < n. The argument `source` is the first column of
  /// degree r - 1.
  template <class T, class Run>
  static HWY_INLINE void for_runs(const FeatureTile<T>& tile, std::int64_t r, std::int64_t source, const Run& run) {
    T factors[highest_degree];
    for (std::int64_t a = 0; a < r; ++a) factors[a] = factor(tile, r, a);
    std::int64_t target = source + monomials(tile.d, r - 1);
    for (std::int64_t i = 0; i < tile.d; ++i) {
      std::int64_t from = source;
      for (std::int64_t a = r - 1; a >= 0; --a) {
        if (a == 0) source = from;  // start of the end with all indices >= i + 1
        const std::int64_t n = monomials(tile.d - i - 1, r - 1 - a);
        run(i, factors[a], from, target, n);
        from += n;
        target += n;
      }
    }
  }
  /// Returns the first column of degree r.
  static std::int64_t offset(std::int64_t d, std::int64_t r) {
    std::int64_t at = 0;
    for (std::int64_t lower = 0; lower < r; ++lower) at += monomials(d, lower);
    return at;
  }

  template <class T>
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, T* features) {
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
                   // Whole vectors may write beyond the run, into columns that later runs overwrite or nobody reads.
                   for (; f < n && target + f + lanes <= tile.ld_m; f += lanes)
                     hn::StoreU(hn::Mul(hn::LoadU(d, row + source + f), v_weight), d, row + target + f);
                   for (; f < n; ++f) row[target + f] = row[source + f] * weight;
                 }
               });
    }
  }

  template <class T>
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, const T* features, T* d_features,
                       T* d_x) {
    const typename Lanes<T>::D d;
    const std::int64_t lanes = Lanes<T>::count();
    for (std::int64_t i = 0; i < rows; ++i) std::fill_n(d_x + i * tile.ld_x, tile.d, T{0});
    // From the highest degree down, because d_features of a degree receives gradients through higher degrees.
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

#elif defined(FURLONG_MAPS_ON_GPU)

  /// Returns the number of monomials of degree r in v variables.
  static __device__ int monomials(int v, int r) {  // divisions by constants are cheap
    int count = r >= 1 ? v : 1;
    if (r >= 2) count = count * (v + 1) / 2;
    if (r >= 3) count = count * (v + 2) / 3;
    return r >= 4 ? count * (v + 3) / 4 : count;
  }
  /// Returns the factor F in: feature of degree r = F · x_i · feature of degree r - 1, if the latter has x_i a times.
  /// It includes the scale of x'.
  template <class T>
  static __device__ T factor(int order, T scale, int r, int a) {
    const Growth growth = Self::growth(order, r);
    const T ratio = static_cast<T>(growth.numerator) / static_cast<T>(growth.denominator);
    return scale * gpu_sqrt(ratio / static_cast<T>(a + 1));
  }
  /// Calls run(i, factor, source, target, n) for the runs of degree r, as on the CPU.
  template <class Rows, class Run>
  static __device__ void for_runs(const Rows& rows, int r, int source, const Run& run) {
    const int d = rows.d;
    const auto of = [&](int a) { return factor(rows.order, rows.constants.scale, r, a); };
    const auto factor0 = of(0), factor1 = of(1), factor2 = of(2), factor3 = of(3);
    int target = source + monomials(d, r - 1);
    for (int i = 0; i < d; ++i) {
      int from = source;
      for (int a = r - 1; a >= 0; --a) {
        if (a == 0) source = from;  // start of the end with all indices >= i + 1
        const int n = monomials(d - i - 1, r - 1 - a);
        run(i, a == 0 ? factor0 : a == 1 ? factor1 : a == 2 ? factor2 : factor3, from, target, n);
        from += n;
        target += n;
      }
    }
  }
  static __device__ int offset(int d, int r) {
    int at = 0;
    for (int lower = 0; lower < r; ++lower) at += monomials(d, lower);
    return at;
  }
  template <class Rows, class T>
  static __device__ void features(const Rows& rows, const T* row, T* target) {
    const int d = rows.d;
    const T first = factor(rows.order, rows.constants.scale, 1, 0);
    if (lane_index() == 0) target[0] = 1;
    for_columns(d, [&](int c) { target[1 + c] = row[c] * first; });
    for (int r = 2; r <= rows.order; ++r) {
      __syncwarp();
      for_runs(rows, r, offset(d, r - 1), [&](int c, T coefficient, int from, int to, int n) {
        const T weight = row[c] * coefficient;
        for_columns(n, [&](int f) { target[to + f] = target[from + f] * weight; });
      });
    }
  }
  /// From the highest degree down, because d_features of a degree receives gradients through higher degrees.
  template <class Rows, class T>
  static __device__ void backward(const Rows& rows, const T* row, const T* phi, T* g, T* target) {
    const int d = rows.d;
    for_columns(d, [&](int c) { target[c] = 0; });
    __syncwarp();
    for (int r = rows.order; r >= 2; --r) {
      for_runs(rows, r, offset(d, r - 1), [&](int c, T coefficient, int from, int to, int n) {
        const T weight = row[c] * coefficient;
        T sum = 0;
        for_columns(n, [&](int f) {
          const T d_feature = g[to + f];
          sum = gpu_fma(d_feature, phi[from + f], sum);
          g[from + f] = gpu_fma(d_feature, weight, g[from + f]);
        });
        sum = warp_sum(sum);
        if (lane_index() == 0) target[c] = gpu_fma(coefficient, sum, target[c]);
        __syncwarp();
      });
    }
    const T first = factor(rows.order, rows.constants.scale, 1, 0);
    for_columns(d, [&](int c) { target[c] = gpu_fma(g[1 + c], first, target[c]); });
  }

#endif
};
