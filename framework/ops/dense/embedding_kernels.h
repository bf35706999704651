#pragma once
// Kernels of embedding() and sinusoidal_positions() (embedding.h). Ids and positions are int32.
#include "framework/core/tensor.h"
#include "framework/primitives/gpu_kernel.h"

namespace furlong::ops {

/// Overwrites output [batch, n, d] with token_table[tokens[b, t]] + table[positions[b, t]].
///   tokens       [batch, n]
///   token_table  [vocabulary, d]
///   table        [positions, d]: the position embeddings from embedding()'s first_position on. Undefined: none added
///   positions    [batch, n]: row of `table` for each token. Undefined: token t uses row t
void embedding_cpu(const Tensor& tokens, const Tensor& token_table, const Tensor& table, const Tensor& positions,
                   const Tensor& output);
/// Adds d_output[i] [d] to row ids[i] of d_table [rows, d], for all tokens i in order. d_table has the accumulation
/// dtype.
void embedding_d_rows_cpu(const Tensor& ids, const Tensor& d_output, const Tensor& d_table);
/// Adds Σ_b d_output[b, t] to row t of d_positions [n, d].
void embedding_d_positions_cpu(const Tensor& d_output, const Tensor& d_positions);
/// Overwrites table [max_length, d]; see sinusoidal_positions().
void sinusoidal_positions_cpu(const Tensor& table);

// CUDA kernels. An id or a position outside its table gives a row of NaN, and no gradient.
inline GpuKernel<const Tensor& /*tokens*/, const Tensor& /*token_table*/, const Tensor& /*table*/,
                 const Tensor& /*positions*/, const Tensor& /*output*/>
    embedding_gpu{"embedding"};
/// Adds up the uses of a table row in blocks of 32, in order, and then the blocks: the same bits on every GPU.
inline GpuKernel<const Tensor& /*ids*/, const Tensor& /*d_output*/, const Tensor& /*d_table*/> embedding_d_rows_gpu{
    "embedding"};
inline GpuKernel<const Tensor& /*d_output*/, const Tensor& /*d_positions*/> embedding_d_positions_gpu{"embedding"};

}  // namespace furlong::ops
