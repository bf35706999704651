#include "framework/primitives/gemm_library.h"

#include "framework/primitives/arithmetic.h"
#include "framework/primitives/gemm_kernels.h"

namespace furlong::ops {
namespace {

/// Runs the product with its fused epilogue, then the separate steps of the plan.
bool run_planned(GemmLibrary& library, const Stream& stream, const GemmPlan& plan, const Tensor& a, const Tensor& b,
                 const Tensor& c, const GemmEpilogue& epilogue) {
  if (plan.fused == FusedEpilogue::bias_gradient) {
    const GradientTarget& target = epilogue.bias_gradient;
    const Tensor sums = target.accumulates()
                            ? Tensor::empty(target.tensor.shape(), target.tensor.dtype(), stream.device)
                            : target.tensor;
    if (!library.run(stream, plan, {a, b, c, &sums})) return false;
    if (target.accumulates()) add(stream, target.tensor, sums, GradientMode::accumulate);
    return true;
  }
  const Tensor result = plan.through_scratch ? Tensor::empty(c.shape(), plan.result_dtype, c.device()) : c;
  const GemmOperands operands{a, b, result, reads_bias(plan.fused) ? epilogue.bias : nullptr,
                              has_auxiliary(plan.fused) ? epilogue.auxiliary : nullptr};
  if (!library.run(stream, plan, operands)) return false;
  if (plan.separate_epilogue) gemm_epilogue_gpu(stream, result, c, epilogue);
  return true;
}

}  // namespace

void gemm_through(GemmLibrary& library, const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b,
                  bool transpose_b, const Tensor& c, bool accumulate, const GemmEpilogue& epilogue) {
  if (c.elements() == 0 && !epilogue.bias_gradient.wanted()) return;
  const bool empty = c.elements() == 0 || a.elements() == 0;
  for (Fusion fusion : {Fusion::all, Fusion::bias_and_relu}) {
    const GemmPlan plan = plan_gemm(a, transpose_a, b, transpose_b, c, accumulate, epilogue, fusion);
    if (plan.in_steps || (empty && epilogue.is_composite())) {
      return gemm_in_steps(stream, a, transpose_a, b, transpose_b, c, accumulate, epilogue);
    }
    if (empty) break;
    if (run_planned(library, stream, plan, a, b, c, epilogue)) return;
    if (!may_be_missing(plan.fused)) break;
  }
  gemm_tiled_gpu(stream, a, transpose_a, b, transpose_b, c, accumulate, epilogue);
}

}  // namespace furlong::ops
