#pragma once
// Weights that come from another run or another program: where a run begins, and what a teacher knows.
#include <cstdint>
#include <string>
#include <vector>

#include "trainers/model/model.h"

namespace furlong {

/// What did not find its counterpart.
struct WeightsReport {
  std::vector<std::string> missing;  ///< of the model, not in the checkpoint: they keep their initial values
  std::vector<std::string> unused;   ///< of the checkpoint, unknown to the model
  std::int64_t positions_before =
      0;  ///< learned positions that the checkpoint has, where the model has more; otherwise 0
};

/// Gives the model the parameters and buffers of that name in the checkpoint (its moving averages where it has them).
/// Where the model has more learned positions than the checkpoint, position p begins as p modulo their number (as
/// Longformer's do: Beltagy, Peters and Cohan 2020, section 5). Throws UserError where the checkpoint's vocabulary,
/// labels aside, is not the model's, or a shape differs.
WeightsReport begin_from(const CheckpointReader& checkpoint, Model& model);

}  // namespace furlong
