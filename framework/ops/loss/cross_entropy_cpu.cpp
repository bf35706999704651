#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/loss/cross_entropy_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/loss/cross_entropy_rows.h"
#include "framework/ops/loss/logits-inl.h"
#include "framework/primitives/dispatch.h"
#include "framework/simd/integers.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

/// Returns Σ exp(logits - maximum); the terms replace the logits if `keep`.
template <class C>
HWY_INLINE C sum_of_exponentials(C* logits, C maximum_, std::int64_t n, bool keep) {
  const typename Lanes<C>::D d;
  const std::int64_t step = Lanes<C>::count();
  const auto maximum = hn::Set(d, maximum_);
  auto sum = hn::Zero(d);
  for (std::int64_t i = 0; i < n; i += step) {
    const std::int64_t k = std::min(step, n - i);
    const auto term = simd::HWY_NAMESPACE::exp(d, hn::Sub(load_logits(logits + i, k), maximum));
    if (keep) store_n(term, logits + i, k);
    sum = hn::Add(sum, term);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// d_logits = terms * factor, rounded to its storage type; both may be the same memory.
template <class C, class G>
HWY_INLINE void scale_terms(const C* terms, C factor_, G* d_logits, std::int64_t n) {
  const typename Lanes<C>::D d;
  const std::int64_t step = Lanes<C>::count();
  const auto factor = hn::Set(d, factor_);
  for (std::int64_t i = 0; i < n; i += step) {
    const std::int64_t k = std::min(step, n - i);
    store_n<G>(hn::Mul(load_n(terms + i, k), factor), d_logits + i, k);
  }
}

/// Processes one row that counts: returns its loss, and writes the gradient of the logits if d_logits is not null.
template <class C, class G>
HWY_INLINE C row_loss(C* logits, std::int64_t target, C inverse_normalizer, G* d_logits, std::int32_t* correct,
                      std::int64_t n) {
  const C maximum = largest(logits, n), target_logit = logits[target];
  if (correct) *correct = target_logit == maximum && std::find(logits, logits + target, maximum) == logits + target;
  const C sum = sum_of_exponentials(logits, maximum, n, d_logits != nullptr);
  if (d_logits) {
    const C target_term = logits[target];  // now exp(target_logit - maximum)
    scale_terms(logits, inverse_normalizer / sum, d_logits, n);
    d_logits[target] = static_cast<G>((target_term - sum) / sum * inverse_normalizer);
  }
  return std::log(sum) + (maximum - target_logit);
}

template <class C, class G>
void chunk_losses(const CrossEntropyRows& chunk) {
  const std::int64_t count = chunk.logits.extent(0), vocabulary = chunk.logits.extent(1);
  C* logits = chunk.logits.data<C>();
  G* d_logits = chunk.d_logits.defined() ? chunk.d_logits.data<G>() : nullptr;
  C* losses = chunk.row_losses.data<C>();
  std::int32_t* correct = chunk.correct.defined() ? chunk.correct.data<std::int32_t>() : nullptr;
  const C inverse_normalizer = chunk.inverse_normalizer.data<C>()[0];
  parallel_ranges(count, std::max<std::int64_t>(1, 8192 / vocabulary), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = chunk.first_row + i, target = simd::integer_at(chunk.targets, row);
      G* d_row = d_logits ? d_logits + i * vocabulary : nullptr;
      if (target >= 0) {
        losses[row] = row_loss(logits + i * vocabulary, target, inverse_normalizer, d_row,
                               correct ? correct + row : nullptr, vocabulary);
        continue;
      }
      losses[row] = 0;
      if (correct) correct[row] = 0;
      if (d_row) std::fill_n(d_row, vocabulary, G{});
    }
  });
}

void ChunkLosses(const CrossEntropyRows& chunk) {
  if (chunk.logits.dtype() == DType::float64) {
    chunk_losses<double, double>(chunk);
  } else if (chunk.d_logits.defined() && chunk.d_logits.dtype() == DType::bfloat16) {
    chunk_losses<float, bfloat16>(chunk);
  } else {
    chunk_losses<float, float>(chunk);
  }
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(ChunkLosses);

void cross_entropy_rows_cpu(const CrossEntropyRows& rows) { HWY_DYNAMIC_DISPATCH(ChunkLosses)(rows); }

void count_targets_cpu(const Tensor& targets, std::int64_t vocabulary, double normalizer, const Tensor& given,
                       const Tensor& counts, const Tensor& inverse_normalizer) {
  if (given.defined()) normalizer = given.data<double>()[0];
  std::int32_t valid = 0;
  for (std::int64_t row = 0; row < targets.elements(); ++row) {
    const std::int64_t target = simd::integer_at(targets, row);
    require(target >= -1 && target < vocabulary, "target {} at row {} is outside [-1, {})", target, row, vocabulary);
    valid += target >= 0;
  }
  counts.data<std::int32_t>()[0] = valid;
  counts.data<std::int32_t>()[1] = 0;
  const double divisor = normalizer > 0 ? normalizer : static_cast<double>(valid);
  with_float_type(inverse_normalizer.dtype(), "cross_entropy", [&]<class T>(std::type_identity<T>) {
    inverse_normalizer.data<T>()[0] = static_cast<T>(static_cast<compute_t<T>>(divisor > 0 ? 1 / divisor : 0));
  });
}

double scalar_cpu(const Tensor& scalar) {
  double value = 0;
  with_float_type(scalar.dtype(), "cross_entropy",
                  [&]<class T>(std::type_identity<T>) { value = static_cast<double>(scalar.data<T>()[0]); });
  return value;
}

void sum_rows_cpu(const Tensor& row_losses, const Tensor& correct, const Tensor& inverse_normalizer, const Tensor& loss,
                  const Tensor& counts) {
  double sum = 0;
  with_float_type(row_losses.dtype(), "cross_entropy", [&]<class T>(std::type_identity<T>) {
    const T* values = row_losses.data<T>();
    for (std::int64_t row = 0; row < row_losses.elements(); ++row) sum += static_cast<double>(values[row]);
    loss.data<T>()[0] = static_cast<T>(static_cast<compute_t<T>>(sum * scalar_cpu(inverse_normalizer)));
  });
  if (!correct.defined()) return;
  std::int32_t hits = 0;
  for (std::int64_t row = 0; row < correct.elements(); ++row) hits += correct.data<std::int32_t>()[row];
  counts.data<std::int32_t>()[1] = hits;
}
}  // namespace furlong::ops
#endif
