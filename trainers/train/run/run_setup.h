#pragma once
#include <memory>

#include "communication/process_group.h"
#include "datasets/dataset.h"
#include "trainers/settings/settings.h"
#include "trainers/train/train.h"

namespace furlong {

/// What a run trains on and with.
struct RunSetup {
  std::unique_ptr<Dataset> data;
  Device device;
  bool copies_checkpoints = false;  ///< to write them in the background
};

/// Before anything large is allocated: opens the data, sets logging and threads up, chooses the device, and checks that
/// settings, data, device and memory go together, in all processes alike. All of the group call it. Throws UserError.
RunSetup set_up_run(const LoadedSettings& loaded, const TrainOptions& options, const ProcessGroup& group);

}  // namespace furlong
