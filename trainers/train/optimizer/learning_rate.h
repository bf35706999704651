#pragma once
#include "trainers/settings/settings.h"

namespace furlong {

/// The learning rate of optimizer step `step` (counted from 0) as optimizer.learning_rate times a factor: rising
/// linearly over warmup_steps (the first step has 1 / warmup_steps), then by schedule.name. Settings must be resolved.
///   constant              1
///   linear, cosine        down to final_fraction over decay_steps from the end of the warmup, then staying there
///   inverse_square_root   sqrt(warmup_steps / step) (Vaswani et al. 2017, section 5.3)
///   warmup_stable_decay   1, then linearly to final_fraction over the last decay_steps before max_steps
///                         (Hu et al. 2024, MiniCPM)
double learning_rate(const Settings& settings, std::int64_t step);

}  // namespace furlong
