#pragma once
// How a GPU engine computes a product through a library: which epilogues it fuses, and what it does if the library has
// no algorithm. Shared by CUDA and the simulator, so that these decisions are tested without cuBLASLt.
#include "framework/primitives/gemm_plan.h"

namespace furlong::ops {

/// The operands of a planned product.
struct GemmOperands {
  const Tensor& a;
  const Tensor& b;
  const Tensor& result;
  /// The bias to read or the bias gradient to overwrite, depending on the plan.
  const Tensor* vector = nullptr;
  const Tensor* auxiliary = nullptr;  ///< if the plan has one
};

/// A library of matrix products: cuBLASLt, or its replacement in the simulator.
class GemmLibrary {
 public:
  /// Enqueues the planned product on the stream. Returns false if the library has no algorithm for the plan.
  virtual bool run(const Stream& stream, const GemmPlan& plan, const GemmOperands& operands) = 0;

 protected:
  ~GemmLibrary() = default;
};

/// Implements gemm() on a GPU; the arguments have been checked. Tries the most fused plan first. If the library has no
/// algorithm for GELU or gradients in the epilogue, it computes these in separate steps. If it has none for the
/// product, it uses the tiled kernel. A bias gradient that accumulates goes through scratch, because libraries
/// overwrite.
void gemm_through(GemmLibrary& library, const Stream& stream, const Tensor& a, bool transpose_a, const Tensor& b,
                  bool transpose_b, const Tensor& c, bool accumulate, const GemmEpilogue& epilogue);

}  // namespace furlong::ops
