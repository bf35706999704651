#include "framework/ops/document_positions.h"

#include "framework/ops/dispatch.h"

namespace furlong::ops {

void document_positions_cpu(const Tensor& documents, const Tensor& positions);

Tensor document_positions(const Stream& stream, const Tensor& documents) {
  require(documents.dtype() == DType::int32 && documents.shape().rank() == 2 && documents.is_contiguous(),
          "document_positions: documents are {} {}, expected int32 [batch, n], contiguous", name_of(documents.dtype()),
          documents.shape().text());
  const Tensor positions = Tensor::empty(documents.shape(), DType::int32, documents.device());
  if (runs_on_cpu(stream, "document_positions")) document_positions_cpu(documents, positions);
  return positions;
}

}  // namespace furlong::ops
