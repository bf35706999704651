#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/primitives/activation_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/primitives/activation_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/lane_value-inl.h"
#include "framework/simd/spans.h"

#undef FURLONG_LANE_FUNCTION
#define FURLONG_LANE_FUNCTION HWY_INLINE

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;
#include "framework/primitives/activation_math-inl.h"

template <class T, class F>
void forward_span(const T* x, T* y, std::int64_t size) {
  using L = LaneValue<compute_t<T>>;
  for_lanes<T>(size, [&](std::int64_t i, std::int64_t n) { store_n(F::both(L(load_n(x + i, n))).value.v, y + i, n); });
}

template <class T, class F>
void backward_span(const T* x, const T* d_y, T* d_x, std::int64_t size, bool accumulate) {
  using L = LaneValue<compute_t<T>>;
  for_lanes<T>(size, [&](std::int64_t i, std::int64_t n) {
    L result = L(load_n(d_y + i, n)) * F::both(L(load_n(x + i, n))).derivative;
    if (accumulate) result = result + L(load_n(d_x + i, n));
    store_n(result.v, d_x + i, n);
  });
}

template <class T, class F>
void gated_forward_row(const T* gate, const T* up, T* y, std::int64_t size) {
  using L = LaneValue<compute_t<T>>;
  for_lanes<T>(size, [&](std::int64_t i, std::int64_t n) {
    store_n((F::both(L(load_n(gate + i, n))).value * L(load_n(up + i, n))).v, y + i, n);
  });
}

template <class T, class F>
void gated_backward_row(const T* gate, const T* up, const T* d_y, T* d_gate, T* d_up, std::int64_t size,
                        bool accumulate) {
  using L = LaneValue<compute_t<T>>;
  for_lanes<T>(size, [&](std::int64_t i, std::int64_t n) {
    const auto f = F::both(L(load_n(gate + i, n)));
    const L d = L(load_n(d_y + i, n));
    L for_gate = d * L(load_n(up + i, n)) * f.derivative, for_up = d * f.value;
    if (accumulate) {
      for_gate = for_gate + L(load_n(d_gate + i, n));
      for_up = for_up + L(load_n(d_up + i, n));
    }
    store_n(for_gate.v, d_gate + i, n);
    store_n(for_up.v, d_up + i, n);
  });
}

void Activation(const Tensor& x, const Tensor& y, ActivationKind kind) {
  with_float_type(x.dtype(), "activation", [&]<class T>(std::type_identity<T>) {
    with_kind(kind, [&]<class F>(F) {
      simd::parallel_spans<2>({&x, &y}, [&](std::int64_t, std::int64_t n, const std::array<std::int64_t, 2>& at) {
        forward_span<T, F>(x.data<T>() + at[0], y.data<T>() + at[1], n);
      });
    });
  });
}

void ActivationBackward(const Tensor& x, const Tensor& d_y, const Tensor& d_x, bool accumulate, ActivationKind kind) {
  with_float_type(x.dtype(), "activation", [&]<class T>(std::type_identity<T>) {
    with_kind(kind, [&]<class F>(F) {
      simd::parallel_spans<3>(
          {&x, &d_y, &d_x}, [&](std::int64_t, std::int64_t n, const std::array<std::int64_t, 3>& at) {
            backward_span<T, F>(x.data<T>() + at[0], d_y.data<T>() + at[1], d_x.data<T>() + at[2], n, accumulate);
          });
    });
  });
}

/// Calls body(row) for each row of y, on several threads.
template <class Body>
void for_rows(const Tensor& y, const Body& body) {
  const auto view = simd::row_view(y);
  const std::int64_t grain =
      std::max<std::int64_t>(1, simd::elementwise_grain / std::max<std::int64_t>(1, view.columns));
  parallel_ranges(view.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

void GatedActivation(const Tensor& x, const Tensor& y, ActivationKind kind) {
  with_float_type(x.dtype(), "gated_activation", [&]<class T>(std::type_identity<T>) {
    with_kind(kind, [&]<class F>(F) {
      const std::int64_t f = y.extent(-1);
      for_rows(y, [&](std::int64_t row) {
        const T* gate = x.data<T>() + simd::row_offset(x, row);
        gated_forward_row<T, F>(gate, gate + f, y.data<T>() + row * f, f);
      });
    });
  });
}

void GatedActivationBackward(const Tensor& x, const Tensor& d_y, const Tensor& d_x, bool accumulate,
                             ActivationKind kind) {
  with_float_type(x.dtype(), "gated_activation", [&]<class T>(std::type_identity<T>) {
    with_kind(kind, [&]<class F>(F) {
      const std::int64_t f = d_y.extent(-1);
      for_rows(d_y, [&](std::int64_t row) {
        const T* gate = x.data<T>() + simd::row_offset(x, row);
        T* d_gate = d_x.data<T>() + simd::row_offset(d_x, row);
        gated_backward_row<T, F>(gate, gate + f, d_y.data<T>() + simd::row_offset(d_y, row), d_gate, d_gate + f, f,
                                 accumulate);
      });
    });
  });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(Activation);
HWY_EXPORT(ActivationBackward);
HWY_EXPORT(GatedActivation);
HWY_EXPORT(GatedActivationBackward);

void activation_cpu(const Tensor& x, const Tensor& y, ActivationKind kind) {
  HWY_DYNAMIC_DISPATCH(Activation)(x, y, kind);
}
void activation_backward_cpu(const Tensor& x, const Tensor& d_y, const Tensor& d_x, bool accumulate,
                             ActivationKind kind) {
  HWY_DYNAMIC_DISPATCH(ActivationBackward)(x, d_y, d_x, accumulate, kind);
}
void gated_activation_cpu(const Tensor& x, const Tensor& y, ActivationKind kind) {
  HWY_DYNAMIC_DISPATCH(GatedActivation)(x, y, kind);
}
void gated_activation_backward_cpu(const Tensor& x, const Tensor& d_y, const Tensor& d_x, bool accumulate,
                                   ActivationKind kind) {
  HWY_DYNAMIC_DISPATCH(GatedActivationBackward)(x, d_y, d_x, accumulate, kind);
}
}  // namespace furlong::ops
#endif
