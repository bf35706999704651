#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Several mechanisms in one layer: config.head_mechanisms names that of each query head. Neighbouring heads of one
/// mechanism form a run, which is a mechanism of its own named `name`.heads_FIRST_LAST, over its columns of query, key
/// and value. Throws UserError when the number of names is not that of the heads, or heads that share a key-value head
/// differ.
std::unique_ptr<AttentionMechanism> make_mixed_mechanism(ParameterStore& store, const std::string& name,
                                                         const AttentionConfig& config);

}  // namespace furlong::layers
