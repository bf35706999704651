// Feature maps of the libraries that compat_attention follows, a tile of rows at a time. Included by
// compat_attention_cpu.cpp alone.
#if defined(FURLONG_OPS_COMPAT_ATTENTION_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_OPS_COMPAT_ATTENTION_FEATURES_INL_H_
#undef FURLONG_OPS_COMPAT_ATTENTION_FEATURES_INL_H_
#else
#define FURLONG_OPS_COMPAT_ATTENTION_FEATURES_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "framework/cpu/small_gemm-inl.h"
#include "framework/ops/attention/compat/compat_attention_arguments.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace cpu::HWY_NAMESPACE;

/// What features of a whole sequence subtract: the maximum over its rows, and in which row it is.
template <class T>
struct CompatMaximum {
  T value = 0;
  std::int64_t row = 0;
};

template <class T>
class CompatFeatures {
  using Lane = Lanes<T>;
  using V = typename Lane::V;
  using Kernel = CompatDefinition::Kernel;

 public:
  /// `directions` [n_directions, ld_d] and their transpose [d, ld_u] stay the caller's; null without directions.
  CompatFeatures(const CompatDefinition& definition, const CompatAttentionSizes& sizes, const T* directions,
                 const T* transposed)
      : definition_(definition),
        sizes_(sizes),
        directions_(directions),
        transposed_(transposed),
        scale_(static_cast<T>(definition.scale)) {}

  bool needs_maximum(bool is_key) const { return definition_.stabilize || (definition_.subtract_maximum && is_key); }

  /// Takes rows first .. first + rows of a sequence into its maximum. `u` and `scaled` are scratch [rows, ld_u] and
  /// [rows, ld_d].
  void find_maximum(const T* x, std::int64_t first, std::int64_t rows, T* u, T* scaled,
                    CompatMaximum<T>& maximum) const {
    if (first == 0) maximum.value = -std::numeric_limits<T>::infinity();
    if (definition_.subtract_maximum) project(x, rows, u, scaled);
    for (std::int64_t i = 0; i < rows; ++i) {
      const T value = definition_.subtract_maximum ? row_maximum(u + i * sizes_.ld_u) : square(x + i * sizes_.ld_d);
      if (value > maximum.value) maximum = {value, first + i};
    }
  }

