// What the tiles of linear attention share in both feature forms. Per-target include guard; see
// framework/simd/simd-inl.h.
#if defined(FURLONG_LINEAR_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_LINEAR_ATTENTION_TILE_INL_H_
#undef FURLONG_LINEAR_ATTENTION_TILE_INL_H_
#else
#define FURLONG_LINEAR_ATTENTION_TILE_INL_H_
#endif

#include <limits>

#include "framework/core/error.h"
#include "framework/ops/attention/linear/cpu/products-inl.h"
#include "framework/ops/attention/linear/cpu/rotation-inl.h"
#include "framework/ops/attention/linear/cpu/rows-inl.h"
#include "framework/ops/attention/linear/linear_attention_arguments.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

/// One head's tile of a chunk of queries and a block of keys, and the state of earlier keys.
template <class T>
class LinearAttentionTile : protected TileProducts<T> {
  using Products = TileProducts<T>;

 public:
  using Products::s, Products::rounded, Products::exponential;
  using D = typename Lanes<T>::D;
  using V = typename Lanes<T>::V;
  static constexpr D d{};
  // The logarithm of zero: finite, so that the difference of two is not NaN; its exponential is zero next to any real
  // one.
  static constexpr T nothing = static_cast<T>(-1e30);
  // Positive features with a rotated numerator: a denominator that is smaller than this, relative to the numerator's
  // terms, is underflow.
  static constexpr T min_rotated_denominator = static_cast<T>(1e-30);

  LinearAttentionTile(const LinearAttentionSizes& sizes, T* memory, std::int64_t elements, bool with_backward)
      : Products(sizes), next_(memory) {
    state = take(s.m * s.ld_v);
    normalizer = take(s.ld_m);
    running_maximum = take(s.ld_m);
    q = take(s.chunk * s.ld_d);
    k = take(s.near * s.ld_d);
    v = take(s.near * s.ld_v);
    out = take(s.chunk * s.ld_v);
    feature_q = take(s.chunk * s.ld_m);
    feature_k = take(s.near * s.ld_m);
    normal_q = take(s.chunk * s.ld_m);
    normal_k = take(s.near * s.ld_m);
    work = take(s.chunk * s.ld_m);
    const std::int64_t pairs = s.padded(s.chunk) * s.ld_n, widest = std::max(s.chunk, s.near), line = s.padded(widest);
    product = take(pairs);
    weight = take(pairs);
    if (s.softmax_pairs) score = take(pairs);
    transposed_k = take(std::max(s.bfloat16 ? 0 : s.ld_m, s.softmax_pairs ? s.ld_d : 0) * s.ld_n);
    for (T** row : {&row_q, &row_k, &log_q, &key_weight, &top_, &inverse_, &delta, &size_k}) *row = take(line);
    map_scratch = take(widest * (s.ld_m + s.ld_d));
    if (s.bfloat16) {
      this->left_ = reinterpret_cast<simd::BFloat16Pair*>(take(s.operand_pairs()));
      this->right_ = reinterpret_cast<simd::BFloat16Pair*>(take(s.operand_pairs()));
    }
    if (s.splits_sums()) {
      this->high_ = reinterpret_cast<simd::BFloat16Pair*>(take(s.sum_pairs()));
      this->low_ = reinterpret_cast<simd::BFloat16Pair*>(take(s.sum_pairs()));
    }
    if (s.compensated) {
      sum_term = take(s.sum_elements());
      sum_lost = take(s.sum_elements());
      normalizer_term = take(s.ld_m);
      normalizer_lost = take(s.ld_m);
    }
    if (s.rotates) {
      rotated_q = take(s.chunk * s.ld_m);
      rotated_k = take(s.near * s.ld_m);
      rotated_product = take(pairs);
      rotations_q = {take(s.chunk * 2 * s.ld_rotations), s.m, s.ld_rotations};
      rotations_k = {take(s.near * 2 * s.ld_rotations), s.m, s.ld_rotations};
    }
    if (with_backward) {
      transposed = take(s.ld_v * s.ld_m);
      g = take(s.chunk * s.ld_v);
      d_v = take(s.chunk * s.ld_v);
      d_x = take(s.chunk * s.ld_d);
      d_x_q = take(s.chunk * s.ld_d);
      d_x_k = take(s.chunk * s.ld_d);
      d_feature_q = take(s.chunk * s.ld_m);
      d_feature_k = take(s.chunk * s.ld_m);
      d_product = take(pairs);
      g_v = take(pairs);
      if (s.softmax_pairs) d_score = take(pairs);
      if (s.rotates) d_rotated = take(pairs);
      if (!s.bfloat16) v_transposed = take(s.ld_v * s.ld_n);
      for (T** row : {&d_log_q, &d_key_weight, &spare}) *row = take(s.padded(s.chunk));
    }
    require(next_ - memory <= elements, "linear_attention: scratch has {} elements, expected at least {}", elements,
            next_ - memory);
  }

