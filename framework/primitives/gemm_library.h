#pragma once
// How a GPU engine does a product through a library: which epilogues it asks for, what it does where the library has no
// algorithm. Shared by CUDA and the simulator, so that the decisions are tested without cuBLASLt.
#include "framework/primitives/gemm_plan.h"

namespace furlong::ops {

/// What a planned product works on.
struct GemmOperands {
  const Tensor& a;
  const Tensor& b;
  const Tensor& result;
  const Tensor* vector =
      nullptr;  ///< the bias that is read, or the bias's gradient that is overwritten, as the plan says
  const Tensor* auxiliary = nullptr;  ///< where the plan has one
};

class GemmLibrary {
 public:
  /// Queues the planned product on the stream; false where the library has no algorithm for this plan.
  virtual bool run(const Stream& stream, const GemmPlan& plan, const GemmOperands& operands) = 0;

 protected:
  ~GemmLibrary() = default;
};

/// gemm() on a GPU, its arguments checked. The most is asked of the library first. Where it has no algorithm for GELU
/// or for gradients in its epilogue, the same in steps; where it has none for the product, a kernel of our own. A
/// bias's gradient that accumulates goes through scratch, since libraries overwrite.
void gemm_through(GemmLibrary& library, const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b,
                  bool transpose_b, const Tensor& c, bool accumulate, const GemmEpilogue& epilogue);

}  // namespace furlong::ops
