#pragma once
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// The share of tokens that ESM's training did not mask: 1 - 0.15 · 0.8.
inline constexpr double unmasked_in_training = 0.88;

/// Writes factors [batch] = 0.88 / (1 - fraction of mask tokens among the tokens with keys != 0), or 0 if all are mask
/// tokens. `keys` may be undefined.
void token_dropout_factors_cpu(const Tensor& tokens, const Tensor& keys, std::int32_t mask_token,
                               const Tensor& factors);
/// Writes to `out` [batch, n, d] the rows of `in` times their sequence's factor, or zero for mask tokens; adds them if
/// `accumulate`. factors have accumulate_dtype() of `in`.
void token_dropout_cpu(const Tensor& in, const Tensor& tokens, std::int32_t mask_token, const Tensor& factors,
                       const Tensor& out, bool accumulate);

/// CUDA kernels with the same arguments and results.
inline GpuKernel<const Tensor& /*tokens*/, const Tensor& /*keys*/, std::int32_t /*mask_token*/,
                 const Tensor& /*factors*/>
    token_dropout_factors_gpu{"token_dropout"};
inline GpuKernel<const Tensor& /*in*/, const Tensor& /*tokens*/, std::int32_t /*mask_token*/, const Tensor& /*factors*/,
                 const Tensor& /*out*/, bool /*accumulate*/>
    token_dropout_gpu{"token_dropout"};

}  // namespace furlong::ops
