#pragma once
#include <cmath>
#include <cstdint>
#include <optional>

#include "framework/io/checkpoint_file.h"

namespace furlong {

/// Tracks the validation losses of a run: the best one, and how many validations have passed without a better one.
/// Saved in checkpoints.
class EarlyStopping {
 public:
  /// `patience`: number of validations without improvement after which training stops; 0 disables early stopping.
  explicit EarlyStopping(std::int64_t patience) : patience_(patience) {}

  /// Records the loss of the validation after `step`. Returns whether it is the best so far; NaN never is.
  bool note(std::int64_t step, double loss);
  /// Returns whether training should stop now.
  bool is_due() const { return patience_ > 0 && without_improvement_ >= patience_; }
  std::int64_t validations_without_improvement() const { return without_improvement_; }
  std::optional<double> last_loss() const { return last_loss_; }
  bool has_best() const { return std::isfinite(best_loss_); }
  /// Returns the loss of the validation after `step` if that was the last validation and is the best so far.
  std::optional<double> best_at(std::int64_t step) const;
  /// The next loss is the best again, because the checkpoint of the best one so far no longer exists.
  void forget_best() { best_loss_ = HUGE_VAL; }
  /// All losses so far are those of other data.
  void start_anew() { *this = EarlyStopping(patience_); }

  /// Writes the state to a checkpoint.
  void save(CheckpointSink& file) const;
  /// Restores the state that save() wrote. Throws UserError if an entry is missing.
  void load(const CheckpointReader& checkpoint);

 private:
  std::int64_t patience_;
  double best_loss_ = HUGE_VAL;
  std::optional<double> last_loss_;
  std::int64_t without_improvement_ = 0, validated_at_ = -1;
};

}  // namespace furlong
