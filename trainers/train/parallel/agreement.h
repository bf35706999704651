#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "communication/process_group.h"
#include "datasets/dataset.h"
#include "trainers/settings/settings.h"
#include "trainers/train/train.h"

namespace furlong {

/// Returns a fingerprint of a run's data as 32 hexadecimal digits. It covers the vocabulary, the sizes of the splits,
/// the tokens at their ends, and the checksums of the source files. A copy of a tokenized dataset has the same
/// fingerprint.
std::string data_fingerprint(const Dataset& data);

/// Checks that all ranks have rank 0's settings, data, and those `options` that ranks must share. Ranks that
/// differ would train on inconsistent batches or wait for collectives that never come. Paths, threads and logging may
/// differ. Of the data it compares the vocabulary, the sizes, and the first and last tokens of the splits. All ranks of
/// the group call it. Throws UserError on the ranks that differ, naming the first key.
void check_agreement(const ProcessGroup& group, const Settings& settings, const Dataset& data,
                     const TrainOptions* options = nullptr);

/// Checks that all ranks have rank 0's `values`, an object; its keys are the names in messages. Throws UserError on the
/// ranks that differ, also if they lack a key.
void check_same(const ProcessGroup& group, const nlohmann::ordered_json& values);

/// Returns version and commit of this program, for example "0.1.0 (1f3c5a7)".
std::string this_program();

/// Checks that all ranks have rank 0's `program`. Programs of different commits may compute, and communicate,
/// differently: call it before the ranks use a communicator. Throws UserError on the ranks that differ.
void check_same_program(const ProcessGroup& group, const std::string& program = this_program());

/// Checks that all ranks have loaded the same state as rank 0 from `path`. `digest` is the state's Trainer::digest. All
/// ranks of the group call it, and it returns only after all have called it. Throws UserError on the ranks that differ.
void check_same_start(const ProcessGroup& group, const std::string& digest, const std::filesystem::path& path);

}  // namespace furlong