  bool has_state = false;  // whether the state is not empty
  bool rms = false, guarded = false;
  T guard = 0, gate = 0, score_scale = 1;
  double d_gate = 0;
  Sweep sweep = Sweep::only;
  std::int64_t step = 1;  // from one query's row in memory to the next: -1 if a sweep walks backward in time
  UpcomingRows upcoming;
  SweptRows<T> swept{};  // rows of the chunk's queries from the first of two sweeps
  // Statistics of the denominators so far.
  std::int64_t lost_rows = 0;
  T least_denominator = 1;

  T *state, *normalizer, *running_maximum;
  T *q, *k, *v, *out, *feature_q, *feature_k, *normal_q, *normal_k, *work, *product, *weight, *score = nullptr,
                                                                                              *transposed_k;
  T *row_q, *row_k;  // logarithms subtracted from each row
  T* log_q;          // row logarithms of the queries (softmax pairs need them)
  T* key_weight;     // logarithm of each near key's weight, from centering and mask
  T *top_, *inverse_, *delta, *size_k, *map_scratch;
  T *transposed = nullptr, *g = nullptr, *d_v = nullptr, *d_x = nullptr, *d_x_q = nullptr, *d_x_k = nullptr;
  T *d_feature_q = nullptr, *d_feature_k = nullptr, *d_product = nullptr, *g_v = nullptr, *d_score = nullptr,
    *v_transposed = nullptr;
  T *d_log_q = nullptr, *d_key_weight = nullptr, *spare = nullptr;
  T *sum_term = nullptr, *sum_lost = nullptr, *normalizer_term = nullptr, *normalizer_lost = nullptr;
  // With a rotated numerator: rotated features and their products.
  T *rotated_q = nullptr, *rotated_k = nullptr, *rotated_product = nullptr, *d_rotated = nullptr;
  TokenRotations<T> rotations_q, rotations_k;

