#pragma once
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/train/run/run_directory.h"
#include "trainers/train/train.h"
#include "trainers/train/trainer.h"

namespace furlong {

/// Brings a new trainer to where its run goes on: to the checkpoint that `options` mean, to the weights of
/// model.weights, or nowhere. Rank 0 then takes away what the run directory holds of later steps. `checkpoints`: rank
/// 0's, null on the others. All of the group call it, and throw UserError where what they have loaded is not the same.
/// Returns whether the present step is saved in the run directory already.
bool resume_run(const TrainOptions& options, const ProcessGroup& group, const RunDirectory& directory, Trainer& trainer,
                CheckpointDirectory* checkpoints);

}  // namespace furlong
