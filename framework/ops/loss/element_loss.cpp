#include "framework/ops/loss/element_loss.h"

#include "framework/ops/loss/classifier_loss.h"
#include "framework/ops/loss/element_loss_rows.h"
#include "framework/primitives/dispatch.h"

namespace furlong::ops {

CrossEntropyResult element_loss(Tape& tape, ElementLoss kind, const Variable& hidden, const Variable& weight,
                                const Variable* bias, const Tensor& targets, const Tensor& values,
                                const CrossEntropyOptions& options) {
  require(values.dtype() == DType::int32 && values.is_contiguous() &&
              values.shape() == Shape{hidden.shape().rows(), weight.extent(0)},
          "element_loss: values are {} {}, expected the bits of [{}, {}]", name_of(values.dtype()),
          values.shape().text(), hidden.shape().rows(), weight.extent(0));
  return classifier_loss(tape, "element_loss", hidden, weight, bias, targets, 1, options, true,
                         [&](const CrossEntropyRows& chunk) {
                           dispatch_kernel(tape.stream(), element_loss_rows_cpu, element_loss_rows_gpu,
                                           ElementLossRows{chunk, values, kind});
                         });
}

}  // namespace furlong::ops
