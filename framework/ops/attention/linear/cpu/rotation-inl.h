// Rotary positions in the numerator of linear attention: rotations of feature pairs. Per-target include guard; see
// framework/simd/simd-inl.h.
//
// R_p rotates the feature pair (f, f + half), half = ⌊m/2⌋, by the angle p·base^(-2f/m). The last of an odd number of
// features is not rotated.
#if defined(FURLONG_LINEAR_ATTENTION_ROTATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_LINEAR_ATTENTION_ROTATION_INL_H_
#undef FURLONG_LINEAR_ATTENTION_ROTATION_INL_H_
#else
#define FURLONG_LINEAR_ATTENTION_ROTATION_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>

#include "framework/ops/attention/linear/linear_attention_arguments.h"
#include "framework/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

/// Cosines and sines for the call's first position and for 1, 2, 4, … tokens, from which those of every token are
/// composed. The table is [1 + powers, 2, padded half] in double precision, so that angles at the millionth token are
/// as accurate as at the first.
class RotationPowers {
 public:
  explicit RotationPowers(const Tensor& table) : table_(table.data<double>()), ld_(table.extent(2)) {}

  void prepare(std::int64_t powers, std::int64_t features, double base, std::int64_t first_position) const {
    const std::int64_t half = features / 2;
    for (std::int64_t f = 0; f < half; ++f) {
      const double frequency = std::pow(base, -2 * static_cast<double>(f) / static_cast<double>(features));
      for (std::int64_t row = 0; row <= powers; ++row) {
        const double angle = frequency * static_cast<double>(row == 0 ? first_position : std::int64_t{1} << (row - 1));
        cosine(row)[f] = std::cos(angle);
        sine(row)[f] = std::sin(angle);
      }
    }
    for (std::int64_t row = 0; row <= powers; ++row) {  // padding lanes: computed with, never used
      std::fill(cosine(row) + half, cosine(row) + ld_, 1.0);
      std::fill(sine(row) + half, sine(row) + ld_, 0.0);
    }
  }

  /// Row t of target = cosines, then sines [2, ld], of token start + t of this call.
  template <class T>
  void rotations(std::int64_t start, std::int64_t rows, T* target) const {
    const std::int64_t lanes = Lanes<double>::count();
    for (std::int64_t f = 0; f < ld_; f += lanes) {
      Rotation first = load(0, f);
      for (std::int64_t rest = start; rest > 0; rest &= rest - 1) first = both(first, load(1 + lowest_bit(rest), f));
      // latest[b]: the latest token t whose lowest set bit is b. A token without its lowest bit is one of them, so each
      // token takes one product.
      Rotation latest[max_powers];
      store(first, target + f);
      for (std::int64_t t = 1; t < rows; ++t) {
        const std::int64_t bit = lowest_bit(t), rest = t & (t - 1);
        latest[bit] = both(rest == 0 ? first : latest[lowest_bit(rest)], load(1 + bit, f));
        store(latest[bit], target + t * 2 * ld_ + f);
      }
    }
  }

 private:
  static constexpr std::int64_t max_powers = 64;
  using D = Lanes<double>::D;
  static constexpr D d{};
  struct Rotation {
    Lanes<double>::V cosine, sine;
  };
  double* cosine(std::int64_t row) const { return table_ + row * 2 * ld_; }
  double* sine(std::int64_t row) const { return cosine(row) + ld_; }
  static std::int64_t lowest_bit(std::int64_t number) { return std::countr_zero(static_cast<std::uint64_t>(number)); }
  Rotation load(std::int64_t row, std::int64_t f) const {
    return {hn::LoadU(d, cosine(row) + f), hn::LoadU(d, sine(row) + f)};
  }
  static Rotation both(const Rotation& a, const Rotation& b) {
    return {hn::NegMulAdd(a.sine, b.sine, hn::Mul(a.cosine, b.cosine)),
            hn::MulAdd(a.sine, b.cosine, hn::Mul(a.cosine, b.sine))};
  }
  template <class T>
  void store(const Rotation& turn, T* target) const {
    if constexpr (sizeof(T) == 8) {
      hn::StoreU(turn.cosine, d, target);
      hn::StoreU(turn.sine, d, target + ld_);
    } else {
      const hn::Rebind<T, D> narrow;
      hn::StoreU(hn::DemoteTo(narrow, turn.cosine), narrow, target);
      hn::StoreU(hn::DemoteTo(narrow, turn.sine), narrow, target + ld_);
    }
  }

  double* table_;
  std::int64_t ld_;
};

/// Rotations of a run of tokens, stored in one tile. They are reused for the next head if it has the same positions.
template <class T>
struct TokenRotations {
  T* table = nullptr;  // [rows, 2, ld]
  std::int64_t features = 0, ld = 0;
  std::int64_t start = 0, rows = 0;

  void set(const RotationPowers& powers, std::int64_t first, std::int64_t count) {
    if (first == start && count <= rows) return;
    powers.rotations(first, count, table);
    start = first;
    rows = count;
  }
  const T* cosine(std::int64_t row) const { return table + row * 2 * ld; }
  const T* sine(std::int64_t row) const { return cosine(row) + ld; }

  /// target = R source for rows of features, or Rᵀ source if `back`. source and target may be equal.
  void rotate(std::int64_t n_rows, const T* source, T* target, std::int64_t ld_rows, bool back = false) const {
    for (std::int64_t i = 0; i < n_rows; ++i) rotate_row(i, source + i * ld_rows, target + i * ld_rows, back);
  }
  void rotate_row(std::int64_t i, const T* source, T* target, bool back = false) const {
    constexpr typename Lanes<T>::D d{};
    const std::int64_t half = features / 2;
    const T *cosines = cosine(i), *sines = sine(i);
    for_lanes<T>(half, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const auto x = load_n(source + f, n), y = load_n(source + half + f, n), c = load_n(cosines + f, n);
      auto s = load_n(sines + f, n);
      if (back) s = hn::Sub(hn::Zero(d), s);
      store_n(hn::NegMulAdd(y, s, hn::Mul(x, c)), target + f, n);
      store_n(hn::MulAdd(x, s, hn::Mul(y, c)), target + half + f, n);
    });
    if (features % 2 != 0) target[features - 1] = source[features - 1];
  }
};

