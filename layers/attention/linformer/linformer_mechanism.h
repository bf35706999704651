#pragma once
#include "framework/ops/attention/linformer/sequence_projection.h"
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Returns r: config.projected_length, or if that is 0, max_sequence_length / 4, clamped to [1, 256]. In Wang et al.
/// 2020, figure 3, r = 128 for 512 tokens and r = 256 for 1,024 tokens are nearly on par with full attention, and
/// r = 256 keeps its perplexity up to 4,096 tokens.
std::int64_t resolved_projected_length(const AttentionConfig& config);

/// Linformer (Wang et al. 2020, equation 7): softmax(q (E k)ᵀ / √d) (F v), where E and F act along the sequence. It is
/// bidirectional only and takes n·r time and memory. Sequences shorter than max_sequence_length use the first columns
/// of E and F; longer ones are rejected. Masked keys contribute nothing. A row of E k that only masked keys contribute
/// to is masked.
///
/// Parameters, by sharing:
///  - none, heads: `name`.key_projection.weight and `name`.value_projection.weight;
///  - key_value: `name`.sequence_projection.weight;
///  - layers: attention.sequence_projection.weight, declared by the first such layer.
/// The shape is ([n_kv_heads,] r, max_sequence_length) for a linear projection and ([n_kv_heads·] d_head, stride) for a
/// convolution, with the factor n_kv_heads only for sharing none. A mean has no parameters and ignores sharing.
/// Initialized as N(0, 1 / (r + max_sequence_length)), as in the authors' implementation (Xavier with gain 1/√2 in
/// fairseq); convolutions as N(0, 1 / stride).
///
/// Throws UserError for a causal config, a projected length above max_sequence_length, and unknown names. In use,
/// throws UserError for packed documents, recurrent state and generation.
MechanismInfo linformer_mechanism();

}  // namespace furlong::layers
