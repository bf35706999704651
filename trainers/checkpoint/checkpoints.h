#pragma once
// The checkpoints of one run: their names, which ones to keep, and which one to resume from.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "framework/core/error.h"
#include "framework/io/checkpoint_file.h"

namespace furlong {

/// None of the checkpoints in a folder is intact.
class DamagedCheckpoints : public UserError {
 public:
  using UserError::UserError;
};

/// Returns the step in a checkpoint's file name (12 for step_00000012.h5), or nullopt for other names.
std::optional<std::int64_t> step_in_name(const std::string& name);

/// Returns the path of the checkpoint of `step` in `folder`.
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, std::int64_t step);

/// A folder of checkpoints. It contains step_<step>.h5 (at least eight digits), best.h5 (the checkpoint with the lowest
/// validation loss; a hard link if the file system supports it) and best.json (step and loss of best.h5). With several
/// ranks it also contains step_<step>.shard_<rank>_of_<world size>.h5, for best.h5 too. Only one process at a time may
/// write to the folder, except for shards.
class CheckpointDirectory {
 public:
  /// Creates the folder if it is missing, and removes the partial files of killed writers. `keep_last` must be at least
  /// 1.
  CheckpointDirectory(std::filesystem::path path, std::int64_t keep_last, bool keep_best);

  /// Throws UserError if a file cannot be written here. Leaves none.
  void check_writable() const;
  /// Returns checkpoint_path() for this folder.
  std::filesystem::path path_for(std::int64_t step) const;
  /// Call this when the checkpoint of `step` is complete. If `validation_loss` is below the best one so far, the
  /// checkpoint becomes the best; NaN never does. Then removes all but the last `keep_last` checkpoints up to `step`
  /// and, without `keep_best`, the best checkpoint of an earlier part of the run. Warns about files that cannot be
  /// removed. Shards of later steps stay, because their checkpoint is still incomplete. A resumed run may call this
  /// again for the step that it resumed from, in case the earlier run was killed before its call.
  void committed(std::int64_t step, std::optional<double> validation_loss = std::nullopt);
  /// Gives a checkpoint of `step` in this folder, such as best.h5, the name of that step too; replaces any other file
  /// of that name. Call it after loading the checkpoint: writing it again would replace the shards that it needs.
  void adopt(const std::filesystem::path& checkpoint, std::int64_t step) const;
  /// Any next validation loss is below the best one so far, which is a loss of other data.
  void outdate_best();
  /// Returns the newest checkpoint with a valid checksum, best.h5 included. Warns about a damaged checkpoint, with the
  /// reason, and tries the one before it. Returns nullopt if the folder has no checkpoints. Throws DamagedCheckpoints
  /// if all of them are damaged, because a silent new start would overwrite the run. A best.h5 of another step than
  /// best.json gives is returned only if no other one is intact. Throws UnusableFile or MachineError if one cannot be
  /// read for another reason (permissions, a newer format, an I/O error): a resume from an earlier one would remove it.
  std::optional<std::filesystem::path> newest_complete() const;
  /// Removes best.json if it gives a step after `step`, but best.h5 contains another one: discard_after() then keeps
  /// best.h5.
  void forget_wrong_record(std::int64_t step);
  /// Removes checkpoints of steps after `step`, best.h5 included: a run that resumes from `step` writes them again. A
  /// negative step removes all checkpoints.
  void discard_after(std::int64_t step);

  struct Best {
    std::int64_t step = 0;
    double validation_loss = 0;
    std::filesystem::path path;
  };
  /// Returns the best checkpoint, written by this process or by an earlier part of the run.
  std::optional<Best> best() const;
  /// Returns the steps of the existing step_*.h5 files, ascending.
  std::vector<std::int64_t> steps() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  void set_best(std::int64_t step, double validation_loss);
  void load_best();
  void forget_best();
  void remove_orphaned_shards(std::int64_t up_to) const;
  std::optional<std::vector<std::string>> shards_of_best() const;

  std::filesystem::path path_;
  std::int64_t keep_last_;
  bool keep_best_;
  std::optional<Best> best_;
  bool best_has_recorded_step_ = true;  // of best.json
};

/// Returns the newest complete checkpoint, like CheckpointDirectory::newest_complete, without changing the folder: safe
/// while a run still writes to it. Returns nullopt if the folder has no checkpoints.
std::optional<std::filesystem::path> newest_complete_checkpoint(const std::filesystem::path& folder);

/// Opens that checkpoint. A run that still writes may remove the file, whose content then stays readable.
std::optional<CheckpointReader> open_newest_checkpoint(const std::filesystem::path& folder);

/// Returns the folder of the last finetune stage with a checkpoint (1_attention_transfer, 2_distillation, ...) in the
/// run directory `run`, or nullopt if `run` has no stage folders. Throws UserError if no stage has a checkpoint yet, or
/// if two stages with the same number have one, left by different lists of stages.
std::optional<std::filesystem::path> last_stage_of(const std::filesystem::path& run);

}  // namespace furlong
