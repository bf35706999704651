#pragma once
// Splits queries into blocks of up to query_block consecutive tokens of one document, which the CPU kernels process
// together. Blocks are aligned to the start of each document, so a packed document is computed in the same steps as the
// document alone.
#include "framework/ops/attention/softmax/softmax_attention_arguments.h"

namespace furlong::ops {

/// Queries [first, first + n). They attend to keys in [first_key, end_key) at most: their document, or all keys.
struct SoftmaxAttentionBlock {
  std::int64_t first = 0, n = 0, first_key = 0, end_key = 0;
};

/// Fills arguments.boundaries, [batch, query_blocks, 2], from arguments.mask.documents: the start of the document of a
/// block's first token, and the end of the document of its last token.
inline void find_document_boundaries(const SoftmaxAttentionArguments& arguments) {
  constexpr std::int64_t width = SoftmaxAttentionSizes::query_block;
  const std::int64_t n = arguments.shape.n_query, blocks = SoftmaxAttentionSizes::query_blocks(arguments.shape);
  for (std::int64_t batch = 0; batch < arguments.shape.batch; ++batch) {
    const std::int32_t* ids = arguments.mask.documents.data<std::int32_t>() + batch * n;
    std::int32_t* boundaries = arguments.boundaries.data<std::int32_t>() + batch * blocks * 2;
    for (std::int64_t i = 0, begin = 0; i < n; ++i) {
      if (i > 0 && ids[i] != ids[i - 1]) begin = i;
      if (i % width == 0) boundaries[i / width * 2] = static_cast<std::int32_t>(begin);
    }
    for (std::int64_t i = n - 1, end = n; i >= 0; --i) {
      if (i + 1 < n && ids[i] != ids[i + 1]) end = i + 1;
      if (i + 1 == n || i % width == width - 1) boundaries[i / width * 2 + 1] = static_cast<std::int32_t>(end);
    }
  }
}

/// Calls body(block) for the blocks whose first query is in [index, index + 1) × query_block. All indices together
/// cover each query once.
template <class Body>
void for_query_blocks(const SoftmaxAttentionArguments& arguments, std::int64_t batch, std::int64_t index,
                      const Body& body) {
  constexpr std::int64_t width = SoftmaxAttentionSizes::query_block;
  const std::int64_t n = arguments.shape.n_query, begin = index * width, end = std::min(n, begin + width);
  if (!arguments.mask.documents.defined()) {
    body(SoftmaxAttentionBlock{begin, end - begin, 0, arguments.shape.n_key});
    return;
  }
  const std::int32_t* ids = arguments.mask.documents.data<std::int32_t>() + batch * n;
  const std::int32_t* boundaries = arguments.boundaries.data<std::int32_t>() +
                                   (batch * SoftmaxAttentionSizes::query_blocks(arguments.shape) + index) * 2;
  for (std::int64_t document = boundaries[0]; document < end;) {
    std::int64_t stop = std::max(document, begin);  // end of the document, limited to this range
    const std::int64_t first = document + (stop - document + width - 1) / width * width;
    while (stop < end && ids[stop] == ids[std::max(document, begin)]) ++stop;
    const std::int64_t document_end = stop < end ? stop : boundaries[1];
    if (first < std::min(end, document_end)) {
      body(SoftmaxAttentionBlock{first, std::min(width, document_end - first), document, document_end});
    }
    document = stop;
  }
}

}  // namespace furlong::ops
