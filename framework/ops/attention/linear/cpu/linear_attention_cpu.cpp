// Dispatches to the kernels of the two feature forms; each has its own translation unit.
#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {
namespace {
bool logarithms(const LinearAttentionArguments& arguments) {
  return feature_map_info(arguments.options.feature_map).form == FeatureForm::logarithms;
}
}  // namespace

void linear_attention_forward_cpu(const LinearAttentionArguments& arguments) {
  logarithms(arguments) ? log_features_forward_cpu(arguments) : plain_features_forward_cpu(arguments);
}
void linear_attention_backward_cpu(const LinearAttentionArguments& arguments,
                                   const LinearAttentionGradients& gradients) {
  logarithms(arguments) ? log_features_backward_cpu(arguments, gradients)
                        : plain_features_backward_cpu(arguments, gradients);
}

}  // namespace furlong::ops
