#pragma once
// The kernels of element_loss between its products, by engine. cross_entropy's kernels count the rows and sum the
// losses (cross_entropy_rows.h).
#include "framework/ops/loss/cross_entropy_rows.h"
#include "framework/ops/loss/element_loss.h"

namespace furlong::ops {

/// One chunk, as in cross_entropy. d_logits receives the gradients of the row's mean loss times inverse_normalizer.
struct ElementLossRows {
  CrossEntropyRows chunk;
  Tensor values;  // bits of float32 [rows, outputs], all rows
  ElementLoss kind;
};

/// Writes the chunk's row_losses and, if defined, correct and d_logits.
void element_loss_rows_cpu(const ElementLossRows& rows);

/// CUDA kernel. A target other than -1 and 0 makes its row's loss and gradients NaN, as in cross_entropy.
inline GpuKernel<const ElementLossRows&> element_loss_rows_gpu{"element_loss"};

}  // namespace furlong::ops
