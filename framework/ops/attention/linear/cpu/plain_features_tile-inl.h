// Tiles for features that are plain values, of either sign, with one logarithm per row. Per-target include guard; see
// framework/simd/simd-inl.h.
//
// Notation (one head): ψ_i, ψ_j = features of query i and key j [m], s_j = logarithm of key j's weight, c = running
// maximum of s over the keys in the state, S = Σ_j exp(s_j - c) ψ_j v_jᵀ [m, d_value], z = Σ_j exp(s_j - c) ψ_j [m],
// M = Σ_j exp(s_j - c) |ψ_j|. With a rotated numerator S holds R_j ψ_j and is multiplied by R_i ψ_i; in backward's sums
// over S and z, the part from S is rotated back.
#if defined(FURLONG_PLAIN_FEATURES_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_PLAIN_FEATURES_TILE_INL_H_
#undef FURLONG_PLAIN_FEATURES_TILE_INL_H_
#else
#define FURLONG_PLAIN_FEATURES_TILE_INL_H_
#endif

#include "framework/ops/attention/linear/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
class PlainFeaturesTile : public LinearAttentionTile<T> {
  using Base = LinearAttentionTile<T>;
  using Base::d;
  using typename Base::V;

 public:
  using Base::Base;
  using Base::nothing, Base::s, Base::has_state, Base::state, Base::normalizer, Base::running_maximum, Base::v,
      Base::out, Base::feature_q, Base::feature_k, Base::work, Base::product, Base::weight, Base::transposed_k,
      Base::row_q, Base::row_k, Base::key_weight, Base::top_, Base::inverse_, Base::delta, Base::size_k,
      Base::transposed, Base::g, Base::d_v, Base::d_feature_q, Base::d_feature_k, Base::d_product, Base::g_v,
      Base::d_key_weight, Base::spare, Base::rotations_q, Base::rotations_k, Base::rotated_product, Base::d_rotated,
      Base::sum_lost, Base::normalizer_lost;
  static constexpr FeatureForm form = FeatureForm::values;

  void clear_state() {
    this->clear_sums();
    maximum_ = nothing;
    magnitude_ = 0;
  }
  void load_state(const T* sum, const T* normalizers, const T* maxima, const T* magnitude) {
    this->load_sums(sum, normalizers);
    maximum_ = maxima[0];
    magnitude_ = *magnitude;
  }
  void store_state(T* sum, T* normalizers, T* maxima, T* magnitude) const {
    this->store_sums(sum, normalizers);
    std::fill_n(maxima, s.m, maximum_);
    *magnitude = magnitude_;
  }

