#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/linear/cpu/log_features_cpu.cpp"
#include "framework/simd/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/linear/cpu/kernel-inl.h"
#include "framework/ops/attention/linear/cpu/log_features_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

void LogFeaturesForward(const LinearAttentionArguments& arguments) {
  with_linear_attention_kernel<LogFeaturesTile>(arguments, [](auto&& kernel) { kernel.forward(); });
}
void LogFeaturesBackward(const LinearAttentionArguments& arguments, const LinearAttentionGradients& gradients) {
  with_linear_attention_kernel<LogFeaturesTile>(arguments, [&](auto&& kernel) { kernel.backward(gradients); });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(LogFeaturesForward);
HWY_EXPORT(LogFeaturesBackward);
void log_features_forward_cpu(const LinearAttentionArguments& arguments) {
  HWY_DYNAMIC_DISPATCH(LogFeaturesForward)(arguments);
}
void log_features_backward_cpu(const LinearAttentionArguments& arguments, const LinearAttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(LogFeaturesBackward)(arguments, gradients);
}
}  // namespace furlong::ops
#endif