  /// Computes δ_i = g_i · output_i, and loads the saved stabilizers of this chunk's queries. With rms, δ is zero, and g
  /// loses its component along the output.
  void gradient_rows(std::int64_t rows, const T* top, const T* inverse) {
    for (std::int64_t i = 0; i < rows; ++i) {
      top_[i] = top[i * step];
      inverse_[i] = inverse[i * step];
      const T dot = product_of(g + i * s.ld_v, out + i * s.ld_v, s.d_value);
      delta[i] = rms ? T{0} : dot;
      if (!rms) continue;
      const V by = hn::Set(d, dot / static_cast<T>(s.d_value));
      for_lanes<T>(s.d_value, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
        T* at = g + i * s.ld_v + j;
        store_n(hn::NegMulAdd(by, load_n(out + i * s.ld_v + j, n), load_n(at, n)), at, n);
      });
    }
  }

  /// Transposes the state for the first sweep of backward.
  void transpose_state() { transpose<T>(s.m, s.d_value, state, s.ld_v, transposed, s.ld_m); }

  static T product_of(const T* x, const T* y, std::int64_t width) {
    V sum = hn::Zero(d);
    for_lanes<T>(width, [&](std::int64_t j, std::int64_t n)
                            HWY_ATTR { sum = hn::MulAdd(load_n(x + j, n), load_n(y + j, n), sum); });
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }
  static void scale_row(T* row, std::int64_t width, T factor) {
    const V by = hn::Set(d, factor);
    for_lanes<T>(
        width, [&](std::int64_t j, std::int64_t n) HWY_ATTR { store_n(hn::Mul(load_n(row + j, n), by), row + j, n); });
  }

 protected:
  using Products::products, Products::from_columns, Products::from_rows;

  /// Mask of lanes [from, to) in the vector that starts at column j.
  static auto between(std::int64_t j, std::int64_t from, std::int64_t to) {
    const std::int64_t lanes = Lanes<T>::count();
    const auto below = [&](std::int64_t end) {
      return hn::FirstN(d, static_cast<std::size_t>(std::clamp<std::int64_t>(end - j, 0, lanes)));
    };
    return hn::AndNot(below(from), below(to));
  }

  /// score = scaled products of queries and near keys plus the gate and the key's weight, minus the query's row
  /// logarithm, so that scores are comparable to the logarithms of feature pairs.
  void softmax_scores(std::int64_t rows, const NearPairs& pairs) {
    if (pairs.softmax_window == 0) return;
    transpose<T>(pairs.columns, s.d, k, s.ld_d, transposed_k, s.ld_n);
    small_gemm_nn<T>(rows, pairs.columns, s.d, q, s.ld_d, transposed_k, s.ld_n, score, s.ld_n, false);
    const V scale = hn::Set(d, score_scale);
    for (std::int64_t i = 0; i < rows; ++i) {
      const V shift = hn::Set(d, gate - log_q[i]);
      T* row = score + i * s.ld_n;
      for_lanes<T>(pairs.columns, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
        store_n(hn::Add(hn::MulAdd(load_n(row + j, n), scale, shift), load_n(key_weight + j, n)), row + j, n);
      });
    }
  }
  /// The feature weights of row i if it has no pairs with features: zeros. Returns their sum.
  T clear_weights(std::int64_t i, const NearPairs& pairs) {
    std::fill_n(weight + i * s.ld_n, s.padded(pairs.columns), T{0});
    return 0;
  }
  T softmax_top(std::int64_t i, const NearPairs::Row& row) const {
    T best = nothing;
    for (std::int64_t j = row.soft; j < row.end; ++j) {
      const T value = score[i * s.ld_n + j];
      best = value > best || std::isnan(value) ? value : best;
    }
    return best;
  }
  /// Computes the weights of row i's exact pairs, under its stabilizer. Returns their sum.
  T softmax_weights(std::int64_t i, const NearPairs::Row& row, T top) {
    const V shift = hn::Set(d, top);
    V sum = hn::Zero(d);
    const std::int64_t lanes = Lanes<T>::count();
    for (std::int64_t j = row.soft / lanes * lanes; j < row.end; j += lanes) {
      const std::int64_t at = i * s.ld_n + j;
      const auto in = between(j, row.soft, row.end);
      const V w = hn::IfThenElseZero(in, rounded(exp(d, hn::Sub(hn::LoadU(d, score + at), shift))));
      sum = hn::Add(sum, w);
      hn::StoreU(hn::IfThenElse(in, w, hn::LoadU(d, weight + at)), d, weight + at);
    }
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }
  /// Computes the gradients of row i's exact pairs: weight, and d_score = ∂ loss / ∂ score, zero for other pairs.
  void softmax_gradients(std::int64_t i, const NearPairs& pairs, const NearPairs::Row& row) {
    const V top = hn::Set(d, top_[i]), inverse = hn::Set(d, inverse_[i]), less = hn::Set(d, delta[i]);
    V total = hn::Zero(d);
    const std::int64_t lanes = Lanes<T>::count();
    for (std::int64_t j = 0; j < pairs.columns; j += lanes) {
      const std::int64_t at = i * s.ld_n + j;
      const auto in = between(j, row.soft, row.end);
      const V w = hn::IfThenElseZero(in, hn::Mul(inverse, exp(d, hn::Sub(hn::LoadU(d, score + at), top))));
      const V gradient = hn::IfThenElseZero(in, hn::Mul(w, hn::Sub(hn::LoadU(d, g_v + at), less)));
      hn::StoreU(hn::IfThenElse(in, w, hn::LoadU(d, weight + at)), d, weight + at);
      hn::StoreU(gradient, d, d_score + at);
      hn::StoreU(hn::Add(hn::LoadU(d, d_key_weight + j), gradient), d, d_key_weight + j);
      total = hn::Add(total, gradient);
    }
    const T sum = hn::GetLane(hn::SumOfLanes(d, total));
    d_gate += static_cast<double>(sum);
    d_log_q[i] = -sum;
  }
  /// Overwrites d_x_q and adds to d_x_k, from d_score.
  void softmax_inputs(std::int64_t rows, const NearPairs& pairs) {
    small_gemm_nn<T>(rows, s.d, pairs.columns, d_score, s.ld_n, k, s.ld_d, d_x_q, s.ld_d, false);
    for (std::int64_t i = 0; i < rows; ++i) {
      scale_row(d_x_q + i * s.ld_d, s.d, score_scale);
      scale_row(d_score + i * s.ld_n, pairs.columns, score_scale);
    }
    small_gemm_tn<T>(pairs.columns, s.d, rows, d_score, s.ld_n, q, s.ld_d, d_x_k, s.ld_d, true);
  }

  /// Returns the stabilizer of row i, joined with that of the first sweep.
  T joint_top(std::int64_t i, T top) const {
    return sweep == Sweep::second ? std::max(swept.top[i * step], top) : top;  // propagates a NaN of the first sweep
  }
  T first_factor(std::int64_t i) const { return std::exp(swept.top[i * step] - top_[i]); }
  /// Closes row i with the sums of its weights under `top`: computes the inverse, or stores them for the second sweep.
  void close_row(std::int64_t i, T top, T total, T magnitude) {
    top_[i] = top;
    if (sweep == Sweep::first) {
      swept.top[i] = top > -nothing / 2 ? nothing : top;  // no visible key
      swept.total[i] = total;
      swept.magnitude[i] = magnitude;
      return;
    }
    if (sweep == Sweep::second) {
      total += first_factor(i) * swept.total[i * step];
      magnitude += first_factor(i) * swept.magnitude[i * step];
    }
    inverse_[i] = inverse_of(total, magnitude);
  }

  /// Returns 1 / N, or zero if N is zero, no key was visible, or N is rounding noise compared with `magnitude`.
  /// magnitude is Σ_j |φ(q_i)| |φ(k_j)|; for log features with a rotated numerator it is 1, a bound on the numerator's
  /// largest term; otherwise 0.
  T inverse_of(T total, T magnitude) {
    if (rms) return T{1};  // finish() divides
    if (guarded && magnitude > 0) {
      const T relative = std::abs(total) / magnitude;
      least_denominator = std::min(least_denominator, relative);
      if (relative < guard) total = 0;
    } else if (s.rotates && magnitude > 0) {
      const T relative = total / magnitude;
      least_denominator = std::min(least_denominator, relative);
      if (relative < min_rotated_denominator) total = 0;
    }
    // Zero, or a subnormal number, whose inverse may be infinite.
    if (std::abs(total) < std::numeric_limits<T>::min()) {
      ++lost_rows;
      return T{0};
    }
    return 1 / total;
  }
  /// Returns the inverse root mean square of a row of d_value numbers of any magnitude; zero for a row of zeros.
  T inverse_root_mean_square(const T* row) const {
    V most = hn::Zero(d);
    for_lanes<T>(s.d_value,
                 [&](std::int64_t j, std::int64_t n) HWY_ATTR { most = hn::Max(most, hn::Abs(load_n(row + j, n))); });
    const T largest = hn::GetLane(hn::MaxOfLanes(d, most));
    if (largest < std::numeric_limits<T>::min()) return T{0};
    const V by = hn::Set(d, 1 / largest);
    V sum = hn::Zero(d);
    for_lanes<T>(s.d_value, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
      const V value = hn::Mul(load_n(row + j, n), by);
      sum = hn::MulAdd(value, value, sum);
    });
    return 1 / std::sqrt(hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<T>(s.d_value)) / largest;
  }

  /// Normalizes the rows of `out`, or stores them for the second sweep.
  void finish(std::int64_t rows, T* keep_top, T* keep_inverse) {
    if (sweep == Sweep::first) {
      std::copy_n(out, rows * s.ld_v, swept.sum);
      return;
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      if (sweep == Sweep::second) {
        const V by = hn::Set(d, first_factor(i));
        const T* first = swept.sum + i * step * s.ld_v;
        T* row = out + i * s.ld_v;
        for_lanes<T>(s.d_value, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
          store_n(hn::MulAdd(by, load_n(first + j, n), load_n(row + j, n)), row + j, n);
        });
      }
      if (rms) {
        inverse_[i] = inverse_root_mean_square(out + i * s.ld_v);
      }
      if (keep_top) keep_top[i * step] = top_[i];
      if (keep_inverse) keep_inverse[i * step] = inverse_[i];
      scale_row(out + i * s.ld_v, s.d_value, inverse_[i]);
    }
  }

  /// out = weight · v. If a value is not finite, a weight of 0 times a later value would put NaN into an earlier row.
  /// Then each row sums only its visible values, in the same order (and in the same pairs), so with the same bits.
  void weighted_values(std::int64_t rows, const NearPairs& pairs) {
    V sum = hn::Zero(d);
    for (std::int64_t j = 0; j < pairs.columns; ++j) {
      for_lanes<T>(s.d_value, [&](std::int64_t c, std::int64_t n)
                                  HWY_ATTR { sum = hn::MulAdd(load_n(v + j * s.ld_v + c, n), hn::Zero(d), sum); });
    }
    if (hn::AllTrue(d, hn::Eq(sum, hn::Zero(d)))) {
      from_columns(rows, pairs, weight, v, s.d_value, s.ld_v, out);
      return;
    }
    for (std::int64_t i = 0; i < rows; ++i)
      this->row_product(i, pairs, weight + i * s.ld_n, v, s.d_value, s.ld_v, out + i * s.ld_v);
  }

  // ---- sums over all chunks ----

  /// Returns where terms of the normalizer are added. Call end_normalizer_sum() after them.
  T* begin_normalizer_sum() {
    if (s.compensated) std::fill_n(normalizer_term, s.ld_m, T{0});
    return s.compensated ? normalizer_term : normalizer;
  }
  void end_normalizer_sum() {
    if (s.compensated) compensate(1, s.m, s.ld_m, normalizer_term, normalizer, normalizer_lost);
  }
  /// normalizer += Σ_i factor_i matrix_i; factor null: 1.
  void add_to_normalizer(std::int64_t rows, const T* matrix, const T* factor = nullptr) {
    T* const target = begin_normalizer_sum();
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      V sum = load_n(target + f, n);
      for (std::int64_t i = 0; i < rows; ++i)
        sum = hn::MulAdd(hn::Set(d, factor ? factor[i] : T{1}), load_n(matrix + i * s.ld_m + f, n), sum);
      store_n(sum, target + f, n);
    });
    end_normalizer_sum();
  }
  /// sum [M, N] += a[rows, M]ᵀ · b[rows, N].
  void add_to_sum(std::int64_t M, std::int64_t N, std::int64_t rows, const T* a, std::int64_t lda, const T* b,
                  std::int64_t ldb, T* sum, std::int64_t ld) {
    this->add_product(M, N, rows, a, lda, b, ldb, s.compensated ? sum_term : sum, ld, !s.compensated);
    if (s.compensated) compensate(M, N, ld, sum_term, sum, sum_lost);
  }
  // S and z of the state. Rows are padded in the tile, but not in storage: [m, d_value] and [m].
  void clear_sums() {
    has_state = false;
    std::fill_n(state, s.m * s.ld_v, T{0});
    std::fill_n(normalizer, s.ld_m, T{0});
    if (transposed) std::fill_n(transposed, s.ld_v * s.ld_m, T{0});
    forget_lost();
  }
  void load_sums(const T* sum, const T* normalizers) {
    has_state = true;
    std::copy_n(normalizers, s.m, normalizer);
    for (std::int64_t f = 0; f < s.m; ++f) std::copy_n(sum + f * s.d_value, s.d_value, state + f * s.ld_v);
  }
  void store_sums(T* sum, T* normalizers) const {
    std::copy_n(normalizer, s.m, normalizers);
    for (std::int64_t f = 0; f < s.m; ++f) std::copy_n(state + f * s.ld_v, s.d_value, sum + f * s.d_value);
  }
  void forget_lost() {
    if (!s.compensated) return;
    std::fill_n(sum_lost, s.sum_elements(), T{0});
    std::fill_n(normalizer_lost, s.ld_m, T{0});
  }
  /// target += term. `lost` holds the rounding error of earlier additions.
  static void compensate(std::int64_t rows, std::int64_t width, std::int64_t ld, const T* term, T* target, T* lost) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for_lanes<T>(width, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
        const std::int64_t at = i * ld + j;
        const V before = load_n(target + at, n), add = hn::Sub(load_n(term + at, n), load_n(lost + at, n)),
                after = hn::Add(before, add);
        store_n(hn::Sub(hn::Sub(after, before), add), lost + at, n);
        store_n(after, target + at, n);
      });
    }
  }

  /// rotated_product = R features_q · R features_k. At equal positions the rotations cancel, and the plain product is
  /// copied, so that a query that attends only to itself has exactly its own value.
  void rotated_products(std::int64_t rows, const NearPairs& pairs, const T* features_q, const T* features_k) {
    rotations_q.rotate(rows, features_q, rotated_q, s.ld_m);
    rotations_k.rotate(pairs.columns, features_k, rotated_k, s.ld_m);
    products(rows, pairs, rotated_q, rotated_k, s.m, s.ld_m, transposed_k, rotated_product);
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t own = pairs.offset + i;
      if (own >= 0 && own < pairs.columns) rotated_product[i * s.ld_n + own] = product[i * s.ld_n + own];
    }
  }
  /// At equal positions the products are the same: moves the gradient of the rotated product to the plain product.
  void join_gradients_of_own_key(std::int64_t i, const NearPairs& pairs) {
    const std::int64_t own = pairs.offset + i;
    if (own < 0 || own >= pairs.columns) return;
    d_product[i * s.ld_n + own] += d_rotated[i * s.ld_n + own];
    d_rotated[i * s.ld_n + own] = 0;
  }
  /// Overwrites d_feature_q and work [columns, m] (for keys), from the gradients of both products; the rows are those
  /// of rotated_products.
  void rotated_feature_gradients(std::int64_t rows, std::int64_t columns, const T* features_q, const T* features_k) {
    small_gemm_nn<T>(rows, s.m, columns, d_rotated, s.ld_n, rotated_k, s.ld_m, d_feature_q, s.ld_m, false);
    rotations_q.rotate(rows, d_feature_q, d_feature_q, s.ld_m, true);
    small_gemm_nn<T>(rows, s.m, columns, d_product, s.ld_n, features_k, s.ld_m, d_feature_q, s.ld_m, true);
    small_gemm_tn<T>(columns, s.m, rows, d_rotated, s.ld_n, rotated_q, s.ld_m, work, s.ld_m, false);
    rotations_k.rotate(columns, work, work, s.ld_m, true);
    small_gemm_tn<T>(columns, s.m, rows, d_product, s.ld_n, features_q, s.ld_m, work, s.ld_m, true);
  }

  void add_rows(std::int64_t rows, const T* source, T* target) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const std::int64_t at = i * s.ld_m + f;
        store_n(hn::Add(load_n(target + at, n), load_n(source + at, n)), target + at, n);
      });
    }
  }

  /// running_maximum = max(running_maximum, max_i (rows_i - less_i)). Calls `rescale` with exp(old - new) for each run
  /// of features. Both features of a rotated pair get the larger maximum. Overwrites the first row of `work`.
  template <class Rescale>
  void raise_maxima(std::int64_t rows, const T* log_rows, const T* less, const Rescale& rescale) {
    constexpr std::int64_t block = 4;  // rows whose maxima stay in registers
    T* const raised = work;
    std::copy_n(running_maximum, s.m, raised);
    for (std::int64_t i = 0; i < rows; i += block) {
      const std::int64_t end = std::min(rows, i + block);
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        V top = load_n(raised + f, n);
        for (std::int64_t j = i; j < end; ++j) {
          const V row = load_n(log_rows + j * s.ld_m + f, n);
          top = hn::Max(top, less ? hn::Sub(row, hn::Set(d, less[j])) : row);
        }
        store_n(top, raised + f, n);
      });
    }
    const std::int64_t half = s.rotates ? s.m / 2 : 0;
    for_lanes<T>(half, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V top = hn::Max(load_n(raised + f, n), load_n(raised + half + f, n));
      store_n(top, raised + f, n);
      store_n(top, raised + half + f, n);
    });
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V top = load_n(raised + f, n), before = load_n(running_maximum + f, n);
      store_n(top, running_maximum + f, n);
      rescale(f, exp(d, hn::Sub(before, top)), n);
    });
  }

  /// Products g_i · v_j of a chunk of queries and a chunk of keys.
  void gradient_products(std::int64_t rows, const NearPairs& pairs) {
    products(rows, pairs, g, v, s.d_value, s.ld_v, v_transposed, g_v);
  }

 private:
  T* take(std::int64_t elements) { return std::exchange(next_, next_ + elements); }
  T* next_;
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
