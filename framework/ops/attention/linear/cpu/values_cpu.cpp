#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/linear/cpu/values_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/linear/cpu/body-inl.h"
#include "framework/ops/attention/linear/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

void LinearAttentionValuesForward(const LinearAttentionArguments& arguments) {
  with_linear_attention_body<ValuesTile>(arguments, [](auto&& body) { body.forward(); });
}
void LinearAttentionValuesBackward(const LinearAttentionArguments& arguments,
                                   const LinearAttentionGradients& gradients) {
  with_linear_attention_body<ValuesTile>(arguments, [&](auto&& body) { body.backward(gradients); });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(LinearAttentionValuesForward);
HWY_EXPORT(LinearAttentionValuesBackward);
void linear_attention_values_forward_cpu(const LinearAttentionArguments& arguments) {
  HWY_DYNAMIC_DISPATCH(LinearAttentionValuesForward)(arguments);
}
void linear_attention_values_backward_cpu(const LinearAttentionArguments& arguments,
                                          const LinearAttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(LinearAttentionValuesBackward)(arguments, gradients);
}
}  // namespace furlong::ops
#endif