  /// φ(x) [rows, ld_m] of x [rows, ld_d]; where `slope` is given also ∂φ_f / ∂u_f (of the direction that feature f
  /// comes from).
  void operator()(const T* x, std::int64_t rows, bool is_key, const CompatMaximum<T>& maximum, T* u, T* scaled, T* phi,
                  T* slope) const {
    if (transposed_) project(x, rows, u, scaled);
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* row = transposed_ ? u + i * sizes_.ld_u : x + i * sizes_.ld_d;
      T* features = phi + i * sizes_.ld_m;
      T* slopes = slope ? slope + i * sizes_.ld_m : nullptr;
      switch (definition_.kernel) {
        case Kernel::exponential: {
          const T top = is_key ? maximum.value : row_maximum(row);
          exponential(row, square(x + i * sizes_.ld_d) / 2, top, features, slopes);
          break;
        }
        case Kernel::hyperbolic:
          hyperbolic(row, square(x + i * sizes_.ld_d) / 2 + (definition_.stabilize ? maximum.value : T{0}), features,
                     slopes);
          break;
        case Kernel::relu:
          relu(row, features, slopes);
          break;
        case Kernel::elu:
          elu(row, features, slopes);
          break;
      }
    }
  }

  /// d_x [rows, ld_d], overwritten, from d_phi, which is used up. Returns ∂ loss / ∂ maximum of `stabilize`, zero
  /// otherwise.
  T backward(const T* x, std::int64_t rows, T* d_phi, const T* slope, T* d_x) const {
    T d_maximum = 0;
    const bool offset = definition_.kernel == Kernel::exponential || definition_.kernel == Kernel::hyperbolic;
    for (std::int64_t i = 0; i < rows; ++i) {
      T* d_u = d_phi + i * sizes_.ld_m;
      const T d_offset = -multiply(d_u, slope + i * sizes_.ld_m);  // |x'|²/2 is subtracted in the exponent
      T* d_row = d_x + i * sizes_.ld_d;
      if (!transposed_) {
        std::copy_n(d_u, sizes_.m, d_row);
        continue;
      }
      const T factor = offset ? scale_ * d_offset : T{0};
      for_lanes<T>(sizes_.d, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
        store_n(hn::Mul(hn::Set(d_, factor), load_n(x + i * sizes_.ld_d + j, n)), d_row + j, n);
      });
      if (definition_.stabilize) d_maximum += d_offset;
    }
    if (transposed_) {
      small_gemm_nn<T>(rows, sizes_.d, sizes_.n_directions, d_phi, sizes_.ld_m, directions_, sizes_.ld_d, d_x,
                       sizes_.ld_d, true);
      for (std::int64_t i = 0; i < rows; ++i) scale_row(d_x + i * sizes_.ld_d, d_x + i * sizes_.ld_d);
    }
    return d_maximum;
  }

  /// Of the maximum |x'|² with respect to the x in which it lies.
  T maximum_slope() const { return 2 * scale_ * scale_; }

 private:
  /// u = x' ωᵀ, x' = scale x.
  void project(const T* x, std::int64_t rows, T* u, T* scaled) const {
    for (std::int64_t i = 0; i < rows; ++i) scale_row(x + i * sizes_.ld_d, scaled + i * sizes_.ld_d);
    small_gemm_nn<T>(rows, sizes_.n_directions, sizes_.d, scaled, sizes_.ld_d, transposed_, sizes_.ld_u, u, sizes_.ld_u,
                     false);
  }
  void scale_row(const T* source, T* target) const {
    for_lanes<T>(sizes_.d, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
      store_n(hn::Mul(hn::Set(d_, scale_), load_n(source + j, n)), target + j, n);
    });
  }
  /// |x'|²
  T square(const T* x) const {
    T sum = 0;
    for (std::int64_t j = 0; j < sizes_.d; ++j) sum += (scale_ * x[j]) * (scale_ * x[j]);
    return sum;
  }
  T row_maximum(const T* u) const {
    T maximum = u[0];
    for (std::int64_t f = 1; f < sizes_.n_directions; ++f) maximum = std::max(maximum, u[f]);
    return maximum;
  }

  void exponential(const T* u, T half_square, T top, T* phi, T* slope) const {
    const V factor = hn::Set(d_, static_cast<T>(definition_.feature_factor));
    const V epsilon = hn::Set(d_, static_cast<T>(definition_.feature_epsilon));
    for_lanes<T>(sizes_.n_directions, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V e = exp(d_, hn::Sub(hn::Sub(load_n(u + f, n), hn::Set(d_, half_square)), hn::Set(d_, top)));
      store_n(hn::Mul(factor, hn::Add(e, epsilon)), phi + f, n);
      if (slope) store_n(hn::Mul(factor, e), slope + f, n);
    });
  }
  void hyperbolic(const T* u, T offset, T* phi, T* slope) const {
    // The factor is part of the exponent there; as a product it is as exact and cannot overflow later.
    const V factor = hn::Set(d_, static_cast<T>(definition_.feature_factor));
    const std::int64_t half = sizes_.n_directions;
    for_lanes<T>(half, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V at = load_n(u + f, n);
      const V plus = hn::Mul(factor, exp(d_, hn::Sub(at, hn::Set(d_, offset))));
      const V minus = hn::Mul(factor, exp(d_, hn::Sub(hn::Neg(at), hn::Set(d_, offset))));
      store_n(plus, phi + f, n);
      store_n(minus, phi + half + f, n);
      if (!slope) return;
      store_n(plus, slope + f, n);
      store_n(hn::Neg(minus), slope + half + f, n);
    });
  }
  void relu(const T* u, T* phi, T* slope) const {
    const V epsilon = hn::Set(d_, static_cast<T>(definition_.feature_epsilon)), zero = hn::Zero(d_);
    for_lanes<T>(sizes_.n_directions, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V at = load_n(u + f, n);
      store_n(hn::Add(hn::Max(at, zero), epsilon), phi + f, n);
      if (slope) store_n(hn::IfThenElseZero(hn::Gt(at, zero), hn::Set(d_, T{1})), slope + f, n);
    });
  }
  void elu(const T* x, T* phi, T* slope) const {
    const V one = hn::Set(d_, T{1}), zero = hn::Zero(d_);
    for_lanes<T>(sizes_.d, [&](std::int64_t f, std::int64_t n) HWY_ATTR {
      const V at = load_n(x + f, n), below = exp(d_, hn::Min(at, zero));
      const auto positive = hn::Gt(at, zero);
      store_n(hn::IfThenElse(positive, hn::Add(at, one), below), phi + f, n);
      if (slope) store_n(hn::IfThenElse(positive, one, below), slope + f, n);
    });
  }

  /// d_u = d_phi ∘ slope, both features of a direction added up where there are two. Returns Σ_f d_phi_f ∂φ_f / ∂(log
  /// φ_f).
  T multiply(T* d_phi, const T* slope) const {
    const bool two = definition_.kernel == Kernel::hyperbolic;
    const std::int64_t width = two ? sizes_.n_directions : sizes_.m;
    T sum = 0;
    for (std::int64_t f = 0; f < width; ++f) {
      T d_u = d_phi[f] * slope[f];
      sum += d_u;
      if (two) {
        const T other = d_phi[width + f] * slope[width + f];
        sum -= other;  // the slope of exp(-u) is negative, that of its logarithm is not
        d_u += other;
      }
      d_phi[f] = d_u;
    }
    return sum;
  }

  static constexpr hn::ScalableTag<T> d_{};
  const CompatDefinition& definition_;
  const CompatAttentionSizes& sizes_;
  const T* directions_;
  const T* transposed_;
  T scale_;
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per-target include guard
