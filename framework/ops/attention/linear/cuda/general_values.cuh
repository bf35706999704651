#pragma once
// The general kernels of linear attention on GPUs for features that are plain values, of either sign, with one
// logarithm per row: PlainFeaturesTile, row by row. plain_features_tile-inl.h explains the arithmetic.
#include "framework/ops/attention/linear/cuda/general_rows.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

template <class T>
class GeneralValues : public GeneralHead<T> {
 public:
  using GeneralHead<T>::nothing;
  static constexpr FeatureForm form = FeatureForm::values;

  // ---- the state: S, z, c and M ----

  __device__ void clear_state() {
    set_scale(nothing, 0);
    this->clear_sums();
  }
  __device__ void load_state(const T* sum, const T* normalizers, const T* maxima, const T* magnitude) {
    set_scale(maxima[0], *magnitude);
    this->load_sums(sum, normalizers, maxima);
  }
  __device__ void store_state(T* sum, T* normalizers, T* maxima, T* magnitude) const {
    this->store_sums(sum, normalizers, maxima);
    if (block_thread() == 0) *magnitude = this->magnitude;
  }

  /// Features for products of pairs.
  __device__ T* near_q() const { return this->feature_q; }
  __device__ T* near_k() const { return this->feature_k; }
  /// Weights of keys for the queries gathered after them, without the factor exp(s_j + e), before and after rotation.
  __device__ T* later_weights() const { return this->feature_k; }
  __device__ T* rotated_later_weights() const { return this->s.rotates ? this->rotated_k : this->feature_k; }

  // ---- features; row_k holds the logarithms of keys' weights, size_k and row_q the norms |ψ| for the guard ----

  __device__ void map_key(int j) const {
    T* const features = this->feature_k + j * this->s.ld_m();
    this->map.template feature_row<form>(this->k + j * this->s.ld_d(), true, features, this->row_k + j);
    __syncwarp();
    const T square = row_dot(features, features, this->s.m);
    if (lane_index() != 0) return;
    this->size_k[j] = gpu_sqrt(square);
    if (this->a.weighted) this->row_k[j] += this->key_weight[j];
  }
  __device__ void map_query(int i) const {
    T* const features = this->feature_q + i * this->s.ld_m();
    this->map.template feature_row<form>(this->q + i * this->s.ld_d(), false, features,
                                         this->s.softmax_pairs ? this->log_q + i : nullptr);
    __syncwarp();
    const T square = row_dot(features, features, this->s.m);
    if (lane_index() == 0) this->row_q[i] = gpu_sqrt(square);
  }
  __device__ void normalise() const {}

  // ---- forward ----

  /// Computes the weights of query i, its stabiliser and its denominator. Weights of near pairs go to weight; those of
  /// the state replace the features in feature_q.
  __device__ void weigh(int i) {
    const GeneralPairs::Row row = this->pairs.row(i);
    T top = nothing, total = 0, magnitude = 0;
    for (int j = row.first + lane_index(); j < row.soft; j += 32) top = gpu_max(top, this->row_k[j]);
    top = warp_max(top);
    if (this->has_state) top = gpu_max(top, this->maximum);
    if (row.soft < row.end) {
      const T exact = this->softmax_top(i, row);
      top = exact < top ? top : exact;  // propagates NaN
    }
    top = this->joint_top(i, top);
    if (top < nothing / 2) top = -nothing;  // no visible key: every weight is zero
    if (this->pairs.columns > 0) total = pair_weights(i, row, top, magnitude);
    if (row.soft < row.end) {
      const T exact = this->softmax_weights(i, row, top);
      total += exact;
      magnitude += exact;
    }
    if (this->has_state) {
      total += past_weights(i, top, magnitude);
      if (this->s.rotates) {
        __syncwarp();
        T* const features = this->feature_q + i * this->s.ld_m();
        this->rotate_row(this->rotations_q + i * 2 * this->s.half(), features, features, false);
      }
    }
    this->close_row(i, top, total, magnitude);
  }

  /// Turns features of keys or queries into their weights in the state, and updates z; the next publish_scale updates c
  /// and M. Run by a block.
  __device__ void absorb_keys() { absorb(this->key_rows, this->feature_k, this->row_k, T(1), nullptr, nullptr); }
  /// For queries: exp(-top_i - e) / N_i ψ_i, with e the running maximum of -top_i; z over -δ_i.
  __device__ void absorb_queries() {
    absorb(this->query_rows, this->feature_q, this->top, T(-1), this->inverse, this->delta);
  }
  __device__ void publish_scale() { set_scale(this->next_maximum, this->next_magnitude); }

  // ---- backward ----

  /// Completes d_feature, which holds S_f · g_i: ∂ loss / ∂ ψ_if = exp(c - top_i) / N_i · (S_f · g_i - δ_i z_f).
  __device__ void finish_gradients_from_state(int i) const {
    const T by = this->inverse[i] * exponential(this->maximum - this->top[i]);
    for_columns(this->s.m, [&](int f) {
      T& at = this->d_feature[i * this->s.ld_m() + f];
      at = by * gpu_fma(-this->delta[i], this->normalizer[f], at);
    });
  }
  /// Completes d_feature, which holds state_f · v_j, and then d_v, which holds ψ_j · state:
  /// d ψ_jf = exp(s_j + e) (state_f · v_j + normalizer_f), d_v_j = exp(s_j + e) Σ_f ψ_jf state_f.
  __device__ void finish_gradients_from_later(int j) const {
    const T by = exponential(this->row_k[j] + this->maximum);
    for_columns(this->s.m, [&](int f) {
      T& at = this->d_feature[j * this->s.ld_m() + f];
      at = by * (at + this->normalizer[f]);
    });
  }
  __device__ void finish_later_values(int j) const {
    const T by = exponential(this->row_k[j] + this->maximum);
    for_columns(this->s.d_value, [&](int c) { this->d_v[j * this->s.ld_v() + c] *= by; });
  }

