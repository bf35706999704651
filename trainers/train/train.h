#pragma once
// The path of a batch: sampler -> model, recorded on the tape -> loss -> backward -> clip -> optimizer -> metrics,
// checkpoint.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "trainers/settings/settings.h"
#include "trainers/train/recording/step_trace.h"

namespace furlong {

/// What one call of train() did.
struct TrainResult {
  std::int64_t step = 0;       ///< optimizer steps taken, over all parts of the run
  bool interrupted = false;    ///< stopped by a signal before its end, after writing a checkpoint
  bool stopped_early = false;  ///< the validation loss stopped improving
  double train_loss = 0;       ///< of the last step; NaN if no step was left to take
  double validation_loss = 0;  ///< NaN without a validation split
  double seconds = 0;          ///< duration of this call's steps, without validation
  std::filesystem::path run_directory, checkpoint;
  bool is_first = true;  ///< whether this rank reports the results
};

/// Options of train() that are not settings of the run.
struct TrainOptions {
  /// Which checkpoint to resume from.
  enum class Resume : std::uint8_t {
    automatic,  ///< from the newest complete checkpoint in the run directory, if there is one
    /// From step 0. The checkpoints of an earlier run are removed from the run directory once the new run can start.
    never,
    /// From `checkpoint`; for a run directory, its newest one. Refused if this run directory has checkpoints of another
    /// run.
    path
  } resume = Resume::automatic;
  std::filesystem::path checkpoint;   ///< with Resume::path: a checkpoint or a run directory
  bool allow_new_data = false;        ///< resume on data that differ from the checkpoint's
  bool continues_samples = false;     ///< draw the samples after those that the checkpoint of model.weights has seen
  std::optional<TraceOptions> trace;  ///< nullopt: no trace
  /// Called on rank 0 when training is finished and its memory is freed, while the other ranks still wait: some
  /// launchers end all ranks a while after the first one exits.
  std::function<void(const TrainResult& result)> before_leaving;
};

/// Trains as configured, in settings.run_directory. Blocks until training is finished or stopped by a signal; the last
/// checkpoint is then complete. All ranks of the job call it. Throws UserError if the settings do not fit the data, the
/// machine or the checkpoint. Throws MachineError if the machine fails, PeerError if another rank does. Throws
/// NonFiniteError, naming the op, if the loss or a gradient is not finite.
TrainResult train(const LoadedSettings& loaded, const TrainOptions& options);

/// Returns whether the run in settings.run_directory has no step left: it is at trainer.max_steps, or it stopped early.
/// Safe while the run is training. Throws DamagedCheckpoints if none of its checkpoints is intact.
bool has_finished(const Settings& settings);

}  // namespace furlong
