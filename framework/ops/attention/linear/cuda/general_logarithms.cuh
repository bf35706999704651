#pragma once
// The general kernels of linear attention on GPUs for positive features, given as logarithms: LogFeaturesTile, row by
// row. log_features_tile-inl.h explains the arithmetic.
#include "framework/ops/attention/linear/cuda/general_rows.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

template <class T>
class GeneralLogarithms : public GeneralHead<T> {
 public:
  using GeneralHead<T>::nothing;
  static constexpr FeatureForm form = FeatureForm::logarithms;

  // ---- the state: S, z and c ----

  __device__ void clear_state() { this->clear_sums(); }
  __device__ void load_state(const T* sum, const T* normalizers, const T* maxima, const T* /*magnitude*/) {
    this->load_sums(sum, normalizers, maxima);
  }
  __device__ void store_state(T* sum, T* normalizers, T* maxima, T* magnitude) const {
    this->store_sums(sum, normalizers, maxima);
    if (block_thread() == 0) *magnitude = 0;
  }

  /// Features for products of pairs: each row's maximum is subtracted, and stored in row_q and row_k.
  __device__ T* near_q() const { return this->normal_q; }
  __device__ T* near_k() const { return this->normal_k; }
  /// Weights of keys for the queries gathered after them, before and after rotation.
  __device__ T* later_weights() const { return this->normal_k; }
  __device__ T* rotated_later_weights() const { return this->normal_k; }

  // ---- features ----

  __device__ void map_key(int j) const {
    T* const features = this->feature_k + j * this->s.ld_m();
    this->map.template feature_row<form>(this->k + j * this->s.ld_d(), true, features, nullptr);
    if (!this->a.weighted) return;
    __syncwarp();
    for_columns(this->s.m, [&](int f) { features[f] += this->key_weight[j]; });
  }
  __device__ void map_query(int i) const {
    this->map.template feature_row<form>(this->q + i * this->s.ld_d(), false, this->feature_q + i * this->s.ld_m(),
                                         this->s.softmax_pairs ? this->log_q + i : nullptr);
  }
  __device__ void normalise() const {
    for_rows(this->query_rows, [&](int i) {
      normalise_row(this->feature_q + i * this->s.ld_m(), this->normal_q + i * this->s.ld_m(), this->row_q + i);
    });
    for_rows(this->pairs.columns, [&](int j) {
      normalise_row(this->feature_k + j * this->s.ld_m(), this->normal_k + j * this->s.ld_m(), this->row_k + j);
    });
  }

  // ---- forward ----

  /// Computes the weights of query i, its stabiliser and its denominator. Weights of near pairs go to weight; those of
  /// the state replace the features in feature_q.
  __device__ void weigh(int i) {
    const GeneralPairs::Row row = this->pairs.row(i);
    const bool near = this->pairs.columns > 0;
    T top = nothing, total = 0;
    if (near) top = pair_top(i, row);
    if (row.soft < row.end) {
      const T exact = this->softmax_top(i, row);
      top = exact < top ? top : exact;  // propagates NaN
    }
    if (this->has_state) top = larger(top, past_top(i));
    top = this->joint_top(i, top);
    if (top < nothing / 2) top = -nothing;  // no visible key: every weight is zero
    if (near) total = pair_weights(i, row, top);
    if (row.soft < row.end) total += this->softmax_weights(i, row, top);
    if (this->has_state) {
      __syncwarp();  // direct pairs have read the features that are overwritten now
      total += past_weights(i, top);
      if (this->s.rotates) {
        __syncwarp();
        T* const features = this->feature_q + i * this->s.ld_m();
        this->rotate_row(this->rotations_q + i * 2 * this->s.half(), features, features, false);
      }
    }
    this->close_row(i, top, total, this->s.rotates && top < -nothing / 2 ? T(1) : T(0));
  }

  /// Turns features of keys or queries into their weights in the state, and updates c and z. Run by a block.
  __device__ void absorb_keys() { absorb(this->key_rows, this->feature_k, nullptr, nullptr, nullptr); }
  /// For queries: exp(a_i - top_i - e) / N_i, with e (in feature_max) the running maximum of a_i - top_i; z over -δ_i.
  __device__ void absorb_queries() { absorb(this->query_rows, this->feature_q, this->top, this->inverse, this->delta); }
  __device__ void publish_scale() {}

  // ---- backward ----

