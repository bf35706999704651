// The kernels of the cases in scripts/sass_cases.py, for scripts/sass_cost.py: compiled with line information, never
// linked.
#include "framework/cuda/kernels/kernel.h"
//
#include "framework/ops/attention/linear/cuda/composed_chunks.cuh"
#include "framework/ops/attention/linear/cuda/composed_features.cuh"
#include "framework/ops/attention/linear/cuda/composed_states.cuh"
#include "framework/ops/attention/linear/cuda/fused_backward.cuh"
#include "framework/ops/attention/linear/cuda/fused_forward.cuh"
#include "framework/ops/attention/softmax/cuda/backward_mma.cuh"
#include "framework/ops/attention/softmax/cuda/forward_mma.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

#define FUSED(projected)                                                                                              \
  template __global__ void fused_outputs<true, projected>(FusedProblem, FusedSide, FusedSide, FusedStates, bool,      \
                                                          FusedOutputs, OutputsLayout<true, projected>);              \
  template __global__ void fused_local_states<true, projected, true>(FusedProblem, FusedSide, FusedStates);           \
  template __global__ void fused_local_states<true, projected, false>(FusedProblem, FusedSide, FusedStates);          \
  template __global__ void fused_gradients<true, projected, false>(FusedProblem, FusedSide, FusedSide, FusedStates,   \
                                                                   bool, GradientsLayout<true, projected, false>,     \
                                                                   FusedGradient, FusedGradient);                     \
  template __global__ void fused_gradients<true, projected, true>(FusedProblem, FusedSide, FusedSide, FusedStates,    \
                                                                  bool, GradientsLayout<true, projected, true>,       \
                                                                  FusedGradient, FusedGradient);
FUSED(true)
FUSED(false)

template __global__ void linear_attention_features_kernel<float, FeatureForm::values>(Composed<float>,
                                                                                      ComposedSide<float>, bool);
template __global__ void linear_attention_weights_kernel<float, FeatureForm::values>(Composed<float>);
template __global__ void linear_attention_scan_kernel<float>(Composed<float>, ComposedStates<float>, int);
template __global__ void linear_attention_product_kernel<2, ProductLayout::plain>(Product<float>);

template __global__ void softmax_forward_mma<64>(SoftmaxProblem<Bf16>);
template __global__ void softmax_query_gradient_mma<64>(SoftmaxProblem<Bf16>);
template __global__ void softmax_key_gradient_mma<64, true, true>(SoftmaxProblem<Bf16>);

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
