#pragma once
// Arguments of the embedding kernels, on any engine.
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Writes output [batch, n, d] = token_table[tokens] + table[positions]. `table` holds the position embeddings from the
/// first position on; if undefined, none are added. `positions` selects its row for each token; if undefined, each row
/// of tokens uses 0 ... n - 1.
void embedding_cpu(const Tensor& tokens, const Tensor& token_table, const Tensor& table, const Tensor& positions,
                   const Tensor& output);
/// Adds d_output[i] to d_table[ids[i]], in the order of i; d_table [rows, d] in the accumulation dtype.
void embedding_d_rows_cpu(const Tensor& ids, const Tensor& d_output, const Tensor& d_table);
/// Adds Σ_b d_output[b, t] to d_positions[t].
void embedding_d_positions_cpu(const Tensor& d_output, const Tensor& d_positions);
/// See sinusoidal_positions().
void sinusoidal_positions_cpu(const Tensor& table);

// CUDA kernels. An id or a position outside its table gives a row of NaN, and no gradient.
inline GpuKernel<const Tensor& /*tokens*/, const Tensor& /*token_table*/, const Tensor& /*table*/,
                 const Tensor& /*positions*/, const Tensor& /*output*/>
    embedding_gpu{"embedding"};
/// Sums blocks of 32 uses, in order, and then the blocks' sums: the same bits on every GPU.
inline GpuKernel<const Tensor& /*ids*/, const Tensor& /*d_output*/, const Tensor& /*d_table*/> embedding_d_rows_gpu{
    "embedding"};
inline GpuKernel<const Tensor& /*d_output*/, const Tensor& /*d_positions*/> embedding_d_positions_gpu{"embedding"};

}  // namespace furlong::ops