  /// Completes d_feature, which holds S_f · g_i: ∂ loss / ∂ a_if = exp(a_if + c_f - top_i) / N_i · (S_f · g_i - δ_i
  /// z_f).
  __device__ void finish_gradients_from_state(int i) const {
    for_columns(this->s.m, [&](int f) {
      const int at = i * this->s.ld_m() + f;
      const T e = exponential(this->feature_q[at] + (this->feature_max[f] - this->top[i]));
      this->d_feature[at] = e * this->inverse[i] * gpu_fma(-this->delta[i], this->normalizer[f], this->d_feature[at]);
    });
  }
  /// Completes d_feature, which holds state_f · v_j, and computes the weights for d_v:
  /// d b_jf = exp(b_jf + e_f) (state_f · v_j + normalizer_f), d_v_j = Σ_f exp(b_jf + e_f) state_f.
  __device__ void finish_gradients_from_later(int j) const {
    for_columns(this->s.m, [&](int f) {
      const int at = j * this->s.ld_m() + f;
      const T e = exponential(this->feature_k[at] + this->feature_max[f]);
      later_weights()[at] = e;
      this->d_feature[at] = e * (this->d_feature[at] + this->normalizer[f]);
    });
  }
  __device__ void finish_later_values(int /*j*/) const {}

  /// Computes the gradients of row i's pairs; those of direct pairs are added to d_feature of the query.
  __device__ void query_gradients(int i) {
    const GeneralPairs::Row row = this->pairs.row(i);
    row_pair_gradients(i, row, false);
    for_direct(i, row.first, row.soft, [&](int j) { direct_gradients_of_query(i, j); });
    this->finish_gradients(i, row, false);
  }
  __device__ void key_gradients(int i) {
    const GeneralPairs::Row row = this->pairs.row(i);
    row_pair_gradients(i, row, true);
    this->finish_gradients(i, row, true);
  }
  /// d a_if = normal_q_if Σ_j d_product_ij normal_k_jf, and likewise for keys.
  __device__ void take_near_gradients(int row, const T* normal) const {
    for_columns(this->s.m, [&](int f) {
      const int at = row * this->s.ld_m() + f;
      this->d_feature[at] = gpu_fma(this->near_gradient[at], normal[at], this->d_feature[at]);
    });
  }
  /// Adds ∂ loss / ∂ the logarithm of key j's weight to d_key_weight; keys have no row logarithm.
  __device__ void key_logarithm(int j) const {
    if (!this->a.weighted) return;
    const T sum = row_sum<T>(this->s.m, [&](int f) { return this->d_feature[j * this->s.ld_m() + f]; });
    if (lane_index() == 0) this->d_key_weight[j] += sum;
  }
  __device__ T d_row_log(int /*j*/) const { return T(0); }

  /// Adds the gradients of key j's direct pairs to its d_feature, query after query.
  __device__ void direct_key_gradients(int j) const {
    const int rows = this->query_rows;
    T* const d_b = this->d_feature + j * this->s.ld_m();
    const T least = min_product();
    for (int i0 = 0; i0 < rows; i0 += 32) {
      const int lane_i = i0 + lane_index();
      bool direct = false;
      if (lane_i < rows) {
        const GeneralPairs::Row row = this->pairs.row(lane_i);
        direct = j >= row.first && j < row.soft && !(this->product[lane_i * this->s.ld_n() + j] >= least);
      }
      for (unsigned lanes = __ballot_sync(full_warp, direct); lanes != 0; lanes &= lanes - 1) {
        const int i = i0 + __ffs(static_cast<int>(lanes)) - 1;
        const T g_v = this->g_v[i * this->s.ld_n() + j];
        if (this->s.rotates && j != this->pairs.own(i)) {
          rotated_gradients(i, j, g_v * this->inverse[i], -this->delta[i] * this->inverse[i], false, d_b);
        } else {
          const T gradient = (g_v - this->delta[i]) * this->inverse[i];
          for_columns(this->s.m, [&](int f) { d_b[f] = gpu_fma(direct_term(i, j, f), gradient, d_b[f]); });
        }
        __syncwarp();
      }
    }
  }

