#pragma once
#include <cstdint>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Looks up table rows by token id: y[b, t] = token_table[tokens[b, t]] (+ position_table[first_position + t]).
///   tokens          int32 [batch, n], rows contiguous (a column range of a longer batch is allowed)
///   token_table     [vocabulary, d]
///   position_table  [max_length, d] of the same dtype, trained or constant, or null
///   positions       int32 [batch, n] or null: token t uses position_table[first_position + positions[b, t]] instead.
///                   Each packed document can then start at position 0 (document_positions)
/// Returns [batch, n, d] in the tables' dtype. Each table row's gradient is summed in token order (on a GPU, in blocks
/// of 32 tokens), so it does not depend on the number of threads. Throws ContractError for an id outside the vocabulary
/// (named) and for a position outside the table. A GPU does not report an id or an element of `positions` outside its
/// table; the token's row is NaN instead.
Variable embedding(Tape& tape, const Tensor& tokens, const Variable& token_table, const Variable* position_table,
                   std::int64_t first_position, const Tensor* positions = nullptr);

/// The fixed position table [max_length, d] of Vaswani et al., Attention Is All You Need (2017), section 3.5:
/// columns 2i and 2i+1 of row p are sin and cos of p / 10000^(2i/d). Computed in double, then rounded to `dtype`.
Tensor sinusoidal_positions(const Stream& stream, std::int64_t max_length, std::int64_t d, DType dtype);

}  // namespace furlong::ops