/// The rotated product of one query and one key whose small product has underflowed, computed feature by feature from
/// the logarithms a and b. With Δ the key's position minus the query's, x = exp(a) and y = exp(b):
/// Σ_f cos Δθ_f (x_f y_f + x_f' y_f') + sin Δθ_f (x_f' y_f - x_f y_f').
template <class T>
class RotatedPair {
  using D = typename Lanes<T>::D;
  using V = typename Lanes<T>::V;
  static constexpr D d{};

 public:
  RotatedPair(const T* a, const T* b, const TokenRotations<T>& rotations_q, std::int64_t i,
              const TokenRotations<T>& rotations_k, std::int64_t j)
      : a_(a),
        b_(b),
        features_(rotations_q.features),
        half_(features_ / 2),
        cosine_q_(rotations_q.cosine(i)),
        sine_q_(rotations_q.sine(i)),
        cosine_k_(rotations_k.cosine(j)),
        sine_k_(rotations_k.sine(j)) {}

  /// Returns an upper bound on the logarithm of every term, of the rotated and of the plain product.
  T bound() const {
    T best = features_ % 2 != 0 ? a_[features_ - 1] + b_[features_ - 1] : static_cast<T>(-1e30);
    for (std::int64_t f = 0; f < half_; ++f)
      best = std::max(best, std::max(a_[f], a_[half_ + f]) + std::max(b_[f], b_[half_ + f]));
    return best;
  }

  /// Returns exp(-top) times the rotated product.
  T product(T top) const {
    V sum = hn::Zero(d);
    for_lanes<T>(half_, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const Terms t = terms(f, n, top);
      const V value =
          hn::MulAdd(t.cosine, hn::Add(t.first, t.second), hn::Mul(t.sine, hn::Sub(t.second_first, t.first_second)));
      sum = hn::Add(sum, only(value, n));
    });
    return hn::GetLane(hn::SumOfLanes(d, sum)) + last(top);
  }

  /// Adds the gradients of the features to d_a and d_b. rotated_gradient is the gradient of exp(-top) times the rotated
  /// product, gradient that of exp(-top) times the plain product. Returns the former product.
  T add_gradients(T top, T rotated_gradient, T gradient, T* d_a, T* d_b) const {
    const V by = hn::Set(d, rotated_gradient), plain = hn::Set(d, gradient);
    V sum = hn::Zero(d);
    for_lanes<T>(half_, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const Terms t = terms(f, n, top);
      const V first = hn::Mul(t.cosine, t.first), second = hn::Mul(t.cosine, t.second);
      const V second_first = hn::Mul(t.sine, t.second_first), first_second = hn::Mul(t.sine, t.first_second);
      sum = hn::Add(sum, only(hn::Add(hn::Add(first, second), hn::Sub(second_first, first_second)), n));
      const auto add = [&](T* at, V rotated, V term) HWY_ATTR {
        store_n(hn::MulAdd(by, rotated, hn::MulAdd(plain, term, load_n(at, n))), at, n);
      };
      add(d_a + f, hn::Sub(first, first_second), t.first);
      add(d_a + half_ + f, hn::Add(second, second_first), t.second);
      add(d_b + f, hn::Add(first, second_first), t.first);
      add(d_b + half_ + f, hn::Sub(second, first_second), t.second);
    });
    const T rest = last(top);
    if (features_ % 2 != 0) {
      d_a[features_ - 1] += (rotated_gradient + gradient) * rest;
      d_b[features_ - 1] += (rotated_gradient + gradient) * rest;
    }
    return hn::GetLane(hn::SumOfLanes(d, sum)) + rest;
  }

 private:
  struct Terms {
    V cosine, sine;                               // of Δθ
    V first, second, first_second, second_first;  // x_f y_f, x_f' y_f', x_f y_f', x_f' y_f
  };
  Terms terms(std::int64_t f, std::int64_t n, T top) const {
    const V cosine_q = load_n(cosine_q_ + f, n), sine_q = load_n(sine_q_ + f, n);
    const V cosine_k = load_n(cosine_k_ + f, n), sine_k = load_n(sine_k_ + f, n);
    const V shift = hn::Set(d, top);
    const V a = load_n(a_ + f, n), a_second = load_n(a_ + half_ + f, n);
    const V b = hn::Sub(load_n(b_ + f, n), shift), b_second = hn::Sub(load_n(b_ + half_ + f, n), shift);
    return {hn::MulAdd(sine_q, sine_k, hn::Mul(cosine_q, cosine_k)),
            hn::NegMulAdd(sine_q, cosine_k, hn::Mul(cosine_q, sine_k)),
            exp(d, hn::Add(a, b)),
            exp(d, hn::Add(a_second, b_second)),
            exp(d, hn::Add(a, b_second)),
            exp(d, hn::Add(a_second, b))};
  }
  T last(T top) const { return features_ % 2 != 0 ? std::exp(a_[features_ - 1] + (b_[features_ - 1] - top)) : T{0}; }
  static V only(V value, std::int64_t n) {
    return n == Lanes<T>::count() ? value : hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(n)), value);
  }

  const T *a_, *b_;
  std::int64_t features_, half_;
  const T *cosine_q_, *sine_q_, *cosine_k_, *sine_k_;
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