 private:
  // Below this the product of two rows of normalised features has lost too much to underflow (with subnormals flushed
  // to zero), and the pair is recomputed directly. Above it, up to 850 features below the smallest normal number are at
  // most 1e-5 of the product; for larger m the threshold grows with m.
  __device__ T min_product() const {
    return this->s.m > 850 ? static_cast<T>(1e-30) * (static_cast<T>(this->s.m) / 850) : static_cast<T>(1e-30);
  }
  __device__ static T larger(T a, T b) { return a < b ? b : a; }

  /// Writes exp(row - max(row)) and the maximum.
  __device__ void normalise_row(const T* row, T* target, T* maximum) const {
    T best = nothing;
    for_columns(this->s.m, [&](int f) { best = gpu_max(best, row[f]); });
    best = warp_max(best);
    for_columns(this->s.m, [&](int f) { target[f] = exponential(row[f] - best); });
    if (lane_index() == 0) *maximum = best;
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

  /// Calls body(j) for pairs (i, j), j in [from, to), whose small product has underflowed; with all lanes each time.
  template <class Body>
  __device__ void for_direct(int i, int from, int to, const Body& body) const {
    const T least = min_product();
    for (int j0 = from; j0 < to; j0 += 32) {
      const int j = j0 + lane_index();
      unsigned lanes = __ballot_sync(full_warp, j < to && !(this->product[i * this->s.ld_n() + j] >= least));
      for (; lanes != 0; lanes &= lanes - 1) body(j0 + __ffs(static_cast<int>(lanes)) - 1);
    }
  }

  /// Returns the logarithm of a power of two that is at most max_j w_ij and more than half of it:
  /// rowmax_q + max_j (rowmax_k + ⌊log2 product⌋ ln 2).
  __device__ T pair_top(int i, const GeneralPairs::Row& row) const {
    const T least = min_product();
    T best = nothing;
    for (int j = row.first + lane_index(); j < row.soft; j += 32) {
      const T p = this->product[i * this->s.ld_n() + j];
      if (!(p >= least)) continue;
      best = larger(
          best, this->row_k[j] +
                    exponent(this->s.rotates ? gpu_max(p, gpu_abs(this->rotated_product[i * this->s.ld_n() + j])) : p));
    }
    T top = warp_max(best) + this->row_q[i];
    const int own = this->pairs.own(i);
    for_direct(i, row.first, row.soft, [&](int j) {
      top = larger(top, this->s.rotates && j != own ? rotated_bound(i, j) : direct_log_weight(i, j));
    });
    return top;
  }

  /// Returns log Σ_f exp(a_if + b_jf), computed directly.
  __device__ T direct_log_weight(int i, int j) const {
    const T *a = this->feature_q + i * this->s.ld_m(), *b = this->feature_k + j * this->s.ld_m();
    T best = nothing;
    for_columns(this->s.m, [&](int f) { best = gpu_max(best, a[f] + b[f]); });
    best = warp_max(best);
    return best + gpu_log(row_sum<T>(this->s.m, [&](int f) { return exponential(a[f] + b[f] - best); }));
  }

  /// weight row i = w_ij exp(-top) for the row's feature pairs, 0 elsewhere. Returns the sum. With a rotated numerator
  /// the row holds the weights of the numerator, and the sum is the denominator's.
  __device__ T pair_weights(int i, const GeneralPairs::Row& row, T top) const {
    const T least = min_product(), own_max = this->row_q[i];
    T total = 0;
    for_columns(this->pairs.columns, [&](int j) {
      const int at = i * this->s.ld_n() + j;
      const T p = this->product[at];
      T w = 0, kept = 0;
      if (j >= row.first && j < row.soft && p >= least) {
        const T factor = exponential(this->row_k[j] - top + own_max);
        w = p * factor;
        kept = this->s.rotates ? this->rotated_product[at] * factor : w;
      }
      total += w;
      this->weight[at] = kept;
    });
    total = warp_sum(total);
    __syncwarp();
    const int own = this->pairs.own(i);
    for_direct(i, row.first, row.soft, [&](int j) {
      const T w = exponential(direct_log_weight(i, j) - top),
              kept = this->s.rotates && j != own ? direct_rotated_product(i, j, top) : w;
      if (lane_index() == 0) this->weight[i * this->s.ld_n() + j] = kept;
      total += w;
    });
    return total;
  }

  __device__ T past_top(int i) const {
    T best = nothing;
    for_columns(this->s.m,
                [&](int f) { best = gpu_max(best, this->feature_q[i * this->s.ld_m() + f] + this->feature_max[f]); });
    return warp_max(best);
  }
  /// feature_q row i = exp(a_i + c - top). Returns its dot product with z.
  __device__ T past_weights(int i, T top) const {
    return row_sum<T>(this->s.m, [&](int f) {
      T& at = this->feature_q[i * this->s.ld_m() + f];
      at = exponential(at + (this->feature_max[f] - top));
      return at * this->normalizer[f];
    });
  }

  /// feature_max = max(feature_max, max_i (rows_i - less_i)); factors = rescaling of the sums so far; rows =
  /// exp(rows - less - feature_max) · by; normalizer = factors · normalizer + Σ_i rows_i, over -δ_i if δ is given. One
  /// thread per feature. Both features of a rotated pair get the larger maximum.
  __device__ void absorb(int rows, T* log_rows, const T* less, const T* by, const T* gradients) const {
    const int half = this->s.rotates ? this->s.half() : 0;
    const auto raised = [&](T after, int f) {
      for (int i = 0; i < rows; ++i) after = gpu_max(after, log_rows[i * this->s.ld_m() + f] - (less ? less[i] : T(0)));
      return after;
    };
    const auto take = [&](int f, T after) {
      const T factor = exponential(this->feature_max[f] - after);
      T sum = 0;
      for (int i = 0; i < rows; ++i) {
        T& at = log_rows[i * this->s.ld_m() + f];
        at = exponential(at - ((less ? less[i] : T(0)) + after)) * (by ? by[i] : T(1));
        sum = gradients ? gpu_fma(-gradients[i], at, sum) : sum + at;
      }
      this->add_to_normalizer(f, factor, sum);
      this->factors[f] = factor;
      this->feature_max[f] = after;
    };
    // With rotation: pairs of features first, then the last of an odd number.
    for (int f = block_thread(); f < this->s.m - half; f += static_cast<int>(blockDim.x)) {
      if (f < half) {
        const T after = raised(raised(this->feature_max[f], f), half + f);
        take(f, after);
        take(half + f, after);
      } else {
        take(half + f, raised(this->feature_max[half + f], half + f));
      }
    }
  }

  /// d_product row i = ∂ loss / ∂ product_ij, zero for pairs that are invisible or computed directly; with `weights`
  /// also w_ij / Σ_j w_ij. With a rotated numerator: weights of the numerator over Σ_j w_ij, and the gradients of the
  /// rotated product in d_rotated.
  __device__ void row_pair_gradients(int i, const GeneralPairs::Row& row, bool weights) const {
    const T least = min_product(), own_max = this->row_q[i];
    for_columns(this->pairs.columns, [&](int j) {
      const int at = i * this->s.ld_n() + j;
      const T p = this->product[at];
      const bool counts = j >= row.first && j < row.soft && p >= least;
      const T factor = counts ? this->inverse[i] * exponential(this->row_k[j] - this->top[i] + own_max) : T(0);
      if (this->s.rotates) {
        if (weights) this->weight[at] = counts ? this->rotated_product[at] * factor : T(0);
        this->d_rotated[at] = counts ? factor * this->g_v[at] : T(0);
        this->d_product[at] = counts ? -(factor * this->delta[i]) : T(0);
      } else {
        if (weights) this->weight[at] = counts ? p * factor : T(0);
        this->d_product[at] = counts ? factor * (this->g_v[at] - this->delta[i]) : T(0);
      }
    });
    __syncwarp();
    if (!weights) return;
    const int own = this->pairs.own(i);
    for_direct(i, row.first, row.soft, [&](int j) {
      const T sum = this->s.rotates && j != own ? direct_rotated_product(i, j, this->top[i]) : direct_weight(i, j);
      if (lane_index() == 0) this->weight[i * this->s.ld_n() + j] = sum * this->inverse[i];
    });
    __syncwarp();
  }
  __device__ T direct_term(int i, int j, int f) const {
    return exponential(this->feature_q[i * this->s.ld_m() + f] +
                       (this->feature_k[j * this->s.ld_m() + f] - this->top[i]));
  }
  __device__ T direct_weight(int i, int j) const {
    return row_sum<T>(this->s.m, [&](int f) { return direct_term(i, j, f); });
  }
  /// Adds the gradients of the direct pair (i, j) to d_feature of query i.
  __device__ void direct_gradients_of_query(int i, int j) const {
    T* const d_a = this->d_feature + i * this->s.ld_m();
    const T g_v = this->g_v[i * this->s.ld_n() + j];
    if (this->s.rotates && j != this->pairs.own(i)) {
      rotated_gradients(i, j, g_v * this->inverse[i], -this->delta[i] * this->inverse[i], true, d_a);
    } else {
      const T gradient = (g_v - this->delta[i]) * this->inverse[i];
      for_columns(this->s.m, [&](int f) { d_a[f] = gpu_fma(direct_term(i, j, f), gradient, d_a[f]); });
    }
    __syncwarp();
  }
  // ---- One query and one key whose small product has underflowed, with a rotated numerator: from the logarithms a and
  // b. With Δ the key's position minus the query's, x = exp(a) and y = exp(b): Σ_f cos Δθ_f (x_f y_f + x_f' y_f') +
  // sin Δθ_f (x_f' y_f - x_f y_f'). ----

  struct RotatedTerms {
    T cosine, sine;                               // of Δθ
    T first, second, first_second, second_first;  // x_f y_f, x_f' y_f', x_f y_f', x_f' y_f
  };
  __device__ RotatedTerms rotated_terms(int i, int j, int f, T top) const {
    const int half = this->s.half();
    const T *turn_q = this->rotations_q + i * 2 * half, *turn_k = this->rotations_k + j * 2 * half;
    const T *a = this->feature_q + i * this->s.ld_m(), *b = this->feature_k + j * this->s.ld_m();
    const T b_first = b[f] - top, b_second = b[half + f] - top;
    return {gpu_fma(turn_q[half + f], turn_k[half + f], turn_q[f] * turn_k[f]),
            gpu_fma(-turn_q[half + f], turn_k[f], turn_q[f] * turn_k[half + f]),
            exponential(a[f] + b_first),
            exponential(a[half + f] + b_second),
            exponential(a[f] + b_second),
            exponential(a[half + f] + b_first)};
  }
  /// The last of an odd number of features, which is not rotated.
  __device__ T rotated_last(int i, int j, T top) const {
    return this->s.m % 2 != 0 ? exponential(this->feature_q[i * this->s.ld_m() + this->s.m - 1] +
                                            (this->feature_k[j * this->s.ld_m() + this->s.m - 1] - top))
                              : T(0);
  }
  /// Returns an upper bound on the logarithm of every term, of the rotated and of the plain product.
  __device__ T rotated_bound(int i, int j) const {
    const int half = this->s.half();
    const T *a = this->feature_q + i * this->s.ld_m(), *b = this->feature_k + j * this->s.ld_m();
    T best = this->s.m % 2 != 0 ? a[this->s.m - 1] + b[this->s.m - 1] : nothing;
    for_columns(half, [&](int f) { best = gpu_max(best, gpu_max(a[f], a[half + f]) + gpu_max(b[f], b[half + f])); });
    return warp_max(best);
  }
  /// Returns exp(-top) times the rotated product.
  __device__ T direct_rotated_product(int i, int j, T top) const {
    return row_sum<T>(this->s.half(),
                      [&](int f) {
                        const RotatedTerms x = rotated_terms(i, j, f, top);
                        return gpu_fma(x.cosine, x.first + x.second, x.sine * (x.second_first - x.first_second));
                      }) +
           rotated_last(i, j, top);
  }
  /// Adds the features' gradients to d_a (of the query) or d_b (of the key). rotated_gradient is the gradient of
  /// exp(-top) times the rotated product, gradient that of exp(-top) times the plain product.
  __device__ void rotated_gradients(int i, int j, T rotated_gradient, T gradient, bool of_query, T* target) const {
    const int half = this->s.half();
    for_columns(half, [&](int f) {
      const RotatedTerms x = rotated_terms(i, j, f, this->top[i]);
      const T first = x.cosine * x.first, second = x.cosine * x.second, second_first = x.sine * x.second_first,
              first_second = x.sine * x.first_second;
      target[f] = gpu_fma(rotated_gradient, of_query ? first - first_second : first + second_first,
                          gpu_fma(gradient, x.first, target[f]));
      T& other = target[half + f];
      other = gpu_fma(rotated_gradient, of_query ? second + second_first : second - first_second,
                      gpu_fma(gradient, x.second, other));
    });
    const T rest = rotated_last(i, j, this->top[i]);
    if (this->s.m % 2 != 0 && lane_index() == 0) target[this->s.m - 1] += (rotated_gradient + gradient) * rest;
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