  __device__ void query_gradients(int i) { pair_gradients(i, false); }
  __device__ void key_gradients(int i) { pair_gradients(i, true); }
  __device__ void direct_key_gradients(int /*j*/) const {}
  __device__ void take_near_gradients(int row, const T* /*features*/) const {
    for_columns(this->s.m, [&](int f) {
      this->d_feature[row * this->s.ld_m() + f] += this->near_gradient[row * this->s.ld_m() + f];
    });
  }
  /// The weights of feature pairs and of keys in the state have the factor exp(s_j), so ∂ loss / ∂ s_j = ψ_j · d ψ_j.
  /// Exact pairs have added theirs to d_key_weight; they depend on the key's own weight, not on the map's logarithm.
  __device__ void key_logarithm(int j) const {
    const T sum = row_dot(this->feature_k + j * this->s.ld_m(), this->d_feature + j * this->s.ld_m(), this->s.m);
    if (lane_index() != 0) return;
    this->spare[j] = sum;
    this->d_key_weight[j] += sum;
  }
  __device__ T d_row_log(int j) const { return this->spare[j]; }

 private:
  /// weight row i = ψ_i·ψ_j exp(s_j - top) for feature pairs, 0 elsewhere. Returns the sum, and adds the sum of norms
  /// to `magnitude`. With a rotated numerator the row holds the weights of the numerator, and the sum is the
  /// denominator's.
  __device__ T pair_weights(int i, const GeneralPairs::Row& row, T top, T& magnitude) const {
    T sum = 0, sizes = 0;
    for_columns(this->pairs.columns, [&](int j) {
      const int at = i * this->s.ld_n() + j;
      T kept = 0;
      if (j >= row.first && j < row.soft) {
        const T e = exponential(this->row_k[j] - top), w = this->product[at] * e;
        sum += w;
        sizes = gpu_fma(this->size_k[j], e, sizes);
        kept = this->s.rotates ? this->rotated_product[at] * e : w;
      }
      this->weight[at] = kept;
    });
    __syncwarp();
    magnitude += warp_sum(sizes) * this->row_q[i];
    return warp_sum(sum);
  }

  /// feature_q row i = ψ_i exp(c - top). Returns its dot product with z.
  __device__ T past_weights(int i, T top, T& magnitude) const {
    const T factor = exponential(this->maximum - top);
    magnitude += this->magnitude * factor * this->row_q[i];
    return row_sum<T>(this->s.m, [&](int f) {
      T& at = this->feature_q[i * this->s.ld_m() + f];
      at *= factor;
      return at * this->normalizer[f];
    });
  }

  __device__ void set_scale(T maximum, T magnitude) {
    if (block_thread() != 0) return;
    this->maximum = maximum;
    this->magnitude = magnitude;
  }

  /// Raises the maximum to include sign · logs (each warp computes it); factors = rescaling of the sums so far; rows =
  /// features · exp(sign · logs - maximum) · by; adds the norms of keys (by null) to M. normalizer = factor ·
  /// normalizer
  /// + Σ_i rows_i, over -δ_i if δ is given.
  __device__ void absorb(int rows, T* features, const T* logs, T sign, const T* by, const T* gradients) {
    T after = this->maximum, sum_of_sizes = this->magnitude;
    for (int i = lane_index(); i < rows; i += 32) after = gpu_max(after, sign * logs[i]);
    after = warp_max(after);
    const T factor = exponential(this->maximum - after);
    if (!by) {
      T sizes = 0;
      for (int i = lane_index(); i < rows; i += 32)
        sizes = gpu_fma(exponential(logs[i] - after), this->size_k[i], sizes);
      sum_of_sizes = gpu_fma(sum_of_sizes, factor, warp_sum(sizes));
    }
    for (int f = block_thread(); f < this->s.m; f += static_cast<int>(blockDim.x)) {
      T sum = 0;
      for (int i = 0; i < rows; ++i) {
        T& at = features[i * this->s.ld_m() + f];
        at *= exponential(sign * logs[i] - after) * (by ? by[i] : T(1));
        sum = gradients ? gpu_fma(-gradients[i], at, sum) : sum + at;
      }
      this->add_to_normalizer(f, factor, sum);
      this->factors[f] = factor;
      this->feature_max[f] = after;
    }
    if (block_thread() != 0) return;
    this->next_maximum = after;
    this->next_magnitude = sum_of_sizes;
  }

  /// d_product row i = ∂ loss / ∂ product_ij; with a rotated numerator, d_rotated has the numerator's part. For keys
  /// also weight row i = weights of the numerator over N_i.
  __device__ void pair_gradients(int i, bool of_keys) {
    const GeneralPairs::Row row = this->pairs.row(i);
    for_columns(this->pairs.columns, [&](int j) {
      const int at = i * this->s.ld_n() + j;
      const bool counts = j >= row.first && j < row.soft;
      const T factor = counts ? this->inverse[i] * exponential(this->row_k[j] - this->top[i]) : T(0);
      if (of_keys)
        this->weight[at] = counts ? (this->s.rotates ? this->rotated_product[at] : this->product[at]) * factor : T(0);
      if (this->s.rotates) {
        this->d_rotated[at] = counts ? factor * this->g_v[at] : T(0);
        this->d_product[at] = counts ? -(factor * this->delta[i]) : T(0);
      } else {
        this->d_product[at] = counts ? factor * (this->g_v[at] - this->delta[i]) : T(0);
      }
    });
    this->finish_gradients(i, row, of_keys);
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