  /// row_k holds the map's row logarithms. The guard needs the norms |ψ_j|.
  void weigh_keys(std::int64_t rows, bool weighted) {
    for (std::int64_t j = 0; j < rows; ++j) {
      if (weighted) row_k[j] += key_weight[j];
      size_k[j] = size_of_row(feature_k + j * s.ld_m);
    }
  }
  void measure_queries(std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i) row_q[i] = size_of_row(feature_q + i * s.ld_m);
  }

  // ---- forward ----

  void pair_products(std::int64_t rows, const NearPairs& pairs) {
    this->softmax_scores(rows, pairs);
    if (!pairs.features) return;
    this->products(rows, pairs, feature_q, feature_k, s.m, s.ld_m, transposed_k, product);
    if (s.rotates) this->rotated_products(rows, pairs, feature_q, feature_k);
  }

  void attend(std::int64_t rows, const NearPairs& pairs, T* keep_top, T* keep_inverse) {
    const bool near = pairs.columns > 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      this->upcoming.prefetch(i);
      const NearPairs::Row row = pairs.row(i);
      T top = has_state ? maximum_ : nothing;
      for (std::int64_t j = row.first; near && j < row.soft; ++j) top = std::max(top, row_k[j]);
      if (near && row.soft < row.end) top = std::max(this->softmax_top(i, row), top);
      top = this->joint_top(i, top);
      if (top < nothing / 2) top = -nothing;  // no visible key: every weight is zero
      T total = 0, magnitude = 0;
      if (near) {
        total = !pairs.features ? this->clear_weights(i, pairs)
                : s.rotates     ? pair_weights<true>(i, pairs, row, top, magnitude)
                                : pair_weights<false>(i, pairs, row, top, magnitude);
        if (row.soft < row.end) {
          const T exact = this->softmax_weights(i, row, top);
          total += exact;
          magnitude += exact;
        }
      }
      if (has_state) {
        total += past_weights(i, top, magnitude);
        if (s.rotates) rotations_q.rotate_row(i, work + i * s.ld_m, work + i * s.ld_m);
      }
      this->close_row(i, top, total, magnitude);
    }
    if (near) this->weighted_values(rows, pairs);
    if (has_state) this->times_sum(rows, s.d_value, s.m, work, s.ld_m, state, s.ld_v, out, s.ld_v, near);
    if (!near && !has_state) std::fill_n(out, rows * s.ld_v, T{0});
    this->finish(rows, keep_top, keep_inverse);
  }

  void advance_state(std::int64_t rows) {
    const T factor = raise_maximum(rows, row_k, T{1});
    rescale_sums(factor, state, s.m, s.d_value, s.ld_v);
    weighted_rows(rows, feature_k, row_k, T{1}, nullptr);
    this->add_to_normalizer(rows, work);
    if (s.rotates) rotations_k.rotate(rows, work, work, s.ld_m);
    this->add_to_sum(s.m, s.d_value, rows, work, s.ld_m, v, s.ld_v, state, s.ld_v);
    has_state = true;
  }

  // ---- backward ----

  void advance_transposed_state(std::int64_t rows) {
    const T factor = raise_maximum(rows, row_k, T{1});
    rescale_sums(factor, transposed, s.d_value, s.m, s.ld_m);
    weighted_rows(rows, feature_k, row_k, T{1}, nullptr);
    this->add_to_normalizer(rows, work);
    if (s.rotates) rotations_k.rotate(rows, work, work, s.ld_m);
    this->add_to_sum(s.d_value, s.m, rows, v, s.ld_v, work, s.ld_m, transposed, s.ld_m);
    has_state = true;
  }

  /// ∂ loss / ∂ ψ_if = exp(c - top_i) / N_i · (S_f · g_i - δ_i z_f).
  void d_query_from_state(std::int64_t rows) {
    this->times_sum(rows, s.m, s.d_value, g, s.ld_v, transposed, s.ld_m, d_feature_q, s.ld_m, false);
    if (s.rotates) rotations_q.rotate(rows, d_feature_q, d_feature_q, s.ld_m, true);
    for (std::int64_t i = 0; i < rows; ++i) {
      this->upcoming.prefetch(i);
      const V by = hn::Set(d, inverse_[i] * exponential(maximum_ - top_[i])), minus_delta = hn::Set(d, -delta[i]);
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        T* at = d_feature_q + i * s.ld_m + f;
        store_n(hn::Mul(by, hn::MulAdd(minus_delta, load_n(normalizer + f, n), load_n(at, n))), at, n);
      });
    }
  }

  /// state = Σ_i exp(-top_i - e) / N_i ψ_i g_iᵀ, normalizer = the same sum over -δ_i; e is the running maximum of
  /// -top_i.
  void gather_queries(std::int64_t rows) {
    const T factor = raise_maximum(rows, top_, T{-1});
    rescale_sums(factor, state, s.m, s.d_value, s.ld_v);
    weighted_rows(rows, feature_q, top_, T{-1}, inverse_);
    for (std::int64_t i = 0; i < rows; ++i) spare[i] = -delta[i];
    this->add_to_normalizer(rows, work, spare);
    if (s.rotates) rotations_q.rotate(rows, work, work, s.ld_m);
    this->add_to_sum(s.m, s.d_value, rows, work, s.ld_m, g, s.ld_v, state, s.ld_v);
    has_state = true;
  }

  /// d ψ_jf = exp(s_j + e) (state_f · v_j + normalizer_f), d_v_j = exp(s_j + e) Σ_f ψ_jf state_f.
  void d_key_from_later(std::int64_t rows) {
    if (!has_state) {
      std::fill_n(d_feature_k, rows * s.ld_m, T{0});
      std::fill_n(d_v, rows * s.ld_v, T{0});
      return;
    }
    this->times_transposed_sum(rows, s.m, s.d_value, v, s.ld_v, state, s.ld_v, transposed, d_feature_k, s.ld_m);
    if (s.rotates) {
      rotations_k.rotate(rows, d_feature_k, d_feature_k, s.ld_m, true);
      rotations_k.rotate(rows, feature_k, work, s.ld_m);
    }
    this->times_sum(rows, s.d_value, s.m, s.rotates ? work : feature_k, s.ld_m, state, s.ld_v, d_v, s.ld_v, false);
    for (std::int64_t j = 0; j < rows; ++j) {
      const T factor = exponential(row_k[j] + maximum_);
      const V by = hn::Set(d, factor);
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        T* at = d_feature_k + j * s.ld_m + f;
        store_n(hn::Mul(by, hn::Add(load_n(at, n), load_n(normalizer + f, n))), at, n);
      });
      Base::scale_row(d_v + j * s.ld_v, s.d_value, factor);
    }
  }

  void pair_gradients(std::int64_t rows, const NearPairs& pairs) {
    const std::int64_t columns = pairs.columns;
    this->gradient_products(rows, pairs);
    for (std::int64_t i = 0; i < rows; ++i) {
      this->upcoming.prefetch(i);
      const NearPairs::Row row = pairs.row(i);
      if (s.rotates) {
        row_pair_gradients<true>(i, columns, row);
        this->join_gradients_of_own_key(i, pairs);
      } else {
        row_pair_gradients<false>(i, columns, row);
      }
      if (pairs.softmax_window > 0) this->softmax_gradients(i, pairs, row);
    }
    if (s.rotates) {
      this->rotated_feature_gradients(rows, columns, feature_q, feature_k);
      this->add_rows(columns, work, d_feature_k);
    } else {
      this->from_columns(rows, pairs, d_product, feature_k, s.m, s.ld_m, d_feature_q);
      this->from_rows(rows, pairs, d_product, feature_q, s.m, s.ld_m, d_feature_k, true);
    }
    this->from_rows(rows, pairs, weight, g, s.d_value, s.ld_v, d_v, true);
    if (pairs.softmax_window > 0) this->softmax_inputs(rows, pairs);
  }

  /// The weights of feature pairs and of keys in the state have the factor exp(s_j), so ∂ loss / ∂ s_j = ψ_j · d ψ_j.
  /// Exact pairs have added theirs to d_key_weight; they depend on the key's own weight, not on the map's logarithm.
  const T* d_key_logs(std::int64_t rows, bool /*weighted*/) {
    for (std::int64_t j = 0; j < rows; ++j) {
      spare[j] = Base::product_of(feature_k + j * s.ld_m, d_feature_k + j * s.ld_m, s.m);
      d_key_weight[j] += spare[j];
    }
    return spare;
  }

 private:
  T maximum_ = Base::nothing, magnitude_ = 0;

  /// Rescales the state's sums, in either layout, to a new maximum.
  void rescale_sums(T factor, T* sum, std::int64_t rows, std::int64_t width, std::int64_t ld) {
    if (factor == 1) return;
    Base::scale_row(normalizer, s.m, factor);
    for (std::int64_t i = 0; i < rows; ++i) Base::scale_row(sum + i * ld, width, factor);
    if (!s.compensated) return;
    Base::scale_row(normalizer_lost, s.m, factor);
    for (std::int64_t i = 0; i < rows; ++i) Base::scale_row(sum_lost + i * ld, width, factor);
  }

  static T exponential(T x) { return hn::GetLane(exp(d, hn::Set(d, x))); }
  T size_of_row(const T* row) const { return std::sqrt(Base::product_of(row, row, s.m)); }

  /// weight row i = ψ_i·ψ_j exp(s_j - top) for feature pairs, 0 elsewhere. Returns the sum, and adds the sum of norms
  /// to `magnitude`. If `rotated`, the row holds the weights of the numerator, and the sum is the denominator's.
  template <bool rotated>
  T pair_weights(std::int64_t i, const NearPairs& pairs, const NearPairs::Row& row, T top, T& magnitude) {
    const V shift = hn::Set(d, top);
    V sum = hn::Zero(d), sizes = hn::Zero(d);
    const std::int64_t lanes = Lanes<T>::count();
    for (std::int64_t j = 0; j < pairs.columns; j += lanes) {
      const auto in = Base::between(j, row.first, row.soft);
      const V e = hn::IfThenElseZero(in, exp(d, hn::Sub(hn::LoadU(d, row_k + j), shift)));
      const V w = hn::IfThenElseZero(in, this->rounded(hn::Mul(hn::LoadU(d, product + i * s.ld_n + j), e)));
      sum = hn::Add(sum, w);
      sizes = hn::Add(sizes, hn::IfThenElseZero(in, hn::Mul(hn::LoadU(d, size_k + j), e)));
      V kept = w;
      if constexpr (rotated) kept = hn::IfThenElseZero(in, hn::Mul(hn::LoadU(d, rotated_product + i * s.ld_n + j), e));
      hn::StoreU(kept, d, weight + i * s.ld_n + j);
    }
    magnitude += hn::GetLane(hn::SumOfLanes(d, sizes)) * row_q[i];
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }

  /// work row i = ψ_i exp(c - top). Returns its dot product with z.
  T past_weights(std::int64_t i, T top, T& magnitude) {
    const T factor = exponential(maximum_ - top);
    magnitude += magnitude_ * factor * row_q[i];
    const V by = hn::Set(d, factor);
    V sum = hn::Zero(d);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V e = this->rounded_with_sum(hn::Mul(load_n(feature_q + i * s.ld_m + f, n), by));
      store_n(e, work + i * s.ld_m + f, n);
      sum = hn::MulAdd(e, load_n(normalizer + f, n), sum);
    });
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }

  /// Raises the maximum to include sign · logs, and rescales M. Returns the factor for sums under the old maximum.
  T raise_maximum(std::int64_t rows, const T* logs, T sign) {
    T after = maximum_;
    for (std::int64_t i = 0; i < rows; ++i) after = std::max(after, sign * logs[i]);
    const T factor = exponential(maximum_ - after);
    maximum_ = after;
    magnitude_ *= factor;
    return factor;
  }

  /// work = rows · exp(sign · logs - maximum) · factor. If factor is null (keys), adds their norms to M.
  void weighted_rows(std::int64_t rows, const T* features, const T* logs, T sign, const T* factor) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const T e = exponential(sign * logs[i] - maximum_) * (factor ? factor[i] : T{1});
      if (!factor) magnitude_ += e * size_k[i];
      const V by = hn::Set(d, e);
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        store_n(this->rounded(hn::Mul(load_n(features + i * s.ld_m + f, n), by)), work + i * s.ld_m + f, n);
      });
    }
  }

  /// weight row i = weights of the numerator over N_i, d_product row i = ∂ loss / ∂ product_ij. If `rotated`, d_rotated
  /// has the part of the numerator.
  template <bool rotated>
  void row_pair_gradients(std::int64_t i, std::int64_t columns, const NearPairs::Row& row) {
    const V top = hn::Set(d, top_[i]), inverse = hn::Set(d, inverse_[i]), less = hn::Set(d, delta[i]);
    const std::int64_t lanes = Lanes<T>::count();
    for (std::int64_t j = 0; j < columns; j += lanes) {
      const std::int64_t at = i * s.ld_n + j;
      const auto in = Base::between(j, row.first, row.soft);
      const V factor = hn::Mul(inverse, exp(d, hn::Sub(hn::LoadU(d, row_k + j), top)));
      if constexpr (rotated) {
        hn::StoreU(hn::IfThenElseZero(in, hn::Mul(hn::LoadU(d, rotated_product + at), factor)), d, weight + at);
        hn::StoreU(hn::IfThenElseZero(in, hn::Mul(factor, hn::LoadU(d, g_v + at))), d, d_rotated + at);
        hn::StoreU(hn::IfThenElseZero(in, hn::Neg(hn::Mul(factor, less))), d, d_product + at);
      } else {
        hn::StoreU(hn::IfThenElseZero(in, hn::Mul(hn::LoadU(d, product + at), factor)), d, weight + at);
        hn::StoreU(hn::IfThenElseZero(in, hn::Mul(factor, hn::Sub(hn::LoadU(d, g_v + at), less))), d, d_product + at);
      }
    }
  }
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
