#include "framework/ops/loss/relative_error.h"

#include "framework/ops/loss/relative_error_kernels.h"
#include "framework/primitives/arithmetic.h"

namespace furlong::ops {
namespace {

enum class SavedError : std::uint8_t { x, reference, mask, sums };

void check(const Tensor& x, const Tensor& reference, const Tensor* mask) {
  require(x.shape().rank() >= 1 && x.has_contiguous_rows() && reference.shape() == x.shape() &&
              reference.has_contiguous_rows() && accumulate_dtype(reference.dtype()) == accumulate_dtype(x.dtype()),
          "relative_error: x is {} {} and the reference is {} {}, expected equal shapes and contiguous rows",
          name_of(x.dtype()), x.shape().text(), name_of(reference.dtype()), reference.shape().text());
  require(
      !mask || (mask->dtype() == DType::int32 && mask->elements() == x.shape().rows() && mask->has_contiguous_rows()),
      "relative_error: keys_mask is {} {} for x {}, expected int32 with one value per row",
      mask ? name_of(mask->dtype()) : "", mask ? mask->shape().text() : "", x.shape().text());
}

}  // namespace

Variable relative_error(Tape& tape, const Variable& x, const Tensor& reference, const Tensor* keys_mask) {
  check(x.value(), reference, keys_mask);
  const Stream& stream = tape.stream();
  Tensor against = reference;
  if (reference.dtype() != x.dtype()) {
    against = Tensor::empty(reference.shape(), x.dtype(), tape.device());
    convert(stream, against, reference);
  }
  const Tensor mask = keys_mask ? *keys_mask : Tensor{};
  const Tensor sums = Tensor::empty({2}, DType::float64, tape.device());
  const Tensor loss = Tensor::empty(Shape{}, accumulate_dtype(x.dtype()), tape.device());
  dispatch_kernel(stream, relative_error_cpu, relative_error_gpu, x.value(), against, mask, sums, loss);
  return tape.record_one("relative_error", {x}, loss,
                         saved_by_name<SavedError>({{SavedError::x, x.value()},
                                                    {SavedError::reference, against},
                                                    {SavedError::mask, mask},
                                                    {SavedError::sums, sums}}),
                         [](BackwardContext& context) {
                           const GradientTarget d_x = context.d_input(0);
                           if (!d_x.wanted()) return;
                           dispatch_kernel(context.stream(), relative_error_backward_cpu, relative_error_backward_gpu,
                                           context.saved(SavedError::x), context.saved(SavedError::reference),
                                           context.saved(SavedError::mask), context.saved(SavedError::sums),
                                           context.d_output(), d_x.tensor, d_x.accumulates());
                         });
}

}  // namespace furlong::ops
