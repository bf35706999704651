// The kernels of the cases in scripts/sass_cases.py, for scripts/sass_cost.py: compiled with line information, never
// linked.
#include "framework/cuda/kernels/kernel.h"
//
#include "framework/ops/attention/linear/cuda/composed_chunks.cuh"
#include "framework/ops/attention/linear/cuda/composed_features.cuh"
#include "framework/ops/attention/linear/cuda/composed_states.cuh"
#include "framework/ops/attention/linear/cuda/fused_plain_backward.cuh"
#include "framework/ops/attention/linear/cuda/fused_plain_forward.cuh"
#include "framework/ops/attention/linear/cuda/fused_plain_states.cuh"
#include "framework/ops/attention/softmax/cuda/backward_mma.cuh"
#include "framework/ops/attention/softmax/cuda/forward_mma.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

#define FUSED(form)                                                                                                  \
  template __global__ void fused_plain_outputs<form, 64>(FusedProblem, FusedSide, FusedSide, FusedStates, bool,      \
                                                         FusedOutputs);                                              \
  template __global__ void fused_plain_gradients<form, false>(FusedProblem, FusedSide, FusedSide, FusedStates, bool, \
                                                              PlainGradientsLayout<form>, FusedGradient,             \
                                                              FusedGradient);                                        \
  template __global__ void fused_plain_gradients<form, true>(FusedProblem, FusedSide, FusedSide, FusedStates, bool,  \
                                                             PlainGradientsLayout<form>, FusedGradient,              \
                                                             FusedGradient);                                         \
  template __global__ void fused_plain_states<form, 64, true>(FusedProblem, FusedSide, FusedStates);                 \
  template __global__ void fused_plain_states<form, 64, false>(FusedProblem, FusedSide, FusedStates);
FUSED(FusedForm::projection)
FUSED(FusedForm::elu1)

template __global__ void linear_attention_features_kernel<float, FeatureForm::values>(Composed<float>,
                                                                                      ComposedSide<float>, bool);
template __global__ void linear_attention_weights_kernel<float, FeatureForm::values>(Composed<float>);
template __global__ void linear_attention_scan_kernel<float>(Composed<float>, ComposedStates<float>, int);

template __global__ void softmax_forward_mma<64>(SoftmaxProblem<Bf16>);
template __global__ void softmax_query_gradient_mma<64>(SoftmaxProblem<Bf16>);
template __global__ void softmax_key_gradient_mma<64, true, true>(SoftmaxProblem<Bf16>);

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
