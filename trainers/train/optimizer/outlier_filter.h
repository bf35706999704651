#pragma once
#include <deque>

#include "framework/io/checkpoint_file.h"

namespace furlong {

/// Selects the steps that the optimizer skips because their gradient norm is an outlier: more than `factor` times the
/// median norm of the last 64 steps. Saved in checkpoints.
class OutlierFilter {
 public:
  /// `factor` 0 disables the filter.
  explicit OutlierFilter(double factor) : factor_(factor) {}

  /// Returns the gradient norm above which the next step is skipped; 0 if none is:
  /// the filter is disabled, or has fewer than 16 norms.
  double threshold() const;
  /// Records the gradient norm of a step, skipped or not.
  void note(double gradient_norm);
  /// Forgets all norms: those of other parameters say nothing about the next steps.
  void forget() { recent_norms_.clear(); }

  /// Writes the norms to a checkpoint.
  void save(CheckpointSink& file) const;
  /// Restores what save() wrote.
  void load(const CheckpointReader& checkpoint);

 private:
  double factor_;
  std::deque<double> recent_norms_;
};

}  // namespace furlong
