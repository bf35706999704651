#pragma once
// The general form of linear attention on GPUs for features that are plain numbers, of either sign, with one logarithm
// a row: what PlainFeaturesTile does, row by row. The arithmetic is explained in plain_features_tile-inl.h.
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

  /// Features as products of pairs take them.
  __device__ T* near_q() const { return this->feature_q; }
  __device__ T* near_k() const { return this->feature_k; }
  /// The weights, but for exp(s_j + e), with which keys meet the queries gathered behind them, before and after they
  /// are turned.
  __device__ T* later_weights() const { return this->feature_k; }
  __device__ T* turned_later_weights() const { return this->s.rotates ? this->rotated_k : this->feature_k; }

  // ---- features; row_k holds the logarithms of keys' weights, size_k and row_q the norms |ψ|, which the guard needs
  // ----

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

  /// Weights of query i: of near pairs in weight, of the state in feature_q, which is used up; its stabiliser and
  /// denominator.
  __device__ void weigh(int i) {
    const GeneralPairs::Row row = this->pairs.row(i);
    T top = nothing, total = 0, magnitude = 0;
    for (int j = row.first + lane_index(); j < row.soft; j += 32) top = gpu_max(top, this->row_k[j]);
    top = warp_max(top);
    if (this->seen) top = gpu_max(top, this->maximum);
    if (row.soft < row.end) {
      const T exact = this->softmax_top(i, row);
      top = exact < top ? top : exact;  // a NaN stays
    }
    top = this->joint_top(i, top);
    if (top < nothing / 2) top = -nothing;  // not one key was seen: every weight is zero
    if (this->pairs.columns > 0) total = pair_weights(i, row, top, magnitude);
    if (row.soft < row.end) {
      const T exact = this->softmax_weights(i, row, top);
      total += exact;
      magnitude += exact;
    }
    if (this->seen) {
      total += past_weights(i, top, magnitude);
      if (this->s.rotates) {
        __syncwarp();
        T* const features = this->feature_q + i * this->s.ld_m();
        this->rotate_row(this->rotations_q + i * 2 * this->s.half(), features, features, false);
      }
    }
    this->close_row(i, top, total, magnitude);
  }

  /// Keys, or queries, to be added to the state: their features become their weights there; z follows, and with the
  /// next publish_scale c and M. A block.
  __device__ void absorb_keys() { absorb(this->key_rows, this->feature_k, this->row_k, T(1), nullptr, nullptr); }
  /// Of queries: exp(-top_i - e) / N_i ψ_i, e the running maximum of -top_i; z over -δ_i.
  __device__ void absorb_queries() {
    absorb(this->query_rows, this->feature_q, this->top, T(-1), this->inverse, this->delta);
  }
  __device__ void publish_scale() { set_scale(this->next_maximum, this->next_magnitude); }

  // ---- backward ----

  /// d_feature, of which S_f · g_i is there: ∂ loss / ∂ ψ_if = exp(c - top_i) / N_i · (S_f · g_i - δ_i z_f).
  __device__ void finish_slopes_from_state(int i) const {
    const T by = this->inverse[i] * exponential(this->maximum - this->top[i]);
    for_columns(this->s.m, [&](int f) {
      T& at = this->d_feature[i * this->s.ld_m() + f];
      at = by * gpu_fma(-this->delta[i], this->normalizer[f], at);
    });
  }
  /// d_feature, of which state_f · v_j is there, and then d_v, of which ψ_j · state is:
  /// d ψ_jf = exp(s_j + e) (state_f · v_j + normalizer_f), d_v_j = exp(s_j + e) Σ_f ψ_jf state_f.
  __device__ void finish_slopes_from_later(int j) const {
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

  __device__ void query_slopes(int i) { slopes(i, false); }
  __device__ void key_slopes(int i) { slopes(i, true); }
  __device__ void direct_key_slopes(int /*j*/) const {}
  __device__ void take_near_slopes(int row, const T* /*features*/) const {
    for_columns(this->s.m, [&](int f) {
      this->d_feature[row * this->s.ld_m() + f] += this->near_slope[row * this->s.ld_m() + f];
    });
  }
  /// Feature pairs and keys in the state weigh exp(s_j), so ∂ loss / ∂ s_j = ψ_j · d ψ_j; exact pairs have put theirs
  /// into d_key_weight, which knows only the key's own weight and not the map's logarithm.
  __device__ void key_logarithm(int j) const {
    const T sum = row_dot(this->feature_k + j * this->s.ld_m(), this->d_feature + j * this->s.ld_m(), this->s.m);
    if (lane_index() != 0) return;
    this->spare[j] = sum;
    this->d_key_weight[j] += sum;
  }
  __device__ T d_row_log(int j) const { return this->spare[j]; }

 private:
  /// weight row i = ψ_i·ψ_j exp(s_j - top) for feature pairs, 0 elsewhere; returns its sum, and adds the sum of sizes
  /// to `magnitude`. With positions in the numerator the row holds the numerator's weights, the sum is the
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

  /// feature_q row i = ψ_i exp(c - top); returns its product with z.
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

  /// The maximum over sign · logs as well, which every warp finds for itself; factors = what this costs the sums so
  /// far; rows of features times exp(sign · logs - maximum) · by; M follows keys (by null). normalizer = factor ·
  /// normalizer + Σ_i rows_i, over -δ_i where δ is given.
  __device__ void absorb(int rows, T* features, const T* logs, T sign, const T* by, const T* slopes) {
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
        sum = slopes ? gpu_fma(-slopes[i], at, sum) : sum + at;
      }
      this->add_to_normalizer(f, factor, sum);
      this->factors[f] = factor;
      this->feature_max[f] = after;
    }
    if (block_thread() != 0) return;
    this->next_maximum = after;
    this->next_magnitude = sum_of_sizes;
  }

  /// d_product row i = ∂ loss / ∂ product_ij; with positions in the numerator its numerator's part in d_rotated. Of
  /// keys also weight row i = weights of the numerator over N_i.
  __device__ void slopes(int i, bool of_keys) {
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
    this->finish_slopes(i, row, of_keys);
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
