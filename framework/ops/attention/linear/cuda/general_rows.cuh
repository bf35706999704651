#pragma once
// The general kernels of linear attention on GPUs: rows in and out of a tile, rotations, pairs. Shared by both feature
// forms.
#include "framework/ops/attention/linear/cuda/general.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Returns exp(x), at most the largest finite number, so that zero times it is zero; NaN for NaN.
__device__ inline float exponential(float x) { return gpu_exp(x > 88.7f ? 88.7f : x); }
__device__ inline double exponential(double x) { return gpu_exp(x > 709.7 ? 709.7 : x); }

/// One head of one sequence, processed by one block, in shared memory. A warp calls the functions of a single row; all
/// threads call the others. Their inputs must have been written before a barrier.
template <class T>
class GeneralHead : public GeneralTile<T> {
 public:
  // The logarithm of zero: finite, so that the difference of two is not NaN; its exponential is zero next to any real
  // one.
  static constexpr T nothing = static_cast<T>(-1e30);
  // Positive features with a rotated numerator: a denominator that is smaller than this, relative to the numerator's
  // terms, is underflow.
  static constexpr T min_rotated_denominator = static_cast<T>(1e-30);

  /// Run by one thread: sets the constants of a head of a sequence.
  __device__ void choose(std::int64_t sequence, std::int64_t query_head) {
    const GeneralArguments<T>& a = this->a;
    const GeneralSizes& s = this->s;
    this->b = sequence;
    this->head = query_head;
    this->kv_head = query_head / (a.n_heads / a.n_kv_heads);
    this->mask = a.mask ? a.mask + sequence * a.n_key : nullptr;
    this->query_center = a.query_center ? a.query_center + query_head * s.d : nullptr;
    this->key_center = a.key_center ? a.key_center + query_head * s.d : nullptr;
    this->scaling = a.scaling ? a.scaling + query_head * s.d : nullptr;
    this->gate = 0;
    if (a.gate) {
      this->gate = a.gate_dtype == DType::float64 ? static_cast<T>(static_cast<const double*>(a.gate)[query_head])
                   : a.gate_dtype == DType::bfloat16
                       ? static_cast<T>(to_compute(static_cast<const __nv_bfloat16*>(a.gate)[query_head]))
                       : static_cast<T>(static_cast<const float*>(a.gate)[query_head]);
    }
    const std::int64_t set = a.direction_sets > 1 ? query_head : 0;
    GpuFeatureRows<T>& f = this->map;
    f.map = a.map;
    f.d = s.d;
    f.m = s.m;
    f.n_projections = static_cast<int>(a.n_projections);
    f.order = static_cast<int>(a.map_options.order);
    f.ld_x = s.ld_d();
    f.ld_m = s.ld_m();
    f.random_projection = a.random_projection ? a.random_projection + set * a.n_projections * s.d : nullptr;
    f.direction_norms = a.direction_norms ? a.direction_norms + set * a.n_projections : nullptr;
    f.constants = gpu_map_constants<T>(a.map_options, s.d, a.mean_over, a.oprf_a ? a.oprf_a[query_head] : T(0));
    for (int warp = 0; warp < 32; ++warp) {
      this->warp_lost[warp] = 0;
      this->warp_least[warp] = 1;
      this->warp_gate[warp] = 0;
    }
  }

  // ---- rows in and out ----

  __device__ std::int64_t address(const GeneralRows& rows, std::int64_t head, std::int64_t row) const {
    return this->b * rows.batch + row * rows.row + head * rows.head;
  }
  __device__ T* per_query(T* all, int i) const {
    return all ? all + (this->b * this->a.n_heads + this->head) * this->a.n_query + this->a.place(this->query_start + i)
               : nullptr;
  }
  __device__ bool is_masked(int j) const { return this->mask && this->mask[this->a.place(this->key_start + j)] == 0; }

