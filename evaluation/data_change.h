#pragma once
#include <filesystem>
#include <optional>

#include "datasets/dataset.h"
#include "framework/io/checkpoint_file.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Returns whether a model's dataset has changed since training, and warns if it has: `split` may then hold training
/// data. `own`: the data of the model's training; `given`: the dataset that replaces them, or empty; `data`: what is
/// evaluated. Empty if there is nothing to compare with: `given` is another dataset, or the checkpoint has no
/// fingerprint of its data.
std::optional<bool> has_changed_since_training(const CheckpointReader& checkpoint, const DataSettings& own,
                                               const std::filesystem::path& given, const Dataset& data, Split split);

}  // namespace furlong
