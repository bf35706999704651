#include "trainers/train/optimizer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "framework/core/error.h"

namespace furlong {

double learning_rate(const Settings& settings, std::int64_t step) {
  const ScheduleSettings& schedule = settings.schedule;
  const double peak = settings.optimizer.learning_rate;
  const auto warmup = static_cast<double>(schedule.warmup_steps), now = static_cast<double>(step);
  if (step < schedule.warmup_steps) return peak * (now + 1) / warmup;
  const auto decay = static_cast<double>(std::max<std::int64_t>(schedule.decay_steps, 1));
  const double final_fraction = schedule.final_fraction;
  if (schedule.name == "constant") return peak;
  if (schedule.name == "inverse_square_root") return peak * std::sqrt(std::max(warmup, 1.0) / std::max(now + 1, 1.0));
  if (schedule.name == "warmup_stable_decay") {
    const double start = static_cast<double>(settings.trainer.max_steps) - decay;
    return peak * (1 - (1 - final_fraction) * std::clamp((now - start + 1) / decay, 0.0, 1.0));
  }
  // The first step after the warmup has progress 0, the last step of the decay has progress 1.
  const double progress = decay > 1 ? std::clamp((now - warmup) / (decay - 1), 0.0, 1.0) : 1.0;
  if (schedule.name == "linear") return peak * (1 - (1 - final_fraction) * progress);
  if (schedule.name == "cosine")
    return peak * (final_fraction + (1 - final_fraction) * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
  throw ContractError("schedule '{}' has no formula", schedule.name);
}

}  // namespace furlong
