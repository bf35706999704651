#pragma once
#include <optional>
#include <string>
#include <vector>

#include "datasets/dataset.h"
#include "framework/io/checkpoint_file.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// Checks the settings against the dataset before training: model.vocabulary_size, model.prediction_head (does the
/// model have the head that the objective needs?), data.ignore_tokens, data.sequence_length, objective.name (are there
/// labels?), and the prompt of the final sample. Throws UserError with the key, and the place where it was set.
void check_against_data(const LoadedSettings& loaded, const Dataset& data);

/// Returns the files that a training with these settings reads: configs and datasets.
std::vector<std::string> input_files(const LoadedSettings& loaded);

/// Returns whether a checkpoint was trained on other data, by their data_fingerprint(). Empty if the checkpoint has no
/// fingerprint: an imported model, or one of an earlier version.
std::optional<bool> was_trained_on_other_data(const CheckpointReader& checkpoint, const Dataset& data);

}  // namespace furlong
