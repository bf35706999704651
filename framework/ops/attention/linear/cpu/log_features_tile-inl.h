// Tiles for positive features, given as logarithms. Per-target include guard; see framework/simd/simd-inl.h.
//
// Notation (one head): a_i = log-features of query i [m], b_j = log-features of key j [m], including the logarithm of
// its weight, c = running maximum of b over the keys in the state [m], S = Σ_j exp(b_j - c) v_jᵀ [m, d_value],
// z = Σ_j exp(b_j - c) [m]. For query i: top_i is the stabilizer, N_i = Σ_j w_ij exp(-top_i) the denominator.
//
// With a rotated numerator S holds R_j exp(b_j - c) and is multiplied by R_i exp(a_i + c - top_i); both features of a
// pair share one c. In backward's sums over S and z, the part from S is rotated back.
//
// Two large logarithms that nearly cancel (c_f and top_i, both as large as a huge key's) are subtracted first: their
// difference is exact.
#if defined(FURLONG_LOG_FEATURES_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_LOG_FEATURES_TILE_INL_H_
#undef FURLONG_LOG_FEATURES_TILE_INL_H_
#else
#define FURLONG_LOG_FEATURES_TILE_INL_H_
#endif

#include "framework/ops/attention/linear/cpu/direct_pair-inl.h"
#include "framework/ops/attention/linear/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
class LogFeaturesTile : public LinearAttentionTile<T> {
  using Base = LinearAttentionTile<T>;
  using Base::d;
  using typename Base::V;
  // Below this the product of two rows of normalized features has lost too much to underflow (with subnormals flushed
  // to zero), and the pair is recomputed directly. Above it, up to 850 features below the smallest normal number are at
  // most 1e-5 of the product; for larger m the threshold grows with m.
  const T min_product = static_cast<T>(1e-30) * std::max<T>(1, static_cast<T>(this->s.m) / 850);

 public:
  using Base::Base;
  using Base::nothing, Base::s, Base::has_state, Base::state, Base::normalizer, Base::running_maximum, Base::v,
      Base::out, Base::feature_q, Base::feature_k, Base::normal_q, Base::normal_k, Base::work, Base::product,
      Base::weight, Base::transposed_k, Base::row_q, Base::row_k, Base::key_weight, Base::top_, Base::inverse_,
      Base::delta, Base::transposed, Base::g, Base::d_v, Base::d_feature_q, Base::d_feature_k, Base::d_product,
      Base::g_v, Base::d_key_weight, Base::map_scratch, Base::rotations_q, Base::rotations_k, Base::rotated_product,
      Base::d_rotated, Base::spare, Base::sum_lost, Base::normalizer_lost, Base::upcoming;
  static constexpr FeatureForm form = FeatureForm::logarithms;
  void clear_state() {
    this->clear_sums();
    std::fill_n(running_maximum, s.ld_m, nothing);
  }
  void load_state(const T* sum, const T* normalizers, const T* maxima, const T* /*magnitude*/) {
    this->load_sums(sum, normalizers);  // the maximum of an empty state gives it weight zero
    std::copy_n(maxima, s.m, running_maximum);
  }
  void store_state(T* sum, T* normalizers, T* maxima, T* magnitude) const {
    this->store_sums(sum, normalizers);
    std::copy_n(running_maximum, s.m, maxima);
    *magnitude = 0;
  }

  /// Adds the logarithms of the keys' weights, if they have any, to the features of near keys.
  void weigh_keys(std::int64_t rows, bool weighted) {
    if (!weighted) return;
    for (std::int64_t j = 0; j < rows; ++j) {
      const V add = hn::Set(d, key_weight[j]);
      T* row = feature_k + j * s.ld_m;
      for_lanes<T>(
          s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR { store_n(hn::Add(load_n(row + f, n), add), row + f, n); });
    }
  }
  void measure_queries(std::int64_t /*rows*/) {}

  // ---- forward ----

