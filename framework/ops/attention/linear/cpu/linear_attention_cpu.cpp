// Dispatches to the kernels of the two feature forms; each has its own translation unit.
#include <algorithm>

#include "framework/ops/attention/linear/linear_attention_arguments.h"

namespace furlong::ops {
namespace {
bool logarithms(const LinearAttentionArguments& arguments) {
  return feature_map_info(arguments.options.feature_map).form == FeatureForm::logarithms;
}
}  // namespace

void linear_attention_forward_cpu(const LinearAttentionArguments& arguments) {
  if (arguments.segments > 1) return linear_attention_forward_of_segments(arguments);
  logarithms(arguments) ? log_features_forward_cpu(arguments) : plain_features_forward_cpu(arguments);
}
void linear_attention_backward_cpu(const LinearAttentionArguments& arguments,
                                   const LinearAttentionGradients& gradients) {
  if (arguments.segments > 1) return linear_attention_backward_of_segments(arguments, gradients);
  logarithms(arguments) ? log_features_backward_cpu(arguments, gradients)
                        : plain_features_backward_cpu(arguments, gradients);
}

void pack_projections_cpu(LinearAttentionArguments& arguments, std::int64_t sets) {
  const std::int64_t n = arguments.n_projections, d = arguments.sizes.d;
  const Device& device = arguments.query.device();
  const auto pairs = [&](std::int64_t rows, std::int64_t columns) {
    return Tensor::empty({sets, simd::pairs_of(rows), LinearAttentionSizes::row_stride(columns)}, DType::float32,
                         device);
  };
  arguments.packed_directions_transposed = pairs(d, n);
  arguments.packed_directions = pairs(n, d);
  if (device.is_shape_only()) return;
  const float* directions = arguments.constants.random_projection.data<float>();
  if (!std::all_of(directions, directions + sets * n * d,
                   [](float w) { return static_cast<float>(bfloat16(w)) == w; })) {
    arguments.packed_directions_transposed = arguments.packed_directions = Tensor{};
    return;
  }
  for (std::int64_t set = 0; set < sets; ++set, directions += n * d) {
    const Tensor &transposed = arguments.packed_directions_transposed, &plain = arguments.packed_directions;
    arguments.sizes.bfloat16->pack_transposed(n, d, directions, d, packed_matrix(transposed, set),
                                              transposed.extent(2));
    arguments.sizes.bfloat16->pack_row_pairs(0, n, d, directions, d, packed_matrix(plain, set), plain.extent(2));
  }
}

}  // namespace furlong::ops
