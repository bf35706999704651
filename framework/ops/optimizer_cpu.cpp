#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/optimizer_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include <cmath>

#include "framework/cpu/simd-inl.h"
#include "framework/cpu/spans.h"
#include "framework/ops/dispatch.h"
#include "framework/ops/optimizer.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::cpu::HWY_NAMESPACE;

template <class T>
struct AdamWSpan {
  T* values;
  const T* d_values;
  T* first_moment;
  T* second_moment;
  bfloat16* compute_values;  // or null
};

template <class T>
void adamw_span(const AdamWSpan<T>& span, std::int64_t size, const AdamWStep& settings) {
  const typename Lanes<T>::D d;
  const auto constant = [&](double value) { return hn::Set(d, static_cast<T>(value)); };
  const auto step = static_cast<double>(settings.step);
  // The two corrections become one step size and one factor of the root; both are taken in double, once.
  const double correction1 = 1 - std::pow(settings.beta1, step), correction2 = 1 - std::pow(settings.beta2, step);
  const auto scale = constant(settings.gradient_scale), beta1 = constant(settings.beta1), rest1 = constant(1 - settings.beta1);
  const auto beta2 = constant(settings.beta2), rest2 = constant(1 - settings.beta2), epsilon = constant(settings.epsilon);
  const auto kept = constant(1 - settings.learning_rate * settings.weight_decay);
  const auto step_size = constant(settings.learning_rate / correction1), root_factor = constant(1 / std::sqrt(correction2));
  for_lanes<T>(size, [&](std::int64_t i, std::int64_t n) {
    const auto g = hn::Mul(load_n(span.d_values + i, n), scale);
    const auto m = hn::MulAdd(beta1, load_n(span.first_moment + i, n), hn::Mul(rest1, g));
    const auto v = hn::MulAdd(beta2, load_n(span.second_moment + i, n), hn::Mul(rest2, hn::Mul(g, g)));
    const auto divisor = hn::MulAdd(hn::Sqrt(v), root_factor, epsilon);
    const auto change = hn::Mul(step_size, hn::Div(m, divisor));
    // Lanes past the end may hold 0 / 0 when epsilon is 0; they are not stored.
    const auto value = hn::MulSub(load_n(span.values + i, n), kept, change);
    store_n(m, span.first_moment + i, n);
    store_n(v, span.second_moment + i, n);
    store_n(value, span.values + i, n);
    if constexpr (sizeof(T) == 4) {
      if (span.compute_values) store_n<bfloat16>(value, span.compute_values + i, n);
    }
  });
}

void AdamW(const Tensor& values, const Tensor& d_values, const Tensor& first_moment, const Tensor& second_moment, const AdamWStep& settings,
           const Tensor& compute_values) {
  const auto run = [&]<class T>(std::type_identity<T>) {
    parallel_ranges(values.elements(), cpu::elementwise_grain, [&](std::int64_t begin, std::int64_t end) {
      bfloat16* copy = compute_values.defined() ? compute_values.data<bfloat16>() + begin : nullptr;
      adamw_span<T>(
          {values.data<T>() + begin, d_values.data<T>() + begin, first_moment.data<T>() + begin, second_moment.data<T>() + begin, copy},
          end - begin, settings);
    });
  };
  values.dtype() == DType::float64 ? run(std::type_identity<double>{}) : run(std::type_identity<float>{});
}

template <class T>
void ema_span(T* average, const T* values, std::int64_t size, double decay) {
  const typename Lanes<T>::D d;
  const auto kept = hn::Set(d, static_cast<T>(decay)), taken = hn::Set(d, static_cast<T>(1 - decay));
  for_lanes<T>(size, [&](std::int64_t i, std::int64_t n) {
    store_n(hn::MulAdd(kept, load_n(average + i, n), hn::Mul(taken, load_n(values + i, n))), average + i, n);
  });
}

void Ema(const Tensor& average, const Tensor& values, double decay) {
  const auto run = [&]<class T>(std::type_identity<T>) {
    parallel_ranges(average.elements(), cpu::elementwise_grain, [&](std::int64_t begin, std::int64_t end) {
      ema_span(average.data<T>() + begin, values.data<T>() + begin, end - begin, decay);
    });
  };
  average.dtype() == DType::float64 ? run(std::type_identity<double>{}) : run(std::type_identity<float>{});
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(AdamW);
HWY_EXPORT(Ema);
void adamw_step_cpu(const Tensor& values, const Tensor& d_values, const Tensor& first_moment, const Tensor& second_moment,
                    const AdamWStep& settings, const Tensor& compute_values) {
  HWY_DYNAMIC_DISPATCH(AdamW)(values, d_values, first_moment, second_moment, settings, compute_values);
}
void ema_update_cpu(const Tensor& average, const Tensor& values, double decay) { HWY_DYNAMIC_DISPATCH(Ema)(average, values, decay); }
}  // namespace furlong::ops
#endif
