#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/loss/distillation_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/loss/distillation_kernels.h"
#include "framework/ops/loss/logits-inl.h"
#include "framework/simd/integers.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

/// Sums of one row: Σ exp((logits - maximum) / T) for student and teacher, and Σ over the vocabulary of the teacher's
/// terms times (teacher - its maximum) - (student - its maximum).
template <class C>
struct DivergenceSums {
  C student, teacher, difference;
};

/// `keep`: the terms replace the logits.
template <class C>
HWY_INLINE DivergenceSums<C> divergence_sums(C* student, C* teacher, C student_maximum_, C teacher_maximum_,
                                             C inverse_temperature_, std::int64_t n, bool keep) {
  const typename Lanes<C>::D d;
  const std::int64_t step = Lanes<C>::count();
  const auto student_maximum = hn::Set(d, student_maximum_), teacher_maximum = hn::Set(d, teacher_maximum_);
  const auto inverse_temperature = hn::Set(d, inverse_temperature_), zero = hn::Zero(d);
  auto student_sum = zero, teacher_sum = zero, difference = zero;
  for (std::int64_t i = 0; i < n; i += step) {
    const std::int64_t k = std::min(step, n - i);
    const auto s = hn::Sub(load_logits(student + i, k), student_maximum),
               t = hn::Sub(load_logits(teacher + i, k), teacher_maximum);
    const auto student_term = simd::HWY_NAMESPACE::exp(d, hn::Mul(s, inverse_temperature));
    const auto teacher_term = simd::HWY_NAMESPACE::exp(d, hn::Mul(t, inverse_temperature));
    if (keep) {
      store_n(student_term, student + i, k);
      store_n(teacher_term, teacher + i, k);
    }
    student_sum = hn::Add(student_sum, student_term);
    teacher_sum = hn::Add(teacher_sum, teacher_term);
    // Tokens with zero teacher probability add nothing; this also avoids 0 · infinity for a logit of -infinity.
    difference =
        hn::Add(difference, hn::IfThenElseZero(hn::Gt(teacher_term, zero), hn::Mul(teacher_term, hn::Sub(t, s))));
  }
  return {hn::GetLane(hn::SumOfLanes(d, student_sum)), hn::GetLane(hn::SumOfLanes(d, teacher_sum)),
          hn::GetLane(hn::SumOfLanes(d, difference))};
}

/// d_logits = student's terms * student_factor - teacher's * teacher_factor, rounded to its storage type. May be the
/// memory of the student's terms.
template <class C, class G>
HWY_INLINE void scale_differences(const C* student, C student_factor_, const C* teacher, C teacher_factor_, G* d_logits,
                                  std::int64_t n) {
  const typename Lanes<C>::D d;
  const std::int64_t step = Lanes<C>::count();
  const auto student_factor = hn::Set(d, student_factor_), teacher_factor = hn::Set(d, teacher_factor_);
  for (std::int64_t i = 0; i < n; i += step) {
    const std::int64_t k = std::min(step, n - i);
    store_n<G>(
        hn::Sub(hn::Mul(load_n(student + i, k), student_factor), hn::Mul(load_n(teacher + i, k), teacher_factor)),
        d_logits + i, k);
  }
}

/// Processes one row that counts: returns its loss, and writes the gradient of the student's logits if d_logits is not
/// null.
template <class C, class G>
HWY_INLINE C row_divergence(C* student, C* teacher, C temperature, C inverse_normalizer, G* d_logits, std::int64_t n) {
  const C student_maximum = largest(student, n), teacher_maximum = largest(teacher, n);
  const auto sums =
      divergence_sums(student, teacher, student_maximum, teacher_maximum, 1 / temperature, n, d_logits != nullptr);
  if (d_logits) {
    const C factor = temperature * inverse_normalizer;
    scale_differences(student, factor / sums.student, teacher, factor / sums.teacher, d_logits, n);
  }
  return temperature *
         (sums.difference / sums.teacher + temperature * (std::log(sums.student) - std::log(sums.teacher)));
}

template <class C, class G>
void chunk_divergences(const DistillationRows& chunk) {
  const std::int64_t count = chunk.student.extent(0), vocabulary = chunk.student.extent(1);
  C *student = chunk.student.data<C>(), *teacher = chunk.teacher.data<C>();
  G* d_logits = chunk.d_logits.defined() ? chunk.d_logits.data<G>() : nullptr;
  C* losses = chunk.row_losses.data<C>();
  const C inverse_normalizer = chunk.inverse_normalizer.data<C>()[0], temperature = static_cast<C>(chunk.temperature);
  parallel_ranges(count, std::max<std::int64_t>(1, 4096 / vocabulary), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = chunk.first_row + i, first = i * vocabulary;
      G* d_row = d_logits ? d_logits + first : nullptr;
      if (simd::integer_at(chunk.targets, row) >= 0) {
        losses[row] =
            row_divergence(student + first, teacher + first, temperature, inverse_normalizer, d_row, vocabulary);
        continue;
      }
      losses[row] = 0;
      if (d_row) std::fill_n(d_row, vocabulary, G{});
    }
  });
}

void ChunkDivergences(const DistillationRows& chunk) {
  if (chunk.student.dtype() == DType::float64) {
    chunk_divergences<double, double>(chunk);
  } else if (chunk.d_logits.defined() && chunk.d_logits.dtype() == DType::bfloat16) {
    chunk_divergences<float, bfloat16>(chunk);
  } else {
    chunk_divergences<float, float>(chunk);
  }
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(ChunkDivergences);

void distillation_rows_cpu(const DistillationRows& rows) { HWY_DYNAMIC_DISPATCH(ChunkDivergences)(rows); }
}  // namespace furlong::ops
#endif
