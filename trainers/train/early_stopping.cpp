#include "trainers/train/early_stopping.h"

#include <cmath>

#include "framework/core/error.h"

namespace furlong {

bool EarlyStopping::note(std::int64_t step, double loss) {
  last_loss_ = loss;
  validated_at_ = step;
  if (loss < best_loss_) {
    best_loss_ = loss;
    without_improvement_ = 0;
    return true;
  }
  ++without_improvement_;
  return false;
}

std::optional<double> EarlyStopping::best_at(std::int64_t step) const {
  return validated_at_ == step && without_improvement_ == 0 ? last_loss_ : std::nullopt;
}

void EarlyStopping::save(CheckpointSink& file) const {
  file.number("best_validation", best_loss_);
  if (last_loss_) file.number("last_validation", *last_loss_);
  file.integer("validations_without_improvement", without_improvement_);
  file.integer("validated_at", validated_at_);
}

void EarlyStopping::load(const CheckpointReader& checkpoint) {
  best_loss_ = checkpoint.number("best_validation");
  if (std::isnan(best_loss_))
    throw UserError("{}: best_validation is NaN, so no validation could be better; use an earlier checkpoint",
                    checkpoint.path().string());
  if (checkpoint.has("last_validation")) last_loss_ = checkpoint.number("last_validation");
  without_improvement_ = checkpoint.integer("validations_without_improvement");
  validated_at_ = checkpoint.integer("validated_at");
}

}  // namespace furlong
