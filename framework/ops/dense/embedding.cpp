#include "framework/ops/dense/embedding.h"

#include "framework/ops/dense/embedding_kernels.h"
#include "framework/primitives/arithmetic.h"
#include "framework/primitives/dispatch.h"

namespace furlong::ops {
namespace {

/// Calls `body` with a tensor, in the accumulation dtype of `dtype`, to which it adds the gradient of input `i`. This
/// is the target itself if its dtype matches.
template <class Body>
void add_to_table(BackwardContext& context, std::size_t i, DType dtype, const Body& body) {
  const GradientTarget target = context.d_input(i);
  if (!target.wanted()) return;
  if (target.tensor.dtype() == accumulate_dtype(dtype)) {
    if (!target.accumulates()) fill(context.stream(), target.tensor, 0.0);
    body(target.tensor);
    return;
  }
  const Tensor sum = Tensor::empty(target.tensor.shape(), accumulate_dtype(dtype), target.tensor.device());
  fill(context.stream(), sum, 0.0);
  body(sum);
  add(context.stream(), target.tensor, sum, target.mode);
}

}  // namespace

Variable embedding(Tape& tape, const Tensor& tokens, const Variable& token_table, const Variable* position_table,
                   std::int64_t first_position, const Tensor* positions) {
  require(tokens.dtype() == DType::int32 && tokens.shape().rank() == 2 && tokens.has_contiguous_rows(),
          "embedding: tokens are {} {}, expected int32 [batch, n]", name_of(tokens.dtype()), tokens.shape().text());
  require(token_table.shape().rank() == 2 && token_table.value().is_contiguous(),
          "embedding: the token table is {}, expected contiguous [vocabulary, d]", token_table.shape().text());
  const std::int64_t n = tokens.extent(1), d = token_table.extent(1);
  Tensor places;
  if (position_table) {
    require(position_table->shape().rank() == 2 && position_table->extent(1) == d &&
                position_table->value().is_contiguous() && position_table->dtype() == token_table.dtype(),
            "embedding: the position table is {} {}, expected contiguous {} [max_length, {}]",
            name_of(position_table->dtype()), position_table->shape().text(), name_of(token_table.dtype()), d);
    const std::int64_t length = position_table->extent(0), used = positions ? length - first_position : n;
    require(first_position >= 0 && used >= 0 && first_position + used <= length,
            "embedding: positions [{}, {}) exceed the position table of {} rows", first_position, first_position + used,
            length);
    places = position_table->value().narrow(0, first_position, used);
  }
  require(!positions || (position_table && positions->dtype() == DType::int32 && positions->shape() == tokens.shape() &&
                         positions->is_contiguous()),
          "embedding: positions are {} {} for tokens {}, expected int32 of the same shape and a position table",
          positions ? name_of(positions->dtype()) : "", positions ? positions->shape().text() : "",
          tokens.shape().text());
  const Tensor output = Tensor::empty({tokens.extent(0), n, d}, token_table.dtype(), tape.device());
  dispatch_kernel(tape.stream(), embedding_cpu, embedding_gpu, tokens, token_table.value(), places,
                  positions ? *positions : Tensor{}, output);

  std::vector<Variable> inputs{token_table};
  if (position_table) inputs.push_back(*position_table);
  return tape.record_one("embedding", inputs, output, {tokens, positions ? *positions : Tensor{}},
                         [first_position, n, has_positions = position_table != nullptr](BackwardContext& context) {
                           const Tensor d_output = context.d_output();
                           const Stream& stream = context.stream();
                           add_to_table(context, 0, d_output.dtype(), [&](const Tensor& d_table) {
                             dispatch_kernel(stream, embedding_d_rows_cpu, embedding_d_rows_gpu, context.saved(0),
                                             d_output, d_table);
                           });
                           if (!has_positions) return;
                           add_to_table(context, 1, d_output.dtype(), [&](const Tensor& d_table) {
                             const Tensor& own = context.saved(1);
                             if (own.defined()) {
                               dispatch_kernel(stream, embedding_d_rows_cpu, embedding_d_rows_gpu, own, d_output,
                                               d_table.narrow(0, first_position, d_table.extent(0) - first_position));
                             } else {
                               dispatch_kernel(stream, embedding_d_positions_cpu, embedding_d_positions_gpu, d_output,
                                               d_table.narrow(0, first_position, n));
                             }
                           });
                         });
}

Tensor sinusoidal_positions(const Stream& stream, std::int64_t max_length, std::int64_t d, DType dtype) {
  require(max_length > 0 && d > 0, "sinusoidal_positions: a table of {} x {}, expected positive sizes", max_length, d);
  if (stream.device.is_shape_only()) return Tensor::empty({max_length, d}, dtype, stream.device);
  const Tensor table = Tensor::empty({max_length, d}, dtype);
  sinusoidal_positions_cpu(table);
  return table.to(stream.device);
}

}  // namespace furlong::ops
