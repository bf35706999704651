#pragma once
#include "framework/ops/attention/attention_shape.h"
#include "framework/ops/attention/compat/compat_attention.h"

namespace furlong::ops {

/// A library's definition in numbers: what its feature map and its denominators are made of.
struct CompatDefinition {
  enum class Kernel : std::uint8_t { exponential, hyperbolic, relu, elu } kernel = Kernel::exponential;
  double scale = 1;           // of x, before the directions
  double feature_factor = 1;  // φ = feature_factor (f(u) + feature_epsilon)
  double feature_epsilon = 0;
  double sum_epsilon = 0;  // every Σ_j φ_f(k_j) begins with it
  double denominator_epsilon = 0;
  bool subtract_maximum = false;  // of u: a query's own, for keys that of the head
  bool stabilize = false;
  bool mask_features = false;  // a masked key has features zero; otherwise its value is zero
};
CompatDefinition compat_definition(const CompatAttentionOptions& options, std::int64_t d, std::int64_t n_directions);

/// Extents of the tiles, and the scratch that a thread needs. One column more than d_value: values get a one, so that
/// denominators are one more column of everything.
struct CompatAttentionSizes {
  static constexpr std::int64_t chunk = 64;  // tokens a tile
  std::int64_t d = 0, n_directions = 0, m = 0, columns = 0;
  std::int64_t ld_d = 0, ld_u = 0, ld_m = 0, ld_v = 0;

  static std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }
  std::int64_t directions_elements() const { return d * ld_u + n_directions * ld_d; }
  std::int64_t tile_elements() const {
    return chunk * (4 * ld_d + 4 * ld_v + 4 * ld_m + ld_u + 2 * chunk + std::max(ld_m, ld_v)) + 2 * ld_m * ld_v;
  }
  /// Gradients of one key-value head's keys and values.
  std::int64_t sums_elements(std::int64_t n_key) const { return n_key * (ld_d + ld_v); }
};

/// Checked before.
struct CompatAttentionArguments {
  AttentionShape shape;
  CompatDefinition definition;
  CompatAttentionSizes sizes;
  bool causal = true;
  Tensor query, key, value, output;  // 4-D views
  Tensor directions;                 // [n_directions, d], compute dtype, or undefined
  Tensor key_mask;                   // int32 [batch, n_key], or undefined
  Tensor inverse_denominator;        // [batch, n_heads, n_query], compute dtype; undefined where not kept
  Tensor shared;                     // [directions_elements], compute dtype
  Tensor scratch;                    // [threads, elements], compute dtype
};
struct CompatAttentionGradients {
  Tensor d_output;
  GradientTarget d_query, d_key, d_value;  // 4-D views
};

void compat_attention_forward_cpu(const CompatAttentionArguments& arguments);
void compat_attention_backward_cpu(const CompatAttentionArguments& arguments,
                                   const CompatAttentionGradients& gradients);

}  // namespace furlong::ops
