#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "communication/process_group.h"
#include "datasets/dataset.h"
#include "trainers/settings/settings.h"
#include "trainers/train/train.h"

namespace furlong {

/// What the data of a run are, as 32 hexadecimal digits: vocabulary, sizes of the splits, tokens at their ends, and the
/// checksums of the files that they were prepared from. A copy of a tokenized dataset has the same.
std::string data_fingerprint(const Dataset& data);

/// That all processes have the settings and the data of rank 0, and what of `options` several have to do together:
/// others would train on what is nobody's batch, or wait for sums that never come. Paths, threads and what is logged
/// may differ. All of the group call it. Throws UserError, on those that differ, naming the first key; of data
/// vocabulary, sizes, and beginning and end of the splits are compared.
void check_agreement(const ProcessGroup& group, const Settings& settings, const Dataset& data,
                     const TrainOptions* options = nullptr);

/// The same of other values, by the names that messages give them.
void check_same(const ProcessGroup& group, const nlohmann::ordered_json& values);

/// That all have loaded what rank 0 has from `path`: `digest` is of it (Trainer::digest). All of the group call it, and
/// none of them goes on before all have come. Throws UserError on those that differ.
void check_same_beginning(const ProcessGroup& group, const std::string& digest, const std::filesystem::path& path);

}  // namespace furlong
