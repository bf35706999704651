#pragma once
// The composed kernels of linear attention on GPUs: the pairs of one query with positive features, given as logarithms.
// log_features_tile-inl.h explains the arithmetic. A pair whose product has underflowed is computed directly from the
// logarithms. All functions are run by one warp.
#include "framework/ops/attention/linear/cuda/composed.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Row i of the matrices of pairs of a head.
template <class T>
struct PairRow {
  const Composed<T>& c;
  const ComposedPlace place;
  const int i;
  const ComposedPairs visible;
  const std::int64_t row, pair0;

  __device__ PairRow(const Composed<T>& all, const ComposedPlace& at, int query)
      : c(all),
        place(at),
        i(query),
        visible(ComposedPairs::of(all, at, query)),
        row(all.row(at, query)),
        pair0(all.pair(at, query, 0)) {}

  /// Below this the product of two rows of normalized features has lost too much to underflow (with subnormals flushed
  /// to zero). Above it, up to 850 features below the smallest normal number are at most 1e-5 of the product; for
  /// larger m the threshold grows with m.
  __device__ T min_product() const {
    return c.m > 850 ? static_cast<T>(1e-30) * (static_cast<T>(c.m) / 850) : static_cast<T>(1e-30);
  }
  __device__ bool is_direct(int j) const { return visible.is_feature(j) && !(c.product[pair0 + j] >= min_product()); }
  /// At equal positions the rotations cancel, so that a query that attends only to itself has exactly its own value.
  __device__ T numerator(int j) const {
    return c.rotates && j != i ? c.rotated_product[pair0 + j] : c.product[pair0 + j];
  }
  __device__ T score(int j) const {
    return gpu_fma(c.score[pair0 + j], c.score_scale, c.gate_of(place) - c.q.log[row]) + c.k.weight[c.row(place, j)];
  }
  __device__ const T* query_features() const { return c.q.features + row * c.m_padded; }
  __device__ const T* key_features(int j) const { return c.k.features + c.row(place, j) * c.m_padded; }

  /// Calls body(j) for pairs that are computed directly, with all lanes each time.
  template <class Body>
  __device__ void for_direct(const Body& body) const {
    for (int j0 = visible.first; j0 < visible.end; j0 += 32) {
      const int j = j0 + lane_index();
      unsigned lanes = __ballot_sync(full_warp, j < visible.end && is_direct(j));
      for (; lanes != 0; lanes &= lanes - 1) body(j0 + __ffs(static_cast<int>(lanes)) - 1);
    }
  }

  /// Returns ⌊log2 p⌋ ln 2 of positive normal numbers, from their exponent bits.
  __device__ static T exponent(T p) {
    int power;
    if constexpr (sizeof(T) == 4) {
      std::uint32_t word;
      memcpy(&word, &p, sizeof(word));
      power = static_cast<int>(word >> 23) - 127;
    } else {
      std::uint64_t word;
      memcpy(&word, &p, sizeof(word));
      power = static_cast<int>(word >> 52) - 1023;
    }
    return static_cast<T>(power) * static_cast<T>(0.69314718055994530942);
  }
  /// Returns the logarithm of a power of two that is at most max_j w_ij and more than half of it, for feature pairs:
  /// rowmax_q + max_j (rowmax_k + ⌊log2 product⌋ ln 2).
  __device__ T top() const {
    const T least = min_product();
    T best = c.nothing;
    for (int j = visible.first + lane_index(); j < visible.end; j += 32) {
      const T p = c.product[pair0 + j];
      if (!visible.is_feature(j) || !(p >= least)) continue;
      const T x = c.k.size[c.row(place, j)] + exponent(c.rotates ? gpu_max(p, gpu_abs(numerator(j))) : p);
      if (best < x) best = x;
    }
    T top = warp_max(best) + c.q.size[row];
    for_direct([&](int j) {
      const T x = c.rotates && j != i ? rotated_bound(j) : log_weight(j);
      if (top < x) top = x;
    });
    return top;
  }
  /// Returns log Σ_f exp(a_if + b_jf), computed directly.
  __device__ T log_weight(int j) const {
    const T *a = query_features(), *b = key_features(j);
    T best = c.nothing;
    for_columns(c.m, [&](int f) { best = gpu_max(best, a[f] + b[f]); });
    best = warp_max(best);
    return best + gpu_log(row_sum<T>(c.m, [&](int f) { return exponential(a[f] + b[f] - best); }));
  }
  __device__ T term(int j, int f, T top) const { return exponential(query_features()[f] + (key_features(j)[f] - top)); }
  /// Returns exp(-top) times the numerator's weight of a direct pair.
  __device__ T direct_weight(int j, T top) const {
    if (!c.rotates || j == i) return row_sum<T>(c.m, [&](int f) { return term(j, f, top); });
    return row_sum<T>(c.half(),
                      [&](int f) {
                        const RotatedTerms x = rotated_terms(j, f, top);
                        return gpu_fma(x.cosine, x.first + x.second, x.sine * (x.second_first - x.first_second));
                      }) +
           rotated_last(j, top);
  }
  /// Adds the gradients of the direct pair (i, j) to the features of the query, or of the key.
  __device__ void add_direct_gradients(int j, bool of_query, T* target) const {
    const T top = c.stabilizer[row], inverse = c.inverse[row], delta = c.delta[row], g_v = c.g_v[pair0 + j];
    if (c.rotates && j != i) {
      rotated_gradients(j, top, g_v * inverse, -delta * inverse, of_query, target);
    } else {
      const T gradient = (g_v - delta) * inverse;
      for_columns(c.m, [&](int f) { target[f] = gpu_fma(term(j, f, top), gradient, target[f]); });
    }
    __syncwarp();
  }

