#pragma once
#include "trainers/settings/settings.h"

namespace furlong {

/// Returns the learning rate of optimizer step `step` (counted from 0): optimizer.learning_rate times a factor. The
/// factor rises linearly over warmup_steps (1 / warmup_steps at the first step), then follows schedule.name. `settings`
/// must be resolved.
///   constant              1
///   linear, cosine        down to final_fraction over decay_steps after the warmup, then constant
///   inverse_square_root   sqrt(warmup_steps / step) (Vaswani et al. 2017, section 5.3)
///   warmup_stable_decay   1, then linearly to final_fraction over the last decay_steps before max_steps
///                         (Hu et al. 2024, MiniCPM)
double learning_rate(const Settings& settings, std::int64_t step);

}  // namespace furlong
