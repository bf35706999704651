// The arithmetic of linear attention on one chunk of one head. Per-target include guard; see framework/cpu/simd-inl.h.
//
// Notation (one head): a_i = log-features of query i [m], b_j = log-features of key j [m], c = running maximum of b over earlier chunks
// [m], S = Σ_j exp(b_j - c) v_jᵀ [m, d_value], z = Σ_j exp(b_j - c) [m]. For query i: top_i the stabiliser, N_i = Σ_j w_ij exp(-top_i) its
// denominator.
#if defined(FURLONG_LINEAR_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_LINEAR_ATTENTION_TILE_INL_H_
#undef FURLONG_LINEAR_ATTENTION_TILE_INL_H_
#else
#define FURLONG_LINEAR_ATTENTION_TILE_INL_H_
#endif

#include "framework/cpu/simd-inl.h"
#include "framework/cpu/small_gemm-inl.h"
#include "framework/ops/linear_attention_arguments.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::cpu::HWY_NAMESPACE;

template <class T>
class LinearAttentionTile {
  using D = typename Lanes<T>::D;
  using V = typename Lanes<T>::V;
  static constexpr D d{};
  // Below this the product of two rows of normalised features has lost too much to underflow (with subnormals flushed): such a pair is
  // summed again directly. Above it, m features of at most the least normal number are no more than 1e-5 of the product.
  static constexpr T least_product = static_cast<T>(1e-30);
  static constexpr T nothing = static_cast<T>(-1e30);

 public:
  LinearAttentionTile(const LinearAttentionSizes& sizes, T* memory, bool with_backward = false) : s(sizes) {
    T* next = memory;
    const auto take = [&next](std::int64_t elements) { return std::exchange(next, next + elements); };
    state = take(s.m * s.ld_v);
    normalizer = take(s.ld_m);
    feature_max = take(s.ld_m);
    q = take(s.chunk * s.ld_d);
    k = take(s.chunk * s.ld_d);
    v = take(s.chunk * s.ld_v);
    out = take(s.chunk * s.ld_v);
    log_q = take(s.chunk * s.ld_m);
    log_k = take(s.chunk * s.ld_m);
    exp_q = take(s.chunk * s.ld_m);
    exp_k = take(s.chunk * s.ld_m);
    work = take(s.chunk * s.ld_m);
    product = take(s.chunk * s.ld_c);
    weight = take(s.chunk * s.ld_c);
    exp_k_transposed = take(s.ld_m * s.ld_c);
    row_q = take(s.ld_c);
    row_k = take(s.ld_c);
    top_ = take(s.ld_c);
    inverse_ = take(s.ld_c);
    delta = take(s.ld_c);
    take(3 * s.ld_c);
    if (!with_backward) return;
    transposed = take(s.ld_v * s.ld_m);
    g = take(s.chunk * s.ld_v);
    d_v = take(s.chunk * s.ld_v);
    d_x = take(s.chunk * s.ld_d);
    d_log = take(s.chunk * s.ld_m);
    d_log_q = take(s.chunk * s.ld_m);
    take(s.chunk * s.ld_m);
    d_product = take(s.chunk * s.ld_c);
    g_v = take(s.chunk * s.ld_c);
    v_transposed = take(s.ld_v * s.ld_c);
  }

  void clear_state() {
    seen = false;
    std::fill_n(state, s.m * s.ld_v, T{0});
    std::fill_n(normalizer, s.ld_m, T{0});
    std::fill_n(feature_max, s.ld_m, nothing);
    if (transposed) std::fill_n(transposed, s.ld_v * s.ld_m, T{0});
  }

  // ---- forward ----

