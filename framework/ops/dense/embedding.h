#pragma once
#include <cstdint>

#include "framework/autodiff/tape.h"

namespace furlong::ops {

/// Rows of a table picked by token id: y[b, t] = token_table[tokens[b, t]] (+ position_table[first_position + t]).
/// tokens int32 [batch, n] (rows contiguous; a column range of a longer batch will do), token_table [vocabulary, d],
/// position_table [max_length, d] of the same dtype, trainable or constant, or null; the result is [batch, n, d] in the
/// tables' dtype. Each table row's gradient is summed in token order, whatever the number of threads (on a GPU in
/// blocks of 32 tokens). `positions`, int32 [batch, n], gives each token a position of its own instead:
/// position_table[first_position + positions[b, t]]; so each of several packed documents can begin at 0
/// (document_positions). Throws ContractError for an id outside the vocabulary (named) and for positions that reach
/// past the table; on a GPU, whose work the host does not wait for, an id or a position of a token's own that is
/// outside its table makes the token's row NaN instead.
Variable embedding(Tape& tape, const Tensor& tokens, const Variable& token_table, const Variable* position_table,
                   std::int64_t first_position, const Tensor* positions = nullptr);

/// The fixed position table [max_length, d] of Vaswani et al., Attention Is All You Need (2017), section 3.5:
/// columns 2i and 2i+1 of row p are sin and cos of p / 10000^(2i/d). Computed in double, then rounded to `dtype`.
Tensor sinusoidal_positions(const Stream& stream, std::int64_t max_length, std::int64_t d, DType dtype);

}  // namespace furlong::ops
