#pragma once
// The fused tensor-core form of linear attention on GPUs, for the common cases; linear_attention_cuda.cu asks for it
// before it takes the general form.
#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Whether the fused form has these options, widths and storage type, forward and backward, and the device the shared
/// memory for them.
bool linear_attention_fused_supports(const Stream& stream, const LinearAttentionArguments& arguments);
void linear_attention_fused_forward(const Stream& stream, const LinearAttentionArguments& arguments);
void linear_attention_fused_backward(const Stream& stream, const LinearAttentionArguments& arguments,
                                     const LinearAttentionGradients& gradients);

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