  /// exp_q, exp_k: features with each row's own maximum taken out (kept in row_q, row_k); product = exp_q · exp_kᵀ, entries in [0, m].
  void pair_products(std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i) {
      row_q[i] = normalised(log_q + i * s.ld_m, exp_q + i * s.ld_m);
      row_k[i] = normalised(log_k + i * s.ld_m, exp_k + i * s.ld_m);
    }
    transpose<T>(rows, s.m, exp_k, s.ld_m, exp_k_transposed, s.ld_c);
    small_gemm_nn<T>(rows, rows, s.m, exp_q, s.ld_m, exp_k_transposed, s.ld_c, product, s.ld_c, false);
  }

  /// out [rows, d_value] from the state (when anything was seen) and, with `pairs`, from the keys of this chunk up to each query.
  void attend(std::int64_t rows, bool pairs, T* keep_top, T* keep_inverse) {
    for (std::int64_t i = 0; i < rows; ++i) {
      T top = pairs ? pair_top(i) : nothing;
      if (seen) top = std::max(top, past_top(i));
      T total = pairs ? pair_weights(i, rows, top) : T{0};
      if (seen) total += past_weights(i, top);
      const T inverse = total > 0 ? 1 / total : T{0};  // nothing seen at all: zero output, zero gradient
      top_[i] = top;
      inverse_[i] = inverse;
      if (keep_top) keep_top[i] = top;
      if (keep_inverse) keep_inverse[i] = inverse;
    }
    if (pairs) weighted_values(rows);
    if (seen) small_gemm_nn<T>(rows, s.d_value, s.m, work, s.ld_m, state, s.ld_v, out, s.ld_v, pairs);
    if (!pairs && !seen) std::fill_n(out, rows * s.ld_v, T{0});
    for (std::int64_t i = 0; i < rows; ++i) scale_row(out + i * s.ld_v, s.d_value, inverse_[i]);
  }

  /// Adds this chunk's keys to S, z and c.
  void advance_state(std::int64_t rows) {
    raise_maximum(rows, log_k, nullptr, [&](std::int64_t f, V factor, std::int64_t n) HWY_ATTR { rescale_state(f, factor, n); });
    exponentials(rows, log_k, nullptr, nullptr);
    add_columns(rows, work, normalizer);
    small_gemm_tn<T>(s.m, s.d_value, rows, work, s.ld_m, v, s.ld_v, state, s.ld_v, true);
    seen = true;
  }

  // ---- backward ----

  /// δ_i = g_i · output_i, and the saved stabilisers of this chunk's queries.
  void gradient_rows(std::int64_t rows, const T* top, const T* inverse) {
    for (std::int64_t i = 0; i < rows; ++i) {
      top_[i] = top[i];
      inverse_[i] = inverse[i];
      V sum = hn::Zero(d);
      for_lanes<T>(s.d_value, [&](std::int64_t j, std::int64_t n)
                                  HWY_ATTR { sum = hn::MulAdd(load_n(g + i * s.ld_v + j, n), load_n(out + i * s.ld_v + j, n), sum); });
      delta[i] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }

  /// The same as advance_state for Sᵀ [d_value, m], which d_log_query_from_state multiplies with.
  void advance_transposed_state(std::int64_t rows) {
    raise_maximum(rows, log_k, nullptr, [&](std::int64_t f, V factor, std::int64_t n) HWY_ATTR {
      store_n(hn::Mul(load_n(normalizer + f, n), factor), normalizer + f, n);
      if (hn::AllTrue(d, hn::Eq(factor, hn::Set(d, T{1})))) return;
      for (std::int64_t j = 0; j < s.d_value; ++j)
        store_n(hn::Mul(load_n(transposed + j * s.ld_m + f, n), factor), transposed + j * s.ld_m + f, n);
    });
    exponentials(rows, log_k, nullptr, nullptr);
    add_columns(rows, work, normalizer);
    small_gemm_tn<T>(s.d_value, s.m, rows, v, s.ld_v, work, s.ld_m, transposed, s.ld_m, true);
    seen = true;
  }

  /// d_log [rows, m]: ∂ loss / ∂ a_if = exp(a_if + c_f - top_i) / N_i · (S_f · g_i - δ_i z_f).
  void d_log_query_from_state(std::int64_t rows) {
    small_gemm_nn<T>(rows, s.m, s.d_value, g, s.ld_v, transposed, s.ld_m, d_log, s.ld_m, false);
    for (std::int64_t i = 0; i < rows; ++i) {
      const V top = hn::Set(d, top_[i]), inverse = hn::Set(d, inverse_[i]), minus_delta = hn::Set(d, -delta[i]);
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const std::int64_t at = i * s.ld_m + f;
        const V e = exp(d, hn::Sub(hn::Add(load_n(log_q + at, n), load_n(feature_max + f, n)), top));
        const V slope = hn::MulAdd(minus_delta, load_n(normalizer + f, n), load_n(d_log + at, n));
        store_n(hn::Mul(hn::Mul(e, inverse), slope), d_log + at, n);
      });
    }
  }

  /// Adds this chunk's queries to what earlier keys will need: state = Σ_i exp(a_i - top_i - e) / N_i g_i [m, d_value], normalizer = the
  /// same over -δ_i, e (in feature_max) the running maximum of a_i - top_i.
  void gather_queries(std::int64_t rows) {
    raise_maximum(rows, log_q, top_, [&](std::int64_t f, V factor, std::int64_t n) HWY_ATTR { rescale_state(f, factor, n); });
    exponentials(rows, log_q, top_, inverse_);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      V sum = load_n(normalizer + f, n);
      for (std::int64_t i = 0; i < rows; ++i) sum = hn::NegMulAdd(hn::Set(d, delta[i]), load_n(work + i * s.ld_m + f, n), sum);
      store_n(sum, normalizer + f, n);
    });
    small_gemm_tn<T>(s.m, s.d_value, rows, work, s.ld_m, g, s.ld_v, state, s.ld_v, true);
    seen = true;
  }

  /// d_log [rows, m] and d_v [rows, d_value] of this chunk's keys from the queries gathered so far:
  /// d_log_jf = exp(b_jf + e_f) (state_f · v_j + normalizer_f), d_v_j = Σ_f exp(b_jf + e_f) state_f. Zero when none were gathered.
  void d_log_key_from_later(std::int64_t rows) {
    if (!seen) {
      std::fill_n(d_log, rows * s.ld_m, T{0});
      std::fill_n(d_v, rows * s.ld_v, T{0});
      return;
    }
    transpose<T>(s.m, s.d_value, state, s.ld_v, transposed, s.ld_m);
    small_gemm_nn<T>(rows, s.m, s.d_value, v, s.ld_v, transposed, s.ld_m, d_log, s.ld_m, false);
    for (std::int64_t j = 0; j < rows; ++j) {
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const std::int64_t at = j * s.ld_m + f;
        const V e = exp(d, hn::Add(load_n(log_k + at, n), load_n(feature_max + f, n)));
        store_n(e, work + at, n);
        store_n(hn::Mul(e, hn::Add(load_n(d_log + at, n), load_n(normalizer + f, n))), d_log + at, n);
      });
    }
    small_gemm_nn<T>(rows, s.d_value, s.m, work, s.ld_m, state, s.ld_v, d_v, s.ld_v, false);
  }

  /// After pair_products: d_log_q (overwritten), d_log and d_v (added to) from the pairs j <= i of this chunk.
  void pair_gradients(std::int64_t rows) {
    transpose<T>(rows, s.d_value, v, s.ld_v, v_transposed, s.ld_c);
    small_gemm_nn<T>(rows, rows, s.d_value, g, s.ld_v, v_transposed, s.ld_c, g_v, s.ld_c, false);
    bool direct = false;
    for (std::int64_t i = 0; i < rows; ++i) direct = pair_slopes(i, rows) || direct;
    // d_log_q_if = exp_q_if Σ_j d_product_ij exp_k_jf, and for keys alike.
    small_gemm_nn<T>(rows, s.m, rows, d_product, s.ld_c, exp_k, s.ld_m, d_log_q, s.ld_m, false);
    small_gemm_tn<T>(rows, s.m, rows, d_product, s.ld_c, exp_q, s.ld_m, work, s.ld_m, false);
    for (std::int64_t i = 0; i < rows; ++i) {
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const std::int64_t at = i * s.ld_m + f;
        store_n(hn::Mul(load_n(d_log_q + at, n), load_n(exp_q + at, n)), d_log_q + at, n);
        store_n(hn::MulAdd(load_n(work + at, n), load_n(exp_k + at, n), load_n(d_log + at, n)), d_log + at, n);
      });
    }
    if (direct) direct_pair_gradients(rows);
    small_gemm_tn<T>(rows, s.d_value, rows, weight, s.ld_c, g, s.ld_v, d_v, s.ld_v, true);
  }

  const LinearAttentionSizes& s;
  bool seen = false;  // whether the state holds anything
  T *state, *normalizer, *feature_max;
  T *q, *k, *v, *out, *log_q, *log_k, *exp_q, *exp_k, *work, *product, *weight, *exp_k_transposed;
  T *row_q, *row_k, *top_, *inverse_, *delta;
  T *transposed = nullptr, *g = nullptr, *d_v = nullptr, *d_x = nullptr, *d_log = nullptr, *d_log_q = nullptr;
  T *d_product = nullptr, *g_v = nullptr, *v_transposed = nullptr;

 private:
  /// out = weight · v. A weight of 0 times a later value that is not finite would reach an earlier row as NaN: then each row sums only what
  /// it sees, in the same order and so with the same bits.
  void weighted_values(std::int64_t rows) {
    V sum = hn::Zero(d);
    for (std::int64_t j = 0; j < rows; ++j) {
      for_lanes<T>(s.d_value,
                   [&](std::int64_t c, std::int64_t n) HWY_ATTR { sum = hn::MulAdd(load_n(v + j * s.ld_v + c, n), hn::Zero(d), sum); });
    }
    if (hn::AllTrue(d, hn::Eq(sum, hn::Zero(d)))) {
      small_gemm_nn<T>(rows, s.d_value, rows, weight, s.ld_c, v, s.ld_v, out, s.ld_v, false);
      return;
    }
    for (std::int64_t i = 0; i < rows; ++i)
      small_gemm_nn<T>(1, s.d_value, i + 1, weight + i * s.ld_c, s.ld_c, v, s.ld_v, out + i * s.ld_v, s.ld_v, false);
  }

  /// Features [f, f + n) of the state and normalizer under their new maximum.
  void rescale_state(std::int64_t f, V factor, std::int64_t n) {
    store_n(hn::Mul(load_n(normalizer + f, n), factor), normalizer + f, n);
    alignas(64) T factors[64 / sizeof(T)];
    hn::StoreU(factor, d, factors);
    for (std::int64_t lane = 0; lane < n; ++lane) {
      if (factors[lane] != 1) scale_row(state + (f + lane) * s.ld_v, s.d_value, factors[lane]);
    }
  }

  static void scale_row(T* row, std::int64_t width, T factor) {
    const V by = hn::Set(d, factor);
    for_lanes<T>(width, [&](std::int64_t j, std::int64_t n) HWY_ATTR { store_n(hn::Mul(load_n(row + j, n), by), row + j, n); });
  }

  /// Writes exp(row - max(row)) and returns the maximum.
  T normalised(const T* row, T* target) const {
    V top = hn::Set(d, nothing);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n)
                          HWY_ATTR { top = hn::Max(top, n == Lanes<T>::count() ? load_n(row + f, n) : tail(row + f, n)); });
    const T maximum = hn::GetLane(hn::MaxOfLanes(d, top));
    const V shift = hn::Set(d, maximum);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR { store_n(exp(d, hn::Sub(load_n(row + f, n), shift)), target + f, n); });
    return maximum;
  }
  /// The last, partial vector of a row, with `nothing` in the lanes beyond it.
  static V tail(const T* row, std::int64_t n) {
    return hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(n)), load_n(row, n), hn::Set(d, nothing));
  }

  /// The logarithm of a power of two that is at most max_j w_ij and more than half of it: rowmax_q + max_j (rowmax_k + ⌊log2 product⌋ ln
  /// 2).
  T pair_top(std::int64_t i) {
    const std::int64_t visible = i + 1;
    V best = hn::Set(d, nothing);
    bool direct = false;
    for_lanes<T>(visible, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
      const V p = load_n(product + i * s.ld_c + j, n);
      const auto in = hn::FirstN(d, static_cast<std::size_t>(n));
      const auto large = hn::Ge(p, hn::Set(d, least_product));
      direct = direct || !hn::AllTrue(d, hn::Or(large, hn::Not(in)));
      const V log_weight = hn::Add(load_n(row_k + j, n), exponent(p));
      best = hn::Max(best, hn::IfThenElse(hn::And(in, large), log_weight, hn::Set(d, nothing)));
    });
    T top = hn::GetLane(hn::MaxOfLanes(d, best)) + row_q[i];
    if (direct) {
      for (std::int64_t j = 0; j < visible; ++j) {
        if (product[i * s.ld_c + j] < least_product) top = std::max(top, direct_log_weight(i, j));
      }
    }
    return top;
  }
  /// ⌊log2 p⌋ ln 2 of positive normal numbers, from their exponent bits.
  static V exponent(V p) {
    const hn::RebindToSigned<D> di;
    constexpr int mantissa_bits = sizeof(T) == 8 ? 52 : 23, bias = sizeof(T) == 8 ? 1023 : 127;
    const auto bits = hn::ShiftRight<mantissa_bits>(hn::BitCast(di, p));
    return hn::Mul(hn::Sub(hn::ConvertTo(d, bits), hn::Set(d, T{bias})), hn::Set(d, static_cast<T>(0.69314718055994530942)));
  }

  /// log Σ_f exp(a_if + b_jf) the long way.
  T direct_log_weight(std::int64_t i, std::int64_t j) const {
    const T *a = log_q + i * s.ld_m, *b = log_k + j * s.ld_m;
    V best = hn::Set(d, nothing);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V both = hn::Add(load_n(a + f, n), load_n(b + f, n));
      best = hn::Max(best,
                     n == Lanes<T>::count() ? both : hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(n)), both, hn::Set(d, nothing)));
    });
    const T maximum = hn::GetLane(hn::MaxOfLanes(d, best));
    const V shift = hn::Set(d, maximum);
    V sum = hn::Zero(d);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V e = exp(d, hn::Sub(hn::Add(load_n(a + f, n), load_n(b + f, n)), shift));
      sum = hn::Add(sum, n == Lanes<T>::count() ? e : hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n)), e));
    });
    return maximum + std::log(hn::GetLane(hn::SumOfLanes(d, sum)));
  }

  /// weight row i = w_ij exp(-top) for j <= i, 0 behind; returns its sum.
  T pair_weights(std::int64_t i, std::int64_t rows, T top) {
    const V shift = hn::Set(d, row_q[i] - top);
    const std::int64_t visible = i + 1;
    V sum = hn::Zero(d);
    bool direct = false;
    for_lanes<T>(rows, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
      const V p = load_n(product + i * s.ld_c + j, n);
      const auto in = hn::FirstN(d, static_cast<std::size_t>(std::clamp<std::int64_t>(visible - j, 0, n)));
      const auto large = hn::Ge(p, hn::Set(d, least_product));
      direct = direct || !hn::AllTrue(d, hn::Or(large, hn::Not(in)));
      // Where the pair is hidden or summed directly the factor may be anything.
      const V w = hn::IfThenElseZero(hn::And(in, large), hn::Mul(p, exp(d, hn::Add(load_n(row_k + j, n), shift))));
      sum = hn::Add(sum, w);
      store_n(w, weight + i * s.ld_c + j, n);
    });
    T total = hn::GetLane(hn::SumOfLanes(d, sum));
    if (direct) {
      for (std::int64_t j = 0; j < visible; ++j) {
        if (product[i * s.ld_c + j] >= least_product) continue;
        const T w = std::exp(direct_log_weight(i, j) - top);
        weight[i * s.ld_c + j] = w;
        total += w;
      }
    }
    return total;
  }

  T past_top(std::int64_t i) const {
    V best = hn::Set(d, nothing);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V both = hn::Add(load_n(log_q + i * s.ld_m + f, n), load_n(feature_max + f, n));
      best = hn::Max(best,
                     n == Lanes<T>::count() ? both : hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(n)), both, hn::Set(d, nothing)));
    });
    return hn::GetLane(hn::MaxOfLanes(d, best));
  }

  /// work row i = exp(a_i + c - top); returns its product with z.
  T past_weights(std::int64_t i, T top) {
    const V shift = hn::Set(d, top);
    V sum = hn::Zero(d);
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V e = exp(d, hn::Sub(hn::Add(load_n(log_q + i * s.ld_m + f, n), load_n(feature_max + f, n)), shift));
      store_n(e, work + i * s.ld_m + f, n);
      sum = hn::MulAdd(e, load_n(normalizer + f, n), sum);  // lanes beyond m: z is zero there
    });
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }

  /// feature_max = max(feature_max, max_i (rows_i - less_i)); `rescale` is given exp(old - new) for each run of features.
  template <class Rescale>
  void raise_maximum(std::int64_t rows, const T* log_rows, const T* less, const Rescale& rescale) {
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V before = load_n(feature_max + f, n);
      V after = before;
      for (std::int64_t i = 0; i < rows; ++i) {
        const V row = load_n(log_rows + i * s.ld_m + f, n);
        after = hn::Max(after, less ? hn::Sub(row, hn::Set(d, less[i])) : row);
      }
      store_n(after, feature_max + f, n);
      rescale(f, exp(d, hn::Sub(before, after)), n);
    });
  }

  /// work = exp(rows - less - feature_max) · factor.
  void exponentials(std::int64_t rows, const T* log_rows, const T* less, const T* factor) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const V shift = hn::Set(d, less ? less[i] : T{0}), by = hn::Set(d, factor ? factor[i] : T{1});
      for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
        const std::int64_t at = i * s.ld_m + f;
        const V e = exp(d, hn::Sub(hn::Sub(load_n(log_rows + at, n), shift), load_n(feature_max + f, n)));
        store_n(hn::Mul(e, by), work + at, n);
      });
    }
  }

  void add_columns(std::int64_t rows, const T* matrix, T* sums) const {
    for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      V sum = load_n(sums + f, n);
      for (std::int64_t i = 0; i < rows; ++i) sum = hn::Add(sum, load_n(matrix + i * s.ld_m + f, n));
      store_n(sum, sums + f, n);
    });
  }

  /// weight row i becomes w_ij / Σ_j w_ij, d_product row i = ∂ loss / ∂ product_ij, both zero for j > i. True when a pair needs the direct
  /// way.
  bool pair_slopes(std::int64_t i, std::int64_t rows) {
    const V shift = hn::Set(d, row_q[i] - top_[i]), inverse = hn::Set(d, inverse_[i]), less = hn::Set(d, delta[i]);
    const std::int64_t visible = i + 1;
    bool direct = false;
    for_lanes<T>(rows, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
      const std::int64_t at = i * s.ld_c + j;
      const V p = load_n(product + at, n);
      const auto in = hn::FirstN(d, static_cast<std::size_t>(std::clamp<std::int64_t>(visible - j, 0, n)));
      const auto large = hn::Ge(p, hn::Set(d, least_product));
      direct = direct || !hn::AllTrue(d, hn::Or(large, hn::Not(in)));
      const auto counts = hn::And(in, large);
      const V factor = hn::Mul(inverse, exp(d, hn::Add(load_n(row_k + j, n), shift)));
      store_n(hn::IfThenElseZero(counts, hn::Mul(p, factor)), weight + at, n);
      store_n(hn::IfThenElseZero(counts, hn::Mul(factor, hn::Sub(load_n(g_v + at, n), less))), d_product + at, n);
    });
    return direct;
  }

  void direct_pair_gradients(std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j <= i; ++j) {
        const std::int64_t at = i * s.ld_c + j;
        if (product[at] >= least_product) continue;
        const V top = hn::Set(d, top_[i]), slope = hn::Set(d, (g_v[at] - delta[i]) * inverse_[i]);
        V sum = hn::Zero(d);
        for_lanes<T>(s.m, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
          const std::int64_t at_q = i * s.ld_m + f, at_k = j * s.ld_m + f;
          V e = exp(d, hn::Sub(hn::Add(load_n(log_q + at_q, n), load_n(log_k + at_k, n)), top));
          if (n != Lanes<T>::count()) e = hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n)), e);
          sum = hn::Add(sum, e);
          store_n(hn::MulAdd(e, slope, load_n(d_log_q + at_q, n)), d_log_q + at_q, n);
          store_n(hn::MulAdd(e, slope, load_n(d_log + at_k, n)), d_log + at_k, n);
        });
        weight[at] = hn::GetLane(hn::SumOfLanes(d, sum)) * inverse_[i];
      }
    }
  }
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
