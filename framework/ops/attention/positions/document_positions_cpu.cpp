#include "framework/ops/attention/positions/document_positions_kernels.h"

namespace furlong::ops {

void document_positions_cpu(const Tensor& documents, const Tensor& positions) {
  const std::int64_t batch = documents.extent(0), n = documents.extent(1);
  const auto* document = documents.data<std::int32_t>();
  auto* position = positions.data<std::int32_t>();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < n; ++t) {
      const std::int64_t i = b * n + t;
      position[i] = t > 0 && document[i] == document[i - 1] ? position[i - 1] + 1 : 0;
    }
  }
}

}  // namespace furlong::ops