  /// Reads key j as input of the map, its value, and the logarithm of its weight. A masked key is a row of zeros with a
  /// weight of zero.
  __device__ void read_key(int j) {
    const bool masked = is_masked(j);
    const std::int64_t at = address(this->a.key, this->kv_head, this->key_start + j);
    T weight = 0;
    for_columns(this->s.d, [&](int c) {
      T x = masked ? T(0) : read_element<T>(this->a.key, at + c);
      if (this->key_center) x -= this->key_center[c];
      if (this->query_center) weight = gpu_fma(this->query_center[c], x, weight);
      if (this->scaling) x /= this->scaling[c];
      this->k[j * this->s.ld_d() + c] = x;
    });
    weight = warp_sum(weight) * this->a.score_scale;
    if (lane_index() == 0) this->key_weight[j] = masked ? nothing : weight;
    if (!read_value(j)) atomicOr(&this->not_finite, 1);
  }
  /// Reads value j. Returns false if the lane found a number that is not finite.
  __device__ bool read_value(int j) const {
    const bool masked = is_masked(j);
    const std::int64_t at = address(this->a.value, this->kv_head, this->key_start + j);
    bool finite = true;
    for_columns(this->s.d_value, [&](int c) {
      const T x = masked ? T(0) : read_element<T>(this->a.value, at + c);
      finite = finite && gpu_is_finite(x);
      this->v[j * this->s.ld_v() + c] = x;
    });
    return finite;
  }
  __device__ void read_query(int i) {
    const std::int64_t at = address(this->a.query, this->head, this->query_start + i);
    for_columns(this->s.d, [&](int c) {
      T x = read_element<T>(this->a.query, at + c);
      if (this->query_center) x -= this->query_center[c];
      if (this->scaling) x *= this->scaling[c];
      this->q[i * this->s.ld_d() + c] = x;
    });
  }
  /// Reads g = d_output of query i and its stored results of forward, and computes δ_i = g_i · output_i. With rms, δ is
  /// zero, and g loses its component along the output.
  __device__ void read_gradient(int i) {
    const std::int64_t at = address(this->a.d_output, this->head, this->query_start + i);
    const std::int64_t at_output = address(this->a.output, this->head, this->query_start + i);
    T* const g = this->g + i * this->s.ld_v();
    const T dot = row_sum<T>(this->s.d_value, [&](int c) {
      g[c] = read_element<T>(this->a.d_output, at + c);
      return g[c] * read_element<T>(this->a.output, at_output + c);
    });
    if (this->a.rms) {
      const T by = dot / static_cast<T>(this->s.d_value);
      for_columns(this->s.d_value,
                  [&](int c) { g[c] = gpu_fma(-by, read_element<T>(this->a.output, at_output + c), g[c]); });
    }
    if (lane_index() != 0) return;
    this->top[i] = *per_query(this->a.top, i);
    this->inverse[i] = *per_query(this->a.inverse_denominator, i);
    this->delta[i] = this->a.rms ? T(0) : dot;
  }

  // ---- rotations ----

  /// Computes the cosines and sines of a token's rotation, composed from those of the call's first position and of 1,
  /// 2, 4, ... tokens in double precision, so that they are as accurate at the millionth token as at the first.
  __device__ void turn(std::int64_t position, T* rotation) const {
    const int half = this->s.half();
    for_columns(half, [&](int f) {
      double cosine = this->a.rotation[f], sine = this->a.rotation[half + f];
      const double* power = this->a.rotation + 2 * half;
      for (std::int64_t rest = position; rest > 0; rest >>= 1, power += 2 * half) {
        if ((rest & 1) == 0) continue;
        const double before = cosine;
        cosine = gpu_fma(-sine, power[half + f], cosine * power[f]);
        sine = gpu_fma(sine, power[f], before * power[half + f]);
      }
      rotation[f] = static_cast<T>(cosine);
      rotation[half + f] = static_cast<T>(sine);
    });
  }
  /// target = R source, or Rᵀ source, for one row of features; source and target may be equal.
  __device__ void rotate_row(const T* rotation, const T* source, T* target, bool back) const {
    const int half = this->s.half();
    for_columns(half, [&](int f) {
      const T x = source[f], y = source[half + f], cosine = rotation[f],
              sine = back ? -rotation[half + f] : rotation[half + f];
      target[f] = gpu_fma(-y, sine, x * cosine);
      target[half + f] = gpu_fma(x, sine, y * cosine);
    });
    if (this->s.m % 2 != 0 && lane_index() == 0) target[this->s.m - 1] = source[this->s.m - 1];
  }
  /// At equal positions the rotations cancel: copies the plain product, so that a query that attends only to itself has
  /// exactly its own value.
  __device__ void take_own_products() const {
    for (int i = block_thread(); i < this->query_rows; i += static_cast<int>(blockDim.x)) {
      const int own = this->pairs.own(i), at = i * this->s.ld_n() + own;
      if (own >= 0) this->rotated_product[at] = this->product[at];
    }
  }

  // ---- exact pairs of the windowed hybrid ----

