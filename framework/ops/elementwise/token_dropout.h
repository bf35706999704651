#pragma once
#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Token dropout of ESM (Rives et al. 2021; Lin et al. 2023): x [batch, n, d] is zero for mask tokens, and all other
/// rows are multiplied by 0.88 / (1 - r). r is the fraction of mask tokens in the sequence; 0.88 is the mean of 1 - r
/// in the training of ESM. The factor compensates for the embeddings that are zeroed.
///   tokens  int32 [batch, n], rows contiguous
///   keys    int32 [batch, n], 0 for padding, which does not count; undefined: no padding
/// A sequence of mask tokens alone is all zero. Throws ContractError if shapes do not match.
Variable token_dropout(Tape& tape, const Variable& x, const Tensor& tokens, const Tensor& keys,
                       std::int32_t mask_token);

}  // namespace furlong::ops
