#pragma once
#include <memory>
#include <string>

#include "communication/process_group.h"
#include "datasets/dataset.h"
#include "trainers/settings/settings.h"
#include "trainers/train/parallel/agreement.h"
#include "trainers/train/train.h"

namespace furlong {

/// Data and device of a run.
struct RunSetup {
  std::unique_ptr<Dataset> data;
  Device device;
  bool copies_checkpoints = false;  ///< write checkpoints asynchronously, from a copy
};

/// Checks that all ranks run the same program. Opens the data, sets up logging and threads, and selects the device.
/// Then checks that settings, data, device and memory fit together on all ranks, before anything large is allocated.
/// All ranks of the group call it. Throws UserError if they do not fit.
RunSetup set_up_run(const LoadedSettings& loaded, const TrainOptions& options, const ProcessGroup& group,
                    const std::string& program = this_program());

}  // namespace furlong
