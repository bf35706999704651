#pragma once
#include "datasets/dataset.h"
#include "trainers/settings/settings.h"

namespace furlong {

/// What the settings say against the store that they name, before anything is trained: model.vocabulary_size,
/// model.prediction_head (is there one to learn the objective?), data.ignore_tokens, data.sequence_length,
/// objective.name (are there labels?), and the prompt of the sample at the end. Throws UserError naming the key, and
/// its place where it was set.
void check_against_data(const LoadedSettings& loaded, const Dataset& data);

}  // namespace furlong
