#pragma once
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/train/run/run_directory.h"
#include "trainers/train/train.h"
#include "trainers/train/trainer.h"

namespace furlong {

/// Returns whether an earlier start of this job ($FURLONG_RESUME_ID) has begun the run in that directory. If the run
/// has a checkpoint, resume_run() then continues it, whatever the options say.
bool was_begun_by_this_job(const std::filesystem::path& run_directory);

/// Loads the state that a new trainer starts from: the checkpoint that `options` select, the weights of model.weights,
/// or nothing. Then rank 0 removes metrics and checkpoints after that step from the run directory; with Resume::never,
/// those of the earlier run. Warns about settings that differ from those of the checkpoint. `checkpoints`: rank 0's,
/// null on other ranks. All ranks of the group call it. Throws UserError, before anything is removed, if the ranks have
/// loaded different states, or if the name or record of the checkpoint gives another step than it contains. Returns
/// whether the run directory already has a checkpoint of the current step: one that lies there gets that step's name,
/// and is not written again.
bool resume_run(const TrainOptions& options, const ProcessGroup& group, const RunDirectory& directory, Trainer& trainer,
                CheckpointDirectory* checkpoints);

}  // namespace furlong
