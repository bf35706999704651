#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/linear/cpu/plain_features_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/linear/cpu/kernel-inl.h"
#include "framework/ops/attention/linear/cpu/plain_features_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

void PlainFeaturesForward(const LinearAttentionArguments& arguments) {
  with_linear_attention_kernel<PlainFeaturesTile>(arguments, [](auto&& kernel) { kernel.forward(); });
}
void PlainFeaturesBackward(const LinearAttentionArguments& arguments, const LinearAttentionGradients& gradients) {
  with_linear_attention_kernel<PlainFeaturesTile>(arguments, [&](auto&& kernel) { kernel.backward(gradients); });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(PlainFeaturesForward);
HWY_EXPORT(PlainFeaturesBackward);
void plain_features_forward_cpu(const LinearAttentionArguments& arguments) {
  HWY_DYNAMIC_DISPATCH(PlainFeaturesForward)(arguments);
}
void plain_features_backward_cpu(const LinearAttentionArguments& arguments, const LinearAttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(PlainFeaturesBackward)(arguments, gradients);
}
}  // namespace furlong::ops
#endif
