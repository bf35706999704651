// m = 2d log features: log softmax(x)_f at f and log softmax(-x)_f at d + f, for f < d. Both softmaxes are over the d
// entries of the row, as in the authors' code; the paper has plain exponentials (Zhang et al. 2024, "The Hedgehog & the
// Porcupine"). x is the query or key times a learned matrix, which is not part of the map.
template <>
struct Map<FeatureMap::hedgehog> : RowMap {
  static constexpr FeatureMapProperties properties{.summary = "softmax of learned features",
                                                   .form = FeatureForm::logarithms,
                                                   .learns_inputs = true,
                                                   .fused = FusedForm::softmax};
  static constexpr std::int64_t count(std::int64_t d) { return 2 * d; }

#if defined(FURLONG_MAPS_ON_CPU)

  /// Returns log Σ_f exp(sign · x_f) over `size` entries, with the maximum subtracted before exp.
  template <class T>
  static T log_sum_exp(const T* row, std::int64_t size, T sign) {
    const typename Lanes<T>::D d;
    const auto v_sign = hn::Set(d, sign);
    const std::int64_t lanes = Lanes<T>::count();
    auto largest_lanes = hn::Set(d, std::numeric_limits<T>::lowest());
    std::int64_t whole = 0;
    for (; whole + lanes <= size; whole += lanes)
      largest_lanes = hn::Max(largest_lanes, hn::Mul(hn::LoadU(d, row + whole), v_sign));
    T largest = hn::GetLane(hn::MaxOfLanes(d, largest_lanes));
    for (; whole < size; ++whole) largest = std::max(largest, sign * row[whole]);
    const auto top = hn::Set(d, largest);
    const T sum = row_sum<T>(size, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const auto term = furlong::simd::HWY_NAMESPACE::exp(d, hn::MulSub(load_n(row + f, n), v_sign, top));
      return hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n)), term);
    });
    return largest + std::log(sum);
  }

  template <class T>
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, T* features) {
    const typename Lanes<T>::D d;
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* row = x + i * tile.ld_x;
      T* target = features + i * tile.ld_m;
      for (const T sign : {T{1}, T { -1 }}) {
        const auto v_sign = hn::Set(d, sign), total = hn::Set(d, log_sum_exp(row, tile.d, sign));
        map_row(row, tile.d, target, [&](auto value) HWY_ATTR { return hn::MulSub(value, v_sign, total); });
        target += tile.d;
      }
    }
  }
  /// d_x = (g₊ - softmax(x) Σ g₊) - (g₋ - softmax(-x) Σ g₋), where g₊ and g₋ are the two halves of d_features.
  template <class T>
  static void backward(const FeatureTile<T>& tile, const T* /*x*/, std::int64_t rows, const T* features, T* d_features,
                       T* d_x) {
    const typename Lanes<T>::D d;
    const auto part = [&](const T* log_softmax, const T* g, std::int64_t n, auto total) HWY_ATTR {
      return hn::NegMulAdd(furlong::simd::HWY_NAMESPACE::exp(d, load_n(log_softmax, n)), total, load_n(g, n));
    };
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* plus = features + i * tile.ld_m;
      const T* minus = plus + tile.d;
      const T* g_plus = d_features + i * tile.ld_m;
      const T* g_minus = g_plus + tile.d;
      const auto total_plus = hn::Set(d, row_sum(g_plus, tile.d)), total_minus = hn::Set(d, row_sum(g_minus, tile.d));
      for_lanes<T>(tile.d, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        store_n(hn::Sub(part(plus + f, g_plus + f, n, total_plus), part(minus + f, g_minus + f, n, total_minus)),
                d_x + i * tile.ld_x + f, n);
      });
    }
  }

#elif defined(FURLONG_MAPS_ON_GPU)

  template <class Rows, class T>
  static __device__ void features(const Rows& rows, const T* x, T* features) {
    const int d = rows.d;
    for (int half = 0; half < 2; ++half) {
      const T sign = half == 0 ? T(1) : T(-1);
      T* const target = features + half * d;
      T largest = gpu_lowest<T>();
      for_columns(d, [&](int f) { largest = gpu_max(largest, sign * x[f]); });
      largest = warp_max(largest);
      const T total = largest + gpu_log(row_sum<T>(d, [&](int f) { return gpu_exp(sign * x[f] - largest); }));
      for_columns(d, [&](int f) { target[f] = sign * x[f] - total; });
    }
  }
  /// As on the CPU.
  template <class Rows, class T>
  static __device__ void backward(const Rows& rows, const T* /*x*/, const T* phi, T* g, T* d_x) {
    const int d = rows.d;
    const T total_plus = row_sum<T>(d, [&](int f) { return g[f]; }),
            total_minus = row_sum<T>(d, [&](int f) { return g[d + f]; });
    for_columns(d, [&](int f) {
      const T plus = gpu_fma(-gpu_exp(phi[f]), total_plus, g[f]),
              minus = gpu_fma(-gpu_exp(phi[d + f]), total_minus, g[d + f]);
      d_x[f] = plus - minus;
    });
  }

#endif
};
