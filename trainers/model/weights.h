#pragma once
// Initial weights from another run or an imported model: for a new run, and for a teacher.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainers/model/model.h"

namespace furlong {

/// Tensors without a counterpart after a load.
struct WeightsReport {
  bool same_outputs = false;         ///< both predict tokens, or the same labels from equally pooled states
  std::vector<std::string> missing;  ///< in the model, not in the checkpoint: they have initial values
  std::vector<std::string> unused;   ///< in the checkpoint, not in the model
  /// In both, but with initial values: those of an output layer if that of the checkpoint predicts something else, and
  /// those of adapters that are not taken.
  std::vector<std::string> restarted;
  /// Number of learned positions in the checkpoint if the model has more; otherwise 0.
  std::int64_t positions_before = 0;
};

/// Checks that a new run can start from the checkpoint: that its model has the same keys under `model`, except for
/// attention, output layer and adapters, and that each of its tensors has a place in the model, in the same shape.
/// Exceptions are output layers, and fewer learned positions. Throws UserError that names the keys that differ, with
/// both values, and UserError if the vocabularies differ, labels aside.
void check_same_model(const CheckpointReader& checkpoint, const Model& model);

/// Returns whether a parameter is the random projection of a layer's linear attention.
bool is_random_projection(std::string_view parameter);

/// Copies parameters and buffers with equal names from the checkpoint into the model; uses the EMA if the checkpoint
/// has one. If the model has more learned positions than the checkpoint, position p starts from checkpoint position p
/// modulo their number (Longformer: Beltagy, Peters and Cohan 2020, section 5). Parameters without a counterpart get
/// initial values, so the model can be made by make_empty_model(). So does an output layer if that of the checkpoint
/// predicts something else: tokens instead of labels, another kind of labels, labels of other names or order, or from
/// states pooled in another way. An output layer over numbers changes to the units of the model's labels (LabelScale).
/// Without `takes_adapters`, so do adapters (LoRA), whatever their rank. Random projections of another distribution or
/// size stay as the model has drawn them, with a warning. Throws UserError if the vocabularies differ,
/// labels aside, or if a shape differs.
WeightsReport initialize_from(const CheckpointReader& checkpoint, Model& model, bool takes_adapters = true);

}  // namespace furlong
