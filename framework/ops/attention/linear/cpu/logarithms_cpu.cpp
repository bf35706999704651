#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/linear/cpu/logarithms_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/ops/attention/linear/cpu/body-inl.h"
#include "framework/ops/attention/linear/cpu/logarithms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

void LinearAttentionLogarithmsForward(const LinearAttentionArguments& arguments) {
  with_linear_attention_body<LogarithmsTile>(arguments, [](auto&& body) { body.forward(); });
}
void LinearAttentionLogarithmsBackward(const LinearAttentionArguments& arguments,
                                       const LinearAttentionGradients& gradients) {
  with_linear_attention_body<LogarithmsTile>(arguments, [&](auto&& body) { body.backward(gradients); });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(LinearAttentionLogarithmsForward);
HWY_EXPORT(LinearAttentionLogarithmsBackward);
void linear_attention_logarithms_forward_cpu(const LinearAttentionArguments& arguments) {
  HWY_DYNAMIC_DISPATCH(LinearAttentionLogarithmsForward)(arguments);
}
void linear_attention_logarithms_backward_cpu(const LinearAttentionArguments& arguments,
                                              const LinearAttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(LinearAttentionLogarithmsBackward)(arguments, gradients);
}
}  // namespace furlong::ops
#endif
