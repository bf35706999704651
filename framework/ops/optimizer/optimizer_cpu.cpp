#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/optimizer/optimizer_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include <cmath>

#include "framework/ops/optimizer/optimizer_kernels.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/random-inl.h"
#include "framework/simd/spans.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::simd::HWY_NAMESPACE;

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
  // The two corrections are folded into one step size and one factor of the square root, computed once in double.
  const double correction1 = 1 - std::pow(settings.beta1, step), correction2 = 1 - std::pow(settings.beta2, step);
  const auto scale = constant(settings.gradient_scale), beta1 = constant(settings.beta1),
             rest1 = constant(1 - settings.beta1);
  const auto beta2 = constant(settings.beta2), rest2 = constant(1 - settings.beta2),
             epsilon = constant(settings.epsilon);
  const auto kept = constant(1 - settings.learning_rate * settings.weight_decay);
  const auto step_size = constant(settings.learning_rate / correction1),
             root_factor = constant(1 / std::sqrt(correction2));
  for_lanes<T>(size, [&](std::int64_t i, std::int64_t n) {
    const auto g = hn::Mul(load_n(span.d_values + i, n), scale);
    const auto m = hn::MulAdd(beta1, load_n(span.first_moment + i, n), hn::Mul(rest1, g));
    const auto v = hn::MulAdd(beta2, load_n(span.second_moment + i, n), hn::Mul(rest2, hn::Mul(g, g)));
    const auto divisor = hn::MulAdd(hn::Sqrt(v), root_factor, epsilon);
    const auto change = hn::Mul(step_size, hn::Div(m, divisor));
    // Lanes past the end may hold 0 / 0 if epsilon is 0; they are not stored.
    const auto value = hn::MulSub(load_n(span.values + i, n), kept, change);
    store_n(m, span.first_moment + i, n);
    store_n(v, span.second_moment + i, n);
    store_n(value, span.values + i, n);
    if constexpr (sizeof(T) == 4) {
      if (span.compute_values) store_n<bfloat16>(value, span.compute_values + i, n);
    }
  });
}

/// copies = values, rounded stochastically; `first` is the index of the first element in the tensor.
void round_span(const float* values, bfloat16* copies, std::int64_t size, std::int64_t first,
                const StochasticRounding& rounding, std::int64_t step) {
  const RandomKey key{rounding.seed, static_cast<std::uint32_t>(step), rounding.stream};
  const std::uint64_t index = rounding.first_element + static_cast<std::uint64_t>(first);
  alignas(64) std::uint32_t words[4 * 64];  // at most as many blocks as there are lanes
  const auto made = static_cast<std::uint64_t>(4 * random_lanes());
  for (std::int64_t i = 0; i < size;) {
    const std::uint64_t at = index + static_cast<std::uint64_t>(i), skipped = at % 4;
    random_words(key, at / 4, words);
    const std::int64_t n = std::min(size - i, static_cast<std::int64_t>(made - skipped));
    for (std::int64_t k = 0; k < n; ++k)
      copies[i + k].bits = stochastic_bfloat16(values[i + k], words[skipped + static_cast<std::uint64_t>(k)]);
    i += n;
  }
}

void AdamW(const Tensor& values, const Tensor& d_values, const Tensor& first_moment, const Tensor& second_moment,
           const AdamWStep& settings, const Tensor& compute_values) {
  const bool draws = compute_values.defined() && settings.stochastic_rounding;
  const std::int64_t run_length = draws ? 4096 : values.elements();  // short runs stay in the cache for rounding
  const auto update = [&]<class T>(std::type_identity<T>, std::int64_t begin, std::int64_t size) {
    bfloat16* copies = compute_values.defined() ? compute_values.data<bfloat16>() + begin : nullptr;
    adamw_span<T>({values.data<T>() + begin, d_values.data<T>() + begin, first_moment.data<T>() + begin,
                   second_moment.data<T>() + begin, draws ? nullptr : copies},
                  size, settings);
    if constexpr (sizeof(T) == 4) {
      if (draws)
        round_span(values.data<T>() + begin, copies, size, begin, *settings.stochastic_rounding, settings.step);
    }
  };
  const auto run = [&]<class T>(std::type_identity<T> type) {
    parallel_ranges(values.elements(), simd::elementwise_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; i += run_length) update(type, i, std::min(run_length, end - i));
    });
  };
  values.dtype() == DType::float64 ? run(std::type_identity<double>{}) : run(std::type_identity<float>{});
}

void RoundStochastically(const Tensor& compute_values, const Tensor& values, const StochasticRounding& rounding,
                         std::int64_t step) {
  parallel_ranges(values.elements(), simd::elementwise_grain, [&](std::int64_t begin, std::int64_t end) {
    round_span(values.data<float>() + begin, compute_values.data<bfloat16>() + begin, end - begin, begin, rounding,
               step);
  });
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
    parallel_ranges(average.elements(), simd::elementwise_grain, [&](std::int64_t begin, std::int64_t end) {
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
HWY_EXPORT(RoundStochastically);
HWY_EXPORT(Ema);
void adamw_step_cpu(const Tensor& values, const Tensor& d_values, const Tensor& first_moment,
                    const Tensor& second_moment, const AdamWStep& settings, const Tensor& scalars,
                    const Tensor& compute_values) {
  AdamWStep now = settings;
  if (scalars.defined()) {
    const double* given = scalars.data<double>();
    if (given[scalar_skipped] != 0) return;
    now.learning_rate = given[scalar_learning_rate];
    now.step = static_cast<std::int64_t>(given[scalar_step]);
    now.gradient_scale = given[scalar_gradient_scale];
    require(now.step >= 1, "adamw_step: step {}, expected 1 or more", now.step);
  }
  HWY_DYNAMIC_DISPATCH(AdamW)(values, d_values, first_moment, second_moment, now, compute_values);
}
void round_stochastically_cpu(const Tensor& compute_values, const Tensor& values, const StochasticRounding& rounding,
                              std::int64_t step) {
  HWY_DYNAMIC_DISPATCH(RoundStochastically)(compute_values, values, rounding, step);
}
void ema_update_cpu(const Tensor& average, const Tensor& values, double decay, const Tensor& scalars) {
  if (scalars.defined() && scalars.data<double>()[scalar_skipped] != 0) return;
  HWY_DYNAMIC_DISPATCH(Ema)(average, values, decay);
}
}  // namespace furlong::ops
#endif
