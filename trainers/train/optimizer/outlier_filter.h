#pragma once
#include <deque>

#include "framework/io/checkpoint_file.h"

namespace furlong {

/// Chooses the steps that the optimizer skips because their gradient norm is an outlier: more than `factor` times the
/// median norm of the last steps. Part of the checkpoint.
class OutlierFilter {
 public:
  /// factor 0: no step is skipped.
  explicit OutlierFilter(double factor) : factor_(factor) {}

  /// The gradient norm above which the next step is skipped; 0: none is.
  double threshold() const;
  /// The gradient norm of a step, skipped or not.
  void note(double gradient_norm);

  void save(CheckpointSink& file) const;
  void load(const CheckpointReader& checkpoint);

 private:
  double factor_;
  std::deque<double> recent_norms_;
};

}  // namespace furlong
