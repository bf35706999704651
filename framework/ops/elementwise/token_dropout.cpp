#include "framework/ops/elementwise/token_dropout.h"

#include "framework/ops/elementwise/token_dropout_kernels.h"
#include "framework/primitives/arithmetic.h"

namespace furlong::ops {

Variable token_dropout(Tape& tape, const Variable& x, const Tensor& tokens, const Tensor& keys,
                       std::int32_t mask_token) {
  require(x.shape().rank() == 3 && x.value().is_contiguous(),
          "token_dropout: x is {}, expected contiguous "
          "[batch, n, d]",
          x.shape().text());
  const Shape rows{x.extent(0), x.extent(1)};
  require(tokens.dtype() == DType::int32 && tokens.shape() == rows && tokens.has_contiguous_rows(),
          "token_dropout: tokens are {} {}, expected int32 {}", name_of(tokens.dtype()), tokens.shape().text(),
          rows.text());
  require(!keys.defined() || (keys.dtype() == DType::int32 && keys.shape() == rows && keys.is_contiguous()),
          "token_dropout: the key mask is {}, expected int32 {}", keys.defined() ? keys.shape().text() : "",
          rows.text());
  const Tensor factors = Tensor::empty({x.extent(0)}, accumulate_dtype(x.dtype()), tape.device());
  dispatch_kernel(tape.stream(), token_dropout_factors_cpu, token_dropout_factors_gpu, tokens, keys, mask_token,
                  factors);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), tape.device());
  dispatch_kernel(tape.stream(), token_dropout_cpu, token_dropout_gpu, x.value(), tokens, mask_token, factors, y,
                  false);
  return tape.record_one("token_dropout", {x}, y, {tokens, factors}, [mask_token](BackwardContext& context) {
    const GradientTarget d_x = context.d_input(0);
    if (!d_x.wanted()) return;
    dispatch_kernel(context.stream(), token_dropout_cpu, token_dropout_gpu, context.d_output(), context.saved(0),
                    mask_token, context.saved(1), d_x.tensor, d_x.accumulates());
  });
}

}  // namespace furlong::ops
