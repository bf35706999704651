#pragma once
// Arguments of the embedding kernels, on any engine.
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

// `table` holds the positions from the first one on. `positions` selects its row for each token; if undefined, each row
// of tokens uses 0 ... n - 1.
void embedding_cpu(const Tensor& tokens, const Tensor& token_table, const Tensor& table, const Tensor& positions,
                   const Tensor& output);
/// d_table[ids[i]] += d_output[i] in the order of i; d_table [rows, d] in the accumulation dtype.
void embedding_d_rows_cpu(const Tensor& ids, const Tensor& d_output, const Tensor& d_table);
/// d_positions[t] += Σ_b d_output[b, t]
void embedding_d_positions_cpu(const Tensor& d_output, const Tensor& d_positions);
void sinusoidal_positions_cpu(const Tensor& table);

// On a GPU an id or a position outside its table gives a row of NaN, and no gradient.
inline GpuKernel<const Tensor& /*tokens*/, const Tensor& /*token_table*/, const Tensor& /*table*/,
                 const Tensor& /*positions*/, const Tensor& /*output*/>
    embedding_gpu{"embedding"};
/// Sums blocks of 32 uses, in order, and then the blocks' sums: the same bits on every GPU.
inline GpuKernel<const Tensor& /*ids*/, const Tensor& /*d_output*/, const Tensor& /*d_table*/> embedding_d_rows_gpu{
    "embedding"};
inline GpuKernel<const Tensor& /*d_output*/, const Tensor& /*d_positions*/> embedding_d_positions_gpu{"embedding"};

}  // namespace furlong::ops