  /// score = scaled products of query i and near keys plus the gate and the key's weight, minus the query's row
  /// logarithm, so that scores are comparable to the logarithms of feature pairs.
  __device__ void finish_scores(int i) const {
    const T shift = this->gate - this->log_q[i];
    for_columns(this->pairs.columns, [&](int j) {
      T& at = this->score[i * this->s.ld_n() + j];
      at = gpu_fma(at, this->a.score_scale, shift) + this->key_weight[j];
    });
  }
  /// Returns the largest score of row i, or NaN if there is one.
  __device__ T softmax_top(int i, const GeneralPairs::Row& row) const {
    T best = nothing;
    bool lost = false;
    for (int j = row.soft + lane_index(); j < row.end; j += 32) {
      const T value = this->score[i * this->s.ld_n() + j];
      lost = lost || value != value;
      best = gpu_max(best, value);
    }
    best = warp_max(best);
    return __any_sync(full_warp, lost) ? std::numeric_limits<T>::quiet_NaN() : best;
  }
  /// Computes the weights of row i's exact pairs, under its stabiliser. Returns their sum.
  __device__ T softmax_weights(int i, const GeneralPairs::Row& row, T top) const {
    T sum = 0;
    for (int j = row.soft + lane_index(); j < row.end; j += 32) {
      const T w = exponential(this->score[i * this->s.ld_n() + j] - top);
      this->weight[i * this->s.ld_n() + j] = w;
      sum += w;
    }
    return warp_sum(sum);
  }
  /// Replaces score by ∂ loss / ∂ score of row i's exact pairs, zero for other pairs. For keys it also stores their
  /// weights in weight. Returns the sum.
  __device__ T softmax_gradients(int i, const GeneralPairs::Row& row, bool of_keys) const {
    T sum = 0;
    for_columns(this->pairs.columns, [&](int j) {
      const int at = i * this->s.ld_n() + j;
      T gradient = 0;
      if (j >= row.soft && j < row.end) {
        const T w = this->inverse[i] * exponential(this->score[at] - this->top[i]);
        gradient = w * (this->g_v[at] - this->delta[i]);
        if (of_keys) this->weight[at] = w;
      }
      this->score[at] = gradient;
      sum += gradient;
    });
    return warp_sum(sum);
  }
  /// Completes the gradients of row i's feature pairs: rotation and exact pairs.
  __device__ void finish_gradients(int i, const GeneralPairs::Row& row, bool of_keys) {
    __syncwarp();
    if (this->s.rotates && lane_index() == 0) {  // at equal positions both products share one gradient
      const int own = this->pairs.own(i), at = i * this->s.ld_n() + own;
      if (own >= 0) {
        this->d_product[at] += this->d_rotated[at];
        this->d_rotated[at] = 0;
      }
    }
    if (this->pairs.softmax_window == 0) return;
    const T sum = softmax_gradients(i, row, of_keys);
    if (of_keys || lane_index() != 0) return;
    this->warp_gate[warp_index()] += static_cast<double>(sum);
    this->d_log_q[i] -= sum;
  }
  __device__ void add_exact_key_weights() const {
    for (int j = block_thread(); j < this->pairs.columns; j += static_cast<int>(blockDim.x)) {
      T sum = 0;
      for (int i = 0; i < this->query_rows; ++i) sum += this->score[i * this->s.ld_n() + j];
      this->d_key_weight[j] += sum;
    }
  }

  // ---- denominators and outputs ----

  /// Returns what the first of two sweeps stored for query i.
  __device__ T* swept_row(int i) const {
    const std::int64_t row =
        (this->b * this->a.n_heads + this->head) * this->a.n_query + this->a.place(this->query_start + i);
    return this->a.swept + row * (this->s.d_value + 3);
  }
  __device__ bool is_first_sweep() const { return this->a.swept && !this->a.reversed; }
  __device__ bool is_second_sweep() const { return this->a.swept && this->a.reversed; }
  /// Returns the stabiliser of query i, joined with that of the first sweep.
  __device__ T joint_top(int i, T top) const {
    if (!is_second_sweep()) return top;
    const T first = swept_row(i)[this->s.d_value];
    return first < top ? top : first;  // propagates NaN
  }
  /// Run by one warp: closes query i with its sums of weights: computes the inverse, or stores them for the second
  /// sweep.
  __device__ void close_row(int i, T top, T total, T magnitude) {
    if (is_first_sweep()) {
      T* const numbers = swept_row(i) + this->s.d_value;
      if (lane_index() != 0) return;
      numbers[0] = top > -nothing / 2 ? nothing : top;  // no visible key
      numbers[1] = total;
      numbers[2] = magnitude;
      return;
    }
    if (is_second_sweep()) {
      const T* const numbers = swept_row(i) + this->s.d_value;
      const T factor = exponential(numbers[0] - top);
      total = gpu_fma(factor, numbers[1], total);
      magnitude = gpu_fma(factor, numbers[2], magnitude);
    }
    const T inverse = inverse_of(total, magnitude);
    if (lane_index() != 0) return;
    this->top[i] = top;
    this->inverse[i] = inverse;
  }

