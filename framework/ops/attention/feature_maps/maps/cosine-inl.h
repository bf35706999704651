// The kernel 1 + q̂·k̂ with x̂ = x / |x|, one plus the cosine of the angle between q and k; never negative. Feature 0 is
// 1, feature 1 + f is x̂_f: m = d + 1 values. A row of zeros has x̂ = 0.
template <>
struct Map<FeatureMap::cosine> : RowMap {
  static constexpr FeatureMapProperties properties{
      .summary = "1 + cosine of q and k", .form = FeatureForm::values, .can_vanish = true, .can_cancel = true};
  static constexpr std::int64_t count(std::int64_t d) { return d + 1; }

  /// |x| as the product largest · rest, which could overflow or underflow although neither factor does.
  template <class T>
  struct Norm {
    T largest;  // max_f |x_f|
    T rest;     // |x / largest|, from 1 to √d
  };

#if defined(FURLONG_MAPS_ON_CPU)

  /// Returns |x| of a row of `size` entries; {1, 0} for a row of zeros. If the row has a NaN, `rest` is NaN.
  template <class T>
  static Norm<T> norm_of(const T* row, std::int64_t size) {
    const typename Lanes<T>::D d;
    auto largest_lanes = hn::Zero(d);
    for_lanes<T>(size, [&](std::int64_t f, std::int64_t n)
                           HWY_ATTR { largest_lanes = hn::Max(largest_lanes, hn::Abs(load_n(row + f, n))); });
    T largest = hn::GetLane(hn::MaxOfLanes(d, largest_lanes));
    if (!(largest > 0)) largest = 1;
    const auto divisor = hn::Set(d, largest);
    const T square = row_sum<T>(size, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const auto value = hn::Div(load_n(row + f, n), divisor);
      return hn::Mul(value, value);
    });
    return {largest, std::sqrt(square)};
  }

  template <class T>
  static void features(const FeatureTile<T>& tile, const T* x, std::int64_t rows, T* features) {
    const typename Lanes<T>::D d;
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* row = x + i * tile.ld_x;
      T* target = features + i * tile.ld_m;
      const Norm<T> norm = norm_of(row, tile.d);
      const auto divisor = hn::Set(d, norm.largest), inverse = hn::Set(d, norm.rest == 0 ? T{0} : 1 / norm.rest);
      target[0] = 1;
      map_row(row, tile.d, target + 1, [&](auto value) HWY_ATTR { return hn::Mul(hn::Div(value, divisor), inverse); });
    }
  }
  /// d_x = (g - (g·x̂) x̂) / |x|, where g is d_features without feature 0, which is constant. Zero for a row of zeros,
  /// which has no derivative.
  template <class T>
  static void backward(const FeatureTile<T>& tile, const T* x, std::int64_t rows, const T* features, T* d_features,
                       T* d_x) {
    const typename Lanes<T>::D d;
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* unit = features + i * tile.ld_m + 1;
      const T* g = d_features + i * tile.ld_m + 1;
      const Norm<T> norm = norm_of(x + i * tile.ld_x, tile.d);
      const auto along = hn::Set(d, dot(g, unit, tile.d)), divisor = hn::Set(d, norm.largest),
                 inverse = hn::Set(d, norm.rest == 0 ? T{0} : 1 / norm.rest);
      map_rows(unit, g, tile.d, d_x + i * tile.ld_x, [&](auto direction, auto d_value) HWY_ATTR {
        return hn::Div(hn::Mul(hn::NegMulAdd(along, direction, d_value), inverse), divisor);
      });
    }
  }

#elif defined(FURLONG_MAPS_ON_GPU)

  /// As on the CPU.
  template <class T>
  static __device__ Norm<T> norm_of(const T* row, int d) {
    T largest = 0;
    for_columns(d, [&](int f) { largest = gpu_max(largest, gpu_abs(row[f])); });
    largest = warp_max(largest);
    if (!(largest > T(0))) largest = 1;
    return {largest, gpu_sqrt(row_sum<T>(d, [&](int f) { return row[f] / largest * (row[f] / largest); }))};
  }
  template <class Rows, class T>
  static __device__ void features(const Rows& rows, const T* x, T* features) {
    const Norm<T> norm = norm_of(x, rows.d);
    const T inverse = norm.rest == T(0) ? T(0) : T(1) / norm.rest;
    for_columns(rows.d, [&](int f) { features[1 + f] = x[f] / norm.largest * inverse; });
    if (lane_index() == 0) features[0] = 1;
  }
  /// As on the CPU.
  template <class Rows, class T>
  static __device__ void backward(const Rows& rows, const T* x, const T* features, T* d_features, T* d_x) {
    const T *const unit = features + 1, *const g = d_features + 1;
    const Norm<T> norm = norm_of(x, rows.d);
    const T inverse = norm.rest == T(0) ? T(0) : T(1) / norm.rest, along = row_dot(g, unit, rows.d);
    for_columns(rows.d, [&](int f) { d_x[f] = gpu_fma(-along, unit[f], g[f]) * inverse / norm.largest; });
  }

#endif
};
