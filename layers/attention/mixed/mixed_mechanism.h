#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Creates a layer with several mechanisms: config.head_mechanisms has one name for each query head. Adjacent heads
/// with the same mechanism form a run. Each run is a separate mechanism named `name`.heads_FIRST_LAST over its columns
/// of query, key and value. Throws UserError if the number of names differs from the number of heads, or if heads that
/// share a key-value head have different mechanisms.
std::unique_ptr<AttentionMechanism> make_mixed_mechanism(ParameterStore& store, const std::string& name,
                                                         const AttentionConfig& config);

}  // namespace furlong::layers
