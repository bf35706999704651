#pragma once
#include "framework/ops/attention/linformer/sequence_projection.h"
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// r: the config's own, or for 0 a quarter of max_sequence_length, at least 1 and at most 256: in Wang et al. 2020,
/// figure 3, 128 for 512 tokens and 256 for 1,024 are nearly on par with full attention, and 256 holds its perplexity
/// up to 4,096.
std::int64_t resolved_projected_length(const AttentionConfig& config);

/// Linformer (Wang et al. 2020, equation 7): softmax(q (E k)ᵀ / √d) (F v), with E and F along the sequence;
/// bidirectional only, n·r time and memory. Sequences shorter than max_sequence_length use the first columns of E and
/// F, longer ones are refused. Masked keys add nothing; rows of E k that only masked keys go into are not seen.
/// Parameters, for a linear projection ([n_kv_heads,] r, max_sequence_length) or a convolution ([n_kv_heads·] d_head,
/// stride), the first factor with sharing none: `name`.key_projection.weight and `name`.value_projection.weight; with
/// sharing key_value `name`.sequence_projection.weight; with layers attention.sequence_projection.weight, which the
/// first such layer declares. They begin normal with variance 1 / (r + max_sequence_length), that of the authors'
/// implementation (Xavier with gain 1/√2 in fairseq), and for convolutions 1 / stride. A mean has no parameters, and
/// sharing means nothing to it. Throws UserError for a causal config, a projected length above max_sequence_length, and
/// unknown names; in use for packed documents, carried state and generation, each with the reason.
MechanismInfo linformer_mechanism();

}  // namespace furlong::layers