  /// Returns 1 / N, or zero if N is zero, no key was visible, or N is rounding noise compared with `magnitude`.
  /// magnitude is Σ_j |φ(q_i)| |φ(k_j)|; for logarithms with a rotated numerator it is 1, a bound on the numerator's
  /// largest term; otherwise 0.
  __device__ T inverse_of(T total, T magnitude) {
    if (this->a.rms) return T(1);  // finish_output divides
    if (magnitude > T(0) && (this->a.guarded || this->s.rotates)) {
      const T relative = (this->a.guarded ? gpu_abs(total) : total) / magnitude;
      T& least = this->warp_least[warp_index()];
      if (lane_index() == 0 && relative < least) least = relative;
      if (relative < (this->a.guarded ? this->a.guard : min_rotated_denominator)) total = 0;
    }
    if (gpu_abs(total) < std::numeric_limits<T>::min()) {  // zero, or a subnormal number, whose inverse may be infinite
      if (lane_index() == 0) ++this->warp_lost[warp_index()];
      return T(0);
    }
    return T(1) / total;
  }
  /// Returns the inverse root mean square of a row of d_value numbers of any magnitude; zero for a row of zeros.
  __device__ T inverse_root_mean_square(const T* row) const {
    T largest = 0;
    for_columns(this->s.d_value, [&](int c) { largest = gpu_max(largest, gpu_abs(row[c])); });
    largest = warp_max(largest);
    if (largest < std::numeric_limits<T>::min()) return T(0);
    const T by = T(1) / largest,
            square = row_sum<T>(this->s.d_value, [&](int c) { return row[c] * by * (row[c] * by); });
    return T(1) / gpu_sqrt(square / static_cast<T>(this->s.d_value)) / largest;
  }
  /// Writes the normalised row i of `out` to the output, or stores it for the second sweep.
  __device__ void finish_output(int i) const {
    T* const row = this->out + i * this->s.ld_v();
    if (is_first_sweep()) {
      T* const left = swept_row(i);
      for_columns(this->s.d_value, [&](int c) { left[c] = row[c]; });
      return;
    }
    if (is_second_sweep()) {
      const T* const first = swept_row(i);
      const T factor = exponential(first[this->s.d_value] - this->top[i]);
      for_columns(this->s.d_value, [&](int c) { row[c] = gpu_fma(factor, first[c], row[c]); });
      __syncwarp();
    }
    const T by = this->a.rms ? inverse_root_mean_square(row) : this->inverse[i];
    if (lane_index() == 0 && this->a.top) {
      *per_query(this->a.top, i) = this->top[i];
      *per_query(this->a.inverse_denominator, i) = by;
    }
    const std::int64_t at = address(this->a.output, this->head, this->query_start + i);
    for_columns(this->s.d_value, [&](int c) { write_element<T>(this->a.output, at + c, row[c] * by); });
  }

  // A weight of 0 times a later value that is not finite would put NaN into an earlier row. Such values are left out of
  // the product, and added to the rows to which they are visible.
  __device__ void patch_values(int j) const {
    for_columns(this->s.d_value, [&](int c) {
      T& at = this->v[j * this->s.ld_v() + c];
      if (!gpu_is_finite(at)) at = 0;
    });
  }
  /// Adds the values that were left out to output row i; reads them from global memory.
  __device__ void add_patched_values(int i) const {
    const GeneralPairs::Row row = this->pairs.row(i);
    for_columns(this->s.d_value, [&](int c) {
      for (int j = row.first; j < row.end; ++j) {
        if (is_masked(j)) continue;
        const T x = read_element<T>(this->a.value, address(this->a.value, this->kv_head, this->key_start + j) + c);
        if (!gpu_is_finite(x)) this->out[i * this->s.ld_v() + c] += this->weight[i * this->s.ld_n() + j] * x;
      }
    });
  }

  // ---- sums over all chunks ----