 private:
  // ---- A direct pair with a rotated numerator. With Δ the key's position minus the query's, x = exp(a) and y =
  // exp(b): Σ_f cos Δθ_f (x_f y_f + x_f' y_f') + sin Δθ_f (x_f' y_f - x_f y_f'). ----

  struct RotatedTerms {
    T cosine, sine;                               // of Δθ
    T first, second, first_second, second_first;  // x_f y_f, x_f' y_f', x_f y_f', x_f' y_f
  };
  __device__ RotatedTerms rotated_terms(int j, int f, T top) const {
    const int half = c.half();
    const T *turn_q = rotation_of(c, place, i), *turn_k = rotation_of(c, place, j);
    const T *a = query_features(), *b = key_features(j);
    const T b_first = b[f] - top, b_second = b[half + f] - top;
    return {gpu_fma(turn_q[half + f], turn_k[half + f], turn_q[f] * turn_k[f]),
            gpu_fma(-turn_q[half + f], turn_k[f], turn_q[f] * turn_k[half + f]),
            exponential(a[f] + b_first),
            exponential(a[half + f] + b_second),
            exponential(a[f] + b_second),
            exponential(a[half + f] + b_first)};
  }
  /// The last of an odd number of features, which is not rotated.
  __device__ T rotated_last(int j, T top) const { return c.m % 2 != 0 ? term(j, c.m - 1, top) : T(0); }
  /// Returns an upper bound on the logarithm of every term, of the rotated and of the plain product.
  __device__ T rotated_bound(int j) const {
    const int half = c.half();
    const T *a = query_features(), *b = key_features(j);
    T best = c.m % 2 != 0 ? a[c.m - 1] + b[c.m - 1] : c.nothing;
    for_columns(half, [&](int f) { best = gpu_max(best, gpu_max(a[f], a[half + f]) + gpu_max(b[f], b[half + f])); });
    return warp_max(best);
  }
  /// rotated_gradient is the gradient of exp(-top) times the rotated product, gradient that of exp(-top) times the
  /// plain product.
  __device__ void rotated_gradients(int j, T top, T rotated_gradient, T gradient, bool of_query, T* target) const {
    const int half = c.half();
    for_columns(half, [&](int f) {
      const RotatedTerms x = rotated_terms(j, f, top);
      const T first = x.cosine * x.first, second = x.cosine * x.second, second_first = x.sine * x.second_first,
              first_second = x.sine * x.first_second;
      target[f] = gpu_fma(rotated_gradient, of_query ? first - first_second : first + second_first,
                          gpu_fma(gradient, x.first, target[f]));
      T& other = target[half + f];
      other = gpu_fma(rotated_gradient, of_query ? second + second_first : second - first_second,
                      gpu_fma(gradient, x.second, other));
    });
    const T last = rotated_last(j, top);
    if (c.m % 2 != 0 && lane_index() == 0) target[c.m - 1] += (rotated_gradient + gradient) * last;
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
