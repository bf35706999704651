#pragma once
#include "framework/autodiff/tape.h"
#include "framework/core/random.h"

namespace furlong::ops {

/// Inverted dropout (Srivastava et al. 2014): each element is zero with probability `rate`, else multiplied by
/// 1 / (1 - rate). Element i (row-major order) is kept if random_word(key, first_index + i) >= round(rate 2^32). The
/// mask depends only on the key and the index, so it is not stored: backward recomputes it. Rate 0 returns x itself.
///   first_index  index of x's first element in the whole batch, so that the mask does not depend on how the batch is
///                divided among ranks
///   device_step  float64 [1] on the device, or undefined: replaces key.step. It is read when the op runs, so that a
///                captured step can be replayed as another step.
///   row_stride   distance between the indices of the first elements of consecutive rows of x [rows, ...], if x holds a
///                part of each row, or shorter rows than other batches; 0: the row size of x
/// Saves nothing. Throws ContractError unless 0 <= rate < 1, if the rows of x are not contiguous, or if device_step is
/// neither undefined nor float64 [1].
Variable dropout(Tape& tape, const Variable& x, double rate, const RandomKey& key, std::uint64_t first_index = 0,
                 const Tensor& device_step = {}, std::uint64_t row_stride = 0);

}  // namespace furlong::ops
