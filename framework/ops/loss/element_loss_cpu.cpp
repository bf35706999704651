#include <algorithm>
#include <cmath>

#include "framework/core/parallel.h"
#include "framework/ops/loss/element_loss_rows.h"
#include "framework/simd/integers.h"

namespace furlong::ops {
namespace {

template <class C>
struct Element {
  C loss, gradient;
};

template <class C>
Element<C> element(ElementLoss kind, C x, C value) {
  if (kind == ElementLoss::squared_error) return {(x - value) * (x - value), 2 * (x - value)};
  const C small = std::exp(-std::abs(x));  // both forms of σ(x) then stay accurate
  const C sigmoid = (x >= 0 ? C(1) : small) / (1 + small);
  return {std::max(x, C(0)) - x * value + std::log1p(small), sigmoid - value};
}

template <class C, class G>
void chunk_losses(const ElementLossRows& rows) {
  const CrossEntropyRows& chunk = rows.chunk;
  const std::int64_t count = chunk.logits.extent(0), outputs = chunk.logits.extent(1);
  const C inverse_outputs = C(1) / static_cast<C>(outputs);
  const C factor = chunk.inverse_normalizer.data<C>()[0] * inverse_outputs;
  parallel_ranges(count, std::max<std::int64_t>(1, 2048 / outputs), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = chunk.first_row + i;
      const bool counts = simd::integer_at(chunk.targets, row) >= 0;
      const C* logits = chunk.logits.data<C>() + i * outputs;
      const std::int32_t* values = rows.values.data<std::int32_t>() + row * outputs;
      G* d_logits = chunk.d_logits.defined() ? chunk.d_logits.data<G>() + i * outputs : nullptr;
      C sum = 0;
      bool correct = counts && rows.kind == ElementLoss::binary_cross_entropy;
      for (std::int64_t k = 0; k < outputs; ++k) {
        const C value = static_cast<C>(std::bit_cast<float>(values[k]));
        const Element<C> one = counts ? element(rows.kind, logits[k], value) : Element<C>{0, 0};
        sum += one.loss;
        correct = correct && (logits[k] > 0) == (value > C(0.5));
        if (d_logits) d_logits[k] = static_cast<G>(one.gradient * factor);  // may overwrite the logit
      }
      chunk.row_losses.data<C>()[row] = sum * inverse_outputs;
      if (chunk.correct.defined()) chunk.correct.data<std::int32_t>()[row] = correct ? 1 : 0;
    }
  });
}

}  // namespace

void element_loss_rows_cpu(const ElementLossRows& rows) {
  const CrossEntropyRows& chunk = rows.chunk;
  if (chunk.logits.dtype() == DType::float64) {
    chunk_losses<double, double>(rows);
  } else if (chunk.d_logits.defined() && chunk.d_logits.dtype() == DType::bfloat16) {
    chunk_losses<float, bfloat16>(rows);
  } else {
    chunk_losses<float, float>(rows);
  }
}

}  // namespace furlong::ops
