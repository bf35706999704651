#pragma once
#include "framework/autodiff/tape.h"
#include "framework/core/random.h"

namespace furlong::ops {

/// Inverted dropout (Srivastava et al. 2014): each element is zero with probability `rate`, else multiplied by 1 / (1 -
/// rate). Element i (row-major order) is kept when random_word(key, first_index + i) >= round(rate 2^32): the mask is a
/// function of the key and the index alone, never stored, and made again in backward. A part of a larger batch passes
/// its first element's index in the whole, so that the mask does not depend on how the batch is divided. `device_step`,
/// where defined (float64 [1] on the device), is read in the place of key.step when the op runs, so that a captured
/// step can be replayed as another. Where x [rows, ...] has a part of each row, `row_stride` is what lies between their
/// first elements in the whole; 0: the rows' own size. Rate 0 returns x itself. Saves nothing. Throws ContractError
/// unless 0 <= rate < 1.
Variable dropout(Tape& tape, const Variable& x, double rate, const RandomKey& key, std::uint64_t first_index = 0,
                 const Tensor& device_step = {}, std::uint64_t row_stride = 0);

}  // namespace furlong::ops