  /// normalizer_f = factor · normalizer_f + term, with compensated summation if the sums use it.
  __device__ void add_to_normalizer(int f, T factor, T term) const {
    const BlockTarget<T> target{this->normalizer, 1, true, nullptr,
                                this->s.compensated ? this->normalizer_lost : nullptr};
    if (factor != T(1)) {
      this->normalizer[f] *= factor;
      if (this->s.compensated) this->normalizer_lost[f] *= factor;
    }
    target.put(f, 0, term);
  }
  __device__ void clear_sums() const {
    for_rows(this->s.m, [&](int f) {
      for_columns(this->s.d_value, [&](int c) {
        this->state[f * this->s.ld_v() + c] = 0;
        if (this->s.compensated) this->sum_lost[f * this->s.ld_v() + c] = 0;
      });
      if (lane_index() != 0) return;
      this->normalizer[f] = this->normalizer_lost[f] = 0;
      this->feature_max[f] = nothing;
    });
  }
  __device__ void load_sums(const T* sum, const T* normalizers, const T* maxima) const {
    for_rows(this->s.m, [&](int f) {
      for_columns(this->s.d_value, [&](int c) {
        this->state[f * this->s.ld_v() + c] = sum[static_cast<std::int64_t>(f) * this->s.d_value + c];
        if (this->s.compensated) this->sum_lost[f * this->s.ld_v() + c] = 0;
      });
      if (lane_index() != 0) return;
      this->normalizer[f] = normalizers[f];
      this->normalizer_lost[f] = 0;
      this->feature_max[f] = maxima[f];
    });
  }
  __device__ void store_sums(T* sum, T* normalizers, T* maxima) const {
    for_rows(this->s.m, [&](int f) {
      for_columns(this->s.d_value, [&](int c) {
        sum[static_cast<std::int64_t>(f) * this->s.d_value + c] = this->state[f * this->s.ld_v() + c];
      });
      if (lane_index() != 0) return;
      normalizers[f] = this->normalizer[f];
      maxima[f] = this->feature_max[f];
    });
  }

  // ---- gradient output ----

  __device__ void write_d_query(int i) const {
    const std::int64_t at = address(this->a.d_query, this->head, this->query_start + i);
    for_columns(this->s.d, [&](int c) {
      const int of_tile = i * this->s.ld_d() + c;
      T x = this->map.finished(this->q[of_tile], this->half_gradients[i], this->d_x[of_tile]);
      if (this->s.softmax_pairs) x = gpu_fma(this->d_x_q[of_tile], this->a.score_scale, x);
      if (this->scaling) x *= this->scaling[c];
      write_element<T>(this->a.d_query, at + c, x);
    });
  }
  __device__ void write_d_key(int j) const {
    const std::int64_t key =
        this->key_start + j - this->a.query_offset;  // earlier keys from the state have no gradient
    if (key < 0) return;
    const bool masked = is_masked(j);
    if (this->a.d_key.data) {
      const std::int64_t at = address(this->a.d_key, this->head, key);
      for_columns(this->s.d, [&](int c) {
        const int of_tile = j * this->s.ld_d() + c;
        T x = this->map.finished(this->k[of_tile], this->half_gradients[j], this->d_x[of_tile]);
        if (this->s.softmax_pairs && this->had_pairs) x = gpu_fma(this->d_x_k[of_tile], this->a.score_scale, x);
        if (this->scaling) x /= this->scaling[c];
        if (this->query_center) x = gpu_fma(this->d_key_weight[j] * this->a.score_scale, this->query_center[c], x);
        write_element<T>(this->a.d_key, at + c, masked ? T(0) : x);
      });
    }
    if (!this->a.d_value.data) return;
    const std::int64_t at = address(this->a.d_value, this->head, key);
    for_columns(this->s.d_value, [&](int c) {
      write_element<T>(this->a.d_value, at + c, masked ? T(0) : this->d_v[j * this->s.ld_v() + c]);
    });
  }

  /// Run by one thread: writes the warps' statistics, added in order.
  __device__ void write_report(std::int64_t segment) const {
    int lost = 0;
    T least = 1;
    for (int warp = 0; warp < warps_in_block(); ++warp) {
      lost += this->warp_lost[warp];
      least = gpu_min(least, this->warp_least[warp]);
    }
    T* const report =
        this->a.report + 2 * ((this->b * this->a.n_heads + this->head) * this->a.query_segments + segment);
    report[0] = static_cast<T>(lost);
    report[1] = least;
  }
  __device__ void write_d_gate(std::int64_t segment) const {
    double sum = 0;
    for (int warp = 0; warp < warps_in_block(); ++warp) sum += this->warp_gate[warp];
    this->a.d_gate[(this->b * this->a.n_heads + this->head) * this->a.query_segments + segment] = sum;
  }
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
