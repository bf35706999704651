#pragma once
// The way of a batch: sampler -> model, recorded on the tape -> loss -> backward -> clip -> optimizer -> metrics,
// checkpoint.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "trainers/settings/settings.h"
#include "trainers/train/recording/step_trace.h"

namespace furlong {

struct TrainResult {
  std::int64_t step = 0;       ///< optimizer steps taken, over all runs
  bool interrupted = false;    ///< a signal asked it to stop; the checkpoint is written
  bool stopped_early = false;  ///< validation stopped improving
  double train_loss = 0;       ///< of the last step; NaN when there was nothing left to do
  double validation_loss = 0;  ///< NaN without validation split
  double seconds = 0;          ///< that the steps of this call took, without validation
  std::filesystem::path run_directory, checkpoint;
  bool is_first = true;  ///< of several processes, the one whose results are shown
};

struct TrainOptions {
  enum class Resume : std::uint8_t {
    automatic,  ///< from the newest whole checkpoint in the run directory, if there is one
    never,      ///< from the beginning; what an earlier run left in the run directory is removed
    path  ///< from `checkpoint`, of a run directory the newest; refused where this run directory holds checkpoints of
          ///< another run
  } resume = Resume::automatic;
  std::filesystem::path checkpoint;
  bool allow_new_data = false;  ///< resume on other data than the checkpoint was trained on
  std::optional<TraceOptions> trace;
  /// On rank 0, when the run is done and its memory free, while the other processes still wait: once one has ended,
  /// some launchers end the rest after a while.
  std::function<void(const TrainResult& result)> before_leaving;
};

/// Trains as the settings say, in settings.run_directory. Throws UserError for settings that do not fit the data, the
/// machine or the checkpoint, MachineError where the machine fails (PeerError: another process of the job did),
/// NonFiniteError naming the op when the loss or a gradient is no longer finite.
TrainResult train(const LoadedSettings& loaded, const TrainOptions& options);

}  // namespace furlong
