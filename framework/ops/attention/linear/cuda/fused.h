#pragma once
// The fused tensor-core kernels of linear attention on GPUs, for the common cases. linear_attention_cuda.cu uses them
// instead of the composed kernels if linear_attention_fused_supports() allows.
#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Returns whether the fused kernels support these options, widths and storage type, forward and backward, and the
/// device has enough shared memory for them.
bool linear_attention_fused_supports(const Stream& stream, const LinearAttentionArguments& arguments);
void linear_attention_fused_forward(const Stream& stream, const LinearAttentionArguments& arguments);
void linear_attention_fused_backward(const Stream& stream, const LinearAttentionArguments& arguments,
                                     const LinearAttentionGradients& gradients);

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
