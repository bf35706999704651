#include "framework/ops/attention/positions/document_positions.h"

#include "framework/ops/attention/positions/document_positions_kernels.h"

namespace furlong::ops {

Tensor document_positions(const Stream& stream, const Tensor& documents) {
  require(documents.dtype() == DType::int32 && documents.shape().rank() == 2 && documents.is_contiguous(),
          "document_positions: documents are {} {}, expected int32 [batch, n], contiguous", name_of(documents.dtype()),
          documents.shape().text());
  const Tensor positions = Tensor::empty(documents.shape(), DType::int32, documents.device());
  dispatch_kernel(stream, document_positions_cpu, document_positions_gpu, documents, positions);
  return positions;
}

}  // namespace furlong::ops
