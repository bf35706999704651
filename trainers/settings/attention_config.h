#pragma once
#include "layers/attention/mechanism.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// model.attention, and what attention has to know of the rest of the model: the same for decoders (causal) and
/// encoders.
layers::AttentionConfig attention_config(const Settings& settings);

}  // namespace furlong
