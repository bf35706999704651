#pragma once
// Trains one model for each combination of settings. `furlong sweep`.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "trainers/settings/settings.h"

namespace furlong {

/// A run of a sweep.
struct SweepRun {
  /// Name of the run directory, such as "learning_rate=0.001,seed=2": the last parts of the keys, or the whole keys if
  /// two have the same last part. Other characters than letters, digits and _ + . - in a value become -. Such names,
  /// and long ones, end with a checksum, so that different settings have different names.
  std::string name;
  std::vector<std::pair<std::string, config::Value>> values;  ///< of the sweep's keys
  LoadedSettings loaded;                                      ///< complete settings, with the run directory
};

/// Reads a sweep file (sweep_file.h) and the settings of all its runs. `overrides` ("a.b=c") apply to all runs and take
/// precedence. Throws UserError if a run's settings are invalid, with the place of the value in the sweep file if it is
/// at fault, and if two runs have equal settings.
std::vector<SweepRun> plan_sweep(const std::filesystem::path& file, const std::vector<std::string>& overrides);

/// What run_sweep() did with a run.
struct SweepOutcome {
  enum class State : std::uint8_t {
    not_run,      ///< after a stop
    finished,     ///< now or before, also by early stopping
    failed,       ///< with `error`
    in_use,       ///< another process was training it
    interrupted,  ///< by a signal, after writing a checkpoint
  } state = State::not_run;
  std::string error{};
  int exit_status = 0;  ///< of a failed run: 1 for the machine's error, 2 for the user's
};

/// Throws UserError if the run directory has a checkpoint of other settings (refuse_other_run), or one that was trained
/// on other data than its dataset contains now. Does nothing if files cannot be read.
void refuse_other_results(const SweepRun& run);

/// Trains the runs in turn. Skips finished ones, continues started ones, and continues after a failure, which it logs.
/// A run whose checkpoints are all damaged is such a failure. A signal stops the current run after saving, and the
/// sweep. Other processes may train runs of the same sweep. Throws UserError, before training, if a run directory has a
/// run of other settings or of other data, or a dataset is missing or does not fit its run, which is not finished. For
/// one rank.
std::vector<SweepOutcome> run_sweep(const std::vector<SweepRun>& runs);

}  // namespace furlong