  /// normal_q, normal_k: exp(features - row maximum), by store_row(), with the maxima in row_q and row_k. product =
  /// normal_q · normal_kᵀ, in [0, m].
  void pair_products(std::int64_t rows, const NearPairs& pairs) {
    this->softmax_scores(rows, pairs);
    if (!pairs.features) return;
    for (std::int64_t i = 0; i < rows; ++i) row_q[i] = normalize(i, feature_q, normal_q);
    for (std::int64_t j = 0; j < pairs.columns; ++j) row_k[j] = normalize(j, feature_k, normal_k);
    this->products(rows, pairs, normal_q, normal_k, s.m, s.ld_m, transposed_k, product, true);
    if (s.rotates) this->rotated_products(rows, pairs, normal_q, normal_k);
  }

  /// out [rows, d_value] from the state, if it is not empty, and from near keys, if there are any.
  void attend(std::int64_t rows, const NearPairs& pairs, T* keep_top, T* keep_inverse) {
    const bool near = pairs.columns > 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      upcoming.prefetch(i);
      const NearPairs::Row row = pairs.row(i);
      T top = nothing;
      if (pairs.features) top = s.rotates ? pair_top<true>(i, row, pairs) : pair_top<false>(i, row, pairs);
      if (near && row.soft < row.end) top = std::max(this->softmax_top(i, row), top);
      if (has_state) top = std::max(top, past_top(i));
      top = this->joint_top(i, top);
      if (top < nothing / 2) top = -nothing;  // no visible key: every weight is zero
      T total = 0;
      if (near) {
        total = !pairs.features ? this->clear_weights(i, pairs)
                : s.rotates     ? pair_weights<true>(i, pairs, row, top)
                                : pair_weights<false>(i, pairs, row, top);
        if (row.soft < row.end) total += this->softmax_weights(i, row, top);
      }
      if (has_state) {
        total += past_weights(i, top);
        if (s.rotates) rotations_q.rotate_row(i, work + i * s.ld_m, work + i * s.ld_m);
      }
      this->close_row(i, top, total, s.rotates && top < -nothing / 2 ? T{1} : T{0});
    }
    if (near) this->weighted_values(rows, pairs);
    if (has_state)
      this->times_sum(rows, s.d_value, s.m, work, s.ld_m, state, s.ld_v, out, s.ld_v, near, s.splits_sums());
    if (!near && !has_state) std::fill_n(out, rows * s.ld_v, T{0});
    this->finish(rows, keep_top, keep_inverse);
  }

  /// Adds keys to S, z and c.
  void advance_state(std::int64_t rows) {
    this->raise_maxima(rows, feature_k, nullptr,
                       [&](std::int64_t f, V factor, std::int64_t n) HWY_ATTR { rescale_state(f, factor, n); });
    const T* weights = exponentials(rows, feature_k, nullptr, nullptr, nullptr, this->left_);
    if (s.rotates) rotations_k.rotate(rows, work, work, s.ld_m);
    this->add_to_sum(s.m, s.d_value, rows, weights, s.ld_m, v, s.ld_v, state, s.ld_v);
    has_state = true;
  }

  // ---- backward ----

  /// Like advance_state, for Sᵀ [d_value, m], the operand of d_query_from_state.
  void advance_transposed_state(std::int64_t rows) {
    this->raise_maxima(rows, feature_k, nullptr, [&](std::int64_t f, V factor, std::int64_t n) HWY_ATTR {
      const auto scale = [&](T* at) HWY_ATTR { store_n(hn::Mul(load_n(at, n), factor), at, n); };
      scale(normalizer + f);
      if (hn::AllTrue(d, hn::Eq(factor, hn::Set(d, T{1})))) return;
      for (std::int64_t j = 0; j < s.d_value; ++j) {
        scale(transposed + j * s.ld_m + f);
        if (s.compensated) scale(sum_lost + j * s.ld_m + f);
      }
      if (s.compensated) scale(normalizer_lost + f);
    });
    const T* weights = exponentials(rows, feature_k, nullptr, nullptr, nullptr, this->right_);
    if (s.rotates) rotations_k.rotate(rows, work, work, s.ld_m);
    this->add_to_sum(s.d_value, s.m, rows, v, s.ld_v, weights, s.ld_m, transposed, s.ld_m);
    has_state = true;
  }

  /// d_feature_q [rows, m]: ∂ loss / ∂ a_if = exp(a_if + c_f - top_i) / N_i · (S_f · g_i - δ_i z_f).
  void d_query_from_state(std::int64_t rows) {
    this->times_sum(rows, s.m, s.d_value, g, s.ld_v, transposed, s.ld_m, d_feature_q, s.ld_m, false);
    if (s.rotates) rotations_q.rotate(rows, d_feature_q, d_feature_q, s.ld_m, true);
    for (std::int64_t i = 0; i < rows; ++i) {
      upcoming.prefetch(i);
      const V top = hn::Set(d, top_[i]), inverse = hn::Set(d, inverse_[i]), minus_delta = hn::Set(d, -delta[i]);
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const std::int64_t at = i * s.ld_m + f;
        const V e = this->exponential(hn::Add(load_n(feature_q + at, n), hn::Sub(load_n(running_maximum + f, n), top)));
        const V gradient = hn::MulAdd(minus_delta, load_n(normalizer + f, n), load_n(d_feature_q + at, n));
        store_n(hn::Mul(hn::Mul(e, inverse), gradient), d_feature_q + at, n);
      });
    }
  }

  /// Adds this chunk's queries to the sums for earlier keys: state = Σ_i exp(a_i - top_i - e) / N_i g_i [m, d_value],
  /// normalizer = the same sum over -δ_i. e (in running_maximum) is the running maximum of a_i - top_i.
  void gather_queries(std::int64_t rows) {
    this->raise_maxima(rows, feature_q, top_,
                       [&](std::int64_t f, V factor, std::int64_t n) HWY_ATTR { rescale_state(f, factor, n); });
    for (std::int64_t i = 0; i < rows; ++i) spare[i] = -delta[i];
    const T* weights = exponentials(rows, feature_q, top_, inverse_, spare, this->left_);
    if (s.rotates) rotations_q.rotate(rows, work, work, s.ld_m);
    this->add_to_sum(s.m, s.d_value, rows, weights, s.ld_m, g, s.ld_v, state, s.ld_v);
    has_state = true;
  }

  /// Computes d_feature_k [rows, m] and d_v [rows, d_value] of this chunk's keys from the queries gathered so far:
  /// d b_jf = exp(b_jf + e_f) (state_f · v_j + normalizer_f), d_v_j = Σ_f exp(b_jf + e_f) state_f. Zero if no queries
  /// were gathered.
  void d_key_from_later(std::int64_t rows) {
    if (!has_state) {
      std::fill_n(d_feature_k, rows * s.ld_m, T{0});
      std::fill_n(d_v, rows * s.ld_v, T{0});
      return;
    }
    this->times_transposed_sum(rows, s.m, s.d_value, v, s.ld_v, state, s.ld_v, transposed, d_feature_k, s.ld_m);
    if (s.rotates) rotations_k.rotate(rows, d_feature_k, d_feature_k, s.ld_m, true);
    for (std::int64_t j = 0; j < rows; ++j) {
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const std::int64_t at = j * s.ld_m + f;
        V e = this->exponential(hn::Add(load_n(feature_k + at, n), load_n(running_maximum + f, n)));
        store_past(j, f, n, e);
        store_n(hn::Mul(e, hn::Add(load_n(d_feature_k + at, n), load_n(normalizer + f, n))), d_feature_k + at, n);
      });
    }
    if (s.rotates) rotations_k.rotate(rows, work, work, s.ld_m);
    this->times_sum(rows, s.d_value, s.m, work, s.ld_m, state, s.ld_v, d_v, s.ld_v, false, s.splits_sums());
  }

  /// Call after pair_products. Overwrites d_feature_q and adds to d_feature_k and d_v, for the pairs of a chunk of
  /// queries and a chunk of keys.
  void pair_gradients(std::int64_t rows, const NearPairs& pairs) {
    const std::int64_t columns = pairs.columns;
    this->gradient_products(rows, pairs);
    bool direct = false;
    for (std::int64_t i = 0; i < rows; ++i) {
      upcoming.prefetch(i);
      const NearPairs::Row row = pairs.row(i);
      direct = (s.rotates ? row_pair_gradients<true>(i, columns, row) : row_pair_gradients<false>(i, columns, row)) ||
               direct;
      if (s.rotates) this->join_gradients_of_own_key(i, pairs);
      if (pairs.softmax_window > 0) this->softmax_gradients(i, pairs, row);
    }
    // d a_if = normal_q_if Σ_j d_product_ij normal_k_jf, and likewise for keys.
    if (s.rotates) {
      this->rotated_feature_gradients(rows, columns, normal_q, normal_k);
    } else {
      this->from_columns(rows, pairs, d_product, normal_k, s.m, s.ld_m, d_feature_q, true);
      this->from_rows(rows, pairs, d_product, normal_q, s.m, s.ld_m, work, false, true);
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        T* const at = d_feature_q + i * s.ld_m + f;
        store_n(hn::Mul(load_n(at, n), this->load_row(normal_q, i, s.ld_m, f, n)), at, n);
      });
    }
    for (std::int64_t j = 0; j < columns; ++j) {
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const std::int64_t at = j * s.ld_m + f;
        const V normal = this->load_row(normal_k, j, s.ld_m, f, n);
        store_n(hn::MulAdd(load_n(work + at, n), normal, load_n(d_feature_k + at, n)), d_feature_k + at, n);
      });
    }
    if (direct) direct_pair_gradients(rows, pairs);
    this->from_rows(rows, pairs, weight, g, s.d_value, s.ld_v, d_v, true);
    if (pairs.softmax_window > 0) this->softmax_inputs(rows, pairs);
  }

  /// Adds ∂ loss / ∂ the logarithm of each key's weight to d_key_weight. Returns null: keys have no row logarithm.
  const T* d_key_logs(std::int64_t rows, bool weighted) {
    if (weighted) {
      for (std::int64_t j = 0; j < rows; ++j) {
        V sum = hn::Zero(d);
        for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n)
                              HWY_ATTR { sum = hn::Add(sum, load_n(d_feature_k + j * s.ld_m + f, n)); });
        d_key_weight[j] += hn::GetLane(hn::SumOfLanes(d, sum));
      }
    }
    return nullptr;
  }

 private:
  /// Rescales features [f, f + n) of the state and the normalizer to their new maximum.
  void rescale_state(std::int64_t f, V factor, std::int64_t n) {
    store_n(hn::Mul(load_n(normalizer + f, n), factor), normalizer + f, n);
    alignas(64) T factors[64 / sizeof(T)];
    hn::StoreU(factor, d, factors);
    for (std::int64_t lane = 0; lane < n; ++lane) {
      if (factors[lane] == 1) continue;
      Base::scale_row(state + (f + lane) * s.ld_v, s.d_value, factors[lane]);
      if (!s.compensated) continue;
      Base::scale_row(sum_lost + (f + lane) * s.ld_v, s.d_value, factors[lane]);
      normalizer_lost[f + lane] *= factors[lane];
    }
  }

  /// Stores exp(row - max(row)) of row i, and returns the maximum.
  T normalize(std::int64_t i, const T* features, T* target) const {
    const T* const row = features + i * s.ld_m;
    V top = hn::Set(d, nothing);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n)
                          HWY_ATTR { top = hn::Max(top, first_lanes<T>(load_n(row + f, n), n, hn::Set(d, nothing))); });
    const T maximum = hn::GetLane(hn::MaxOfLanes(d, top));
    const V shift = hn::Set(d, maximum);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      this->store_row(this->exponential(hn::Sub(load_n(row + f, n), shift)), target, i, s.ld_m, f, n);
    });
    return maximum;
  }

  /// Calls body(j, in) for the vectors of product row i that contain columns [from, to).
  template <class Body>
  static void for_columns(std::int64_t from, std::int64_t to, const Body& body) {
    const std::int64_t lanes = Lanes<T>::count();
    for (std::int64_t j = from / lanes * lanes; j < to; j += lanes) body(j, Base::between(j, from, to));
  }

  /// Returns the logarithm of a power of two that is at most max_j w_ij and more than half of it: rowmax_q +
  /// max_j (rowmax_k + ⌊log2 product⌋ ln 2).
  template <bool rotated>
  T pair_top(std::int64_t i, const NearPairs::Row& row, const NearPairs& pairs) {
    V best = hn::Set(d, nothing);
    bool direct = false;
    for_columns(row.first, row.soft, [&](std::int64_t j, auto in) HWY_ATTR {
      const V p = hn::LoadU(d, product + i * s.ld_n + j);
      const auto large = hn::Ge(p, hn::Set(d, min_product));
      direct = direct || !hn::AllTrue(d, hn::Or(large, hn::Not(in)));
      V larger = p;
      if constexpr (rotated) larger = hn::Max(p, hn::Abs(hn::LoadU(d, rotated_product + i * s.ld_n + j)));
      const V log_weight = hn::Add(hn::LoadU(d, row_k + j), floor_log<T>(larger));
      best = hn::Max(best, hn::IfThenElse(hn::And(in, large), log_weight, hn::Set(d, nothing)));
    });
    T top = hn::GetLane(hn::MaxOfLanes(d, best)) + row_q[i];
    if (direct) {
      for (std::int64_t j = row.first; j < row.soft; ++j) {
        if (product[i * s.ld_n + j] >= min_product) continue;
        top = std::max(top,
                       rotated && j != pairs.offset + i ? rotated_pair(i, j).bound() : direct_pair(i, j).log_weight());
      }
    }
    return top;
  }
  DirectPair<T> direct_pair(std::int64_t i, std::int64_t j) const {
    return {feature_q + i * s.ld_m, feature_k + j * s.ld_m, s.m};
  }
  RotatedPair<T> rotated_pair(std::int64_t i, std::int64_t j) const {
    return {feature_q + i * s.ld_m, feature_k + j * s.ld_m, rotations_q, i, rotations_k, j};
  }

  /// weight row i = w_ij exp(-top) for the row's feature pairs, 0 elsewhere. Returns the sum. If `rotated`, the row
  /// holds the weights of the numerator, and the sum is the denominator's.
  template <bool rotated>
  T pair_weights(std::int64_t i, const NearPairs& pairs, const NearPairs::Row& row, T top) {
    const V shift = hn::Set(d, top), own = hn::Set(d, row_q[i]);
    V sum = hn::Zero(d);
    bool direct = false;
    for_columns(0, pairs.columns, [&](std::int64_t j, auto) HWY_ATTR {
      const V p = hn::LoadU(d, product + i * s.ld_n + j);
      const auto in = Base::between(j, row.first, row.soft);
      const auto large = hn::Ge(p, hn::Set(d, min_product));
      direct = direct || !hn::AllTrue(d, hn::Or(large, hn::Not(in)));
      // If the pair is not visible or computed directly, the factor may have any value.
      const V factor = this->exponential(hn::Add(hn::Sub(hn::LoadU(d, row_k + j), shift), own));
      const V w = hn::IfThenElseZero(hn::And(in, large), this->rounded(hn::Mul(p, factor)));
      sum = hn::Add(sum, w);
      V kept = w;
      if constexpr (rotated)
        kept = hn::IfThenElseZero(hn::And(in, large), hn::Mul(hn::LoadU(d, rotated_product + i * s.ld_n + j), factor));
      hn::StoreU(kept, d, weight + i * s.ld_n + j);
    });
    T total = hn::GetLane(hn::SumOfLanes(d, sum));
    if (direct) {
      for (std::int64_t j = row.first; j < row.soft; ++j) {
        if (product[i * s.ld_n + j] >= min_product) continue;
        const T w = this->rounded(std::exp(direct_pair(i, j).log_weight() - top));
        weight[i * s.ld_n + j] = rotated && j != pairs.offset + i ? rotated_pair(i, j).product(top) : w;
        total += w;
      }
    }
    return total;
  }

  T past_top(std::int64_t i) const {
    V best = hn::Set(d, nothing);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      best =
          hn::Max(best, first_lanes<T>(hn::Add(load_n(feature_q + i * s.ld_m + f, n), load_n(running_maximum + f, n)),
                                       n, hn::Set(d, nothing)));
    });
    return hn::GetLane(hn::MaxOfLanes(d, best));
  }

  /// Stores weights of the state in `work`; if the state has parts, rounds them first, and packs them as the left
  /// operand of the product with the state.
  HWY_INLINE void store_past(std::int64_t i, std::int64_t f, std::int64_t n, V& weights) {
    const std::int64_t at = i * s.ld_m + f;
    s.splits_sums() ? this->round_row(weights, n, reinterpret_cast<std::uint16_t*>(work) + at)
                    : store_n(weights, work + at, n);
  }

  /// Row i of the weights of the state = exp(a_i + c - top). Returns its dot product with z.
  T past_weights(std::int64_t i, T top) {
    const V shift = hn::Set(d, top);
    V sum = hn::Zero(d);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V e_f = this->exponential(
          hn::Add(load_n(feature_q + i * s.ld_m + f, n), hn::Sub(load_n(running_maximum + f, n), shift)));
      V e = first_lanes<T>(e_f, n, hn::Zero(d));  // beyond m, 0 - top may be large
      store_past(i, f, n, e);
      sum = hn::MulAdd(e, load_n(normalizer + f, n), sum);
    });
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }

  /// Weights exp(rows - less - running_maximum) · factor; normalizer += Σ_i normal_factor_i weights_i. A null factor is
  /// 1. Returns `work` with the weights, or null if they are packed by pairs of rows in `packed`.
  const T* exponentials(std::int64_t rows, const T* log_rows, const T* less, const T* factor, const T* normal_factor,
                        simd::BFloat16Pair* packed) {
    if (packed) return packed_exponentials(rows, log_rows, less, factor, normal_factor, packed);
    for (std::int64_t i = 0; i < rows; ++i) {
      const V shift = hn::Set(d, less ? less[i] : T{0}), by = hn::Set(d, factor ? factor[i] : T{1});
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const std::int64_t at = i * s.ld_m + f;
        const V e =
            this->exponential(hn::Sub(load_n(log_rows + at, n), hn::Add(shift, load_n(running_maximum + f, n))));
        store_n(hn::Mul(e, by), work + at, n);
      });
    }
    this->add_to_normalizer(rows, work, normal_factor);
    return work;
  }
  const T* packed_exponentials(std::int64_t rows, const T* log_rows, const T* less, const T* factor,
                               const T* normal_factor, simd::BFloat16Pair* packed) {
    T* const sums = this->begin_normalizer_sum();
    const T* const maximum = running_maximum;
    for (std::int64_t i = 0; i < rows; i += 2) {
      const std::int64_t j = std::min(i + 1, rows - 1);  // a last row without a neighbor: its neighbor is zero
      const auto of = [](const T* numbers, std::int64_t row, T otherwise)
                          HWY_ATTR { return hn::Set(d, numbers ? numbers[row] : otherwise); };
      const V less_i = of(less, i, 0), less_j = of(less, j, 0), factor_i = of(factor, i, 1),
              factor_j = j == i ? hn::Zero(d) : of(factor, j, 1), normal_i = of(normal_factor, i, 1),
              normal_j = of(normal_factor, j, 1);
      const T *const row_i = log_rows + i * s.ld_m, *const row_j = log_rows + j * s.ld_m;
      simd::BFloat16Pair* const target = packed + i / 2 * s.ld_m;
      const bool multiply = factor || j == i;
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const V most = load_n(maximum + f, n);
        V even = this->exponential(hn::Sub(load_n(row_i + f, n), hn::Add(less_i, most))),
          odd = this->exponential(hn::Sub(load_n(row_j + f, n), hn::Add(less_j, most)));
        if (multiply) {
          even = hn::Mul(even, factor_i);
          odd = hn::Mul(odd, factor_j);
        }
        this->round_pairs(even, odd, target + f);
        store_n(hn::MulAdd(even, normal_i, hn::MulAdd(odd, normal_j, load_n(sums + f, n))), sums + f, n);
      });
    }
    this->end_normalizer_sum();
    return nullptr;
  }

  /// weight row i becomes w_ij / Σ_j w_ij, d_product row i = ∂ loss / ∂ product_ij; both are zero for pairs that are
  /// not visible. Returns whether a pair must be computed directly. If `rotated`: weights of the numerator over Σ_j
  /// w_ij, and the gradients of the rotated product in d_rotated.
  template <bool rotated>
  bool row_pair_gradients(std::int64_t i, std::int64_t columns, const NearPairs::Row& row) {
    const V top = hn::Set(d, top_[i]), own = hn::Set(d, row_q[i]), inverse = hn::Set(d, inverse_[i]),
            less = hn::Set(d, delta[i]);
    bool direct = false;
    for_columns(0, columns, [&](std::int64_t j, auto) HWY_ATTR {
      const std::int64_t at = i * s.ld_n + j;
      const V p = hn::LoadU(d, product + at);
      const auto in = Base::between(j, row.first, row.soft);
      const auto large = hn::Ge(p, hn::Set(d, min_product));
      direct = direct || !hn::AllTrue(d, hn::Or(large, hn::Not(in)));
      const auto counts = hn::And(in, large);
      const V factor = hn::Mul(inverse, this->exponential(hn::Add(hn::Sub(hn::LoadU(d, row_k + j), top), own)));
      if constexpr (rotated) {
        hn::StoreU(hn::IfThenElseZero(counts, hn::Mul(hn::LoadU(d, rotated_product + at), factor)), d, weight + at);
        hn::StoreU(hn::IfThenElseZero(counts, hn::Mul(factor, hn::LoadU(d, g_v + at))), d, d_rotated + at);
        hn::StoreU(hn::IfThenElseZero(counts, hn::Neg(hn::Mul(factor, less))), d, d_product + at);
      } else {
        hn::StoreU(hn::IfThenElseZero(counts, hn::Mul(p, factor)), d, weight + at);
        hn::StoreU(hn::IfThenElseZero(counts, hn::Mul(factor, hn::Sub(hn::LoadU(d, g_v + at), less))), d,
                   d_product + at);
      }
    });
    return direct;
  }

  void direct_pair_gradients(std::int64_t rows, const NearPairs& pairs) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const NearPairs::Row row = pairs.row(i);
      for (std::int64_t j = row.first; j < row.soft; ++j) {
        const std::int64_t at = i * s.ld_n + j;
        if (product[at] >= min_product) continue;
        if (s.rotates && j != pairs.offset + i) {
          weight[at] =
              inverse_[i] * rotated_pair(i, j).add_gradients(top_[i], g_v[at] * inverse_[i], -delta[i] * inverse_[i],
                                                             d_feature_q + i * s.ld_m, d_feature_k + j * s.ld_m);
          continue;
        }
        const T sum = direct_pair(i, j).add_gradients(top_[i], (g_v[at] - delta[i]) * inverse_[i],
                                                      d_feature_q + i * s.ld_m, d_feature_k + j * s.ld_m);
        weight[at] = sum * inverse_[i];
      }
    }
  }
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
