#pragma once
// The checkpoints of one run: their names, which to keep, and which to resume from.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace furlong {

/// The step that the name of a checkpoint says (step_00000012.h5); nothing for other names.
std::optional<std::int64_t> step_in_name(const std::string& name);

/// Where in a folder of checkpoints that of `step` belongs.
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, std::int64_t step);

/// A folder with step_<step>.h5 (at least eight digits), best.h5 (the checkpoint with the lowest validation loss, a
/// hard link where the file system has them) and best.json (its step and loss); with several processes
/// step_<step>.shard_<rank>_of_<processes>.h5 as well, for both. One process at a time may write to it, but for the
/// shards.
class CheckpointDirectory {
 public:
  /// Creates the folder where missing, and removes what interrupted writes have left in it (*.partial). `keep_last` is
  /// at least 1.
  CheckpointDirectory(std::filesystem::path path, std::int64_t keep_last, bool keep_best);

  /// checkpoint_path() here.
  std::filesystem::path path_for(std::int64_t step) const;
  /// To be called when the checkpoint of `step` is whole. With a validation loss below the best one so far (NaN never
  /// is) it becomes the best. A resumed run may call it again for the step that it resumed from, in case the run before
  /// was killed between the checkpoint and this call. Then removes all but the last `keep_last` checkpoints up to
  /// `step`, and, without `keep_best`, the best one of an earlier part of the run; what cannot be removed is warned
  /// about. Shards of later steps stay: their checkpoint is still to come.
  void committed(std::int64_t step, std::optional<double> validation_loss = std::nullopt);
  /// The newest checkpoint whose checksum is right, best.h5 included. A damaged one is warned about, with the reason,
  /// and the one before is taken. Nothing when there are no checkpoints; UserError when there are some and none is
  /// whole, since starting again silently would overwrite a run.
  std::optional<std::filesystem::path> newest_whole() const;
  /// Removes the checkpoints of later steps, best.h5 if it is one: for a run that resumes from `step` and will write
  /// them again, so that they are neither counted nor resumed from. A step below 0 removes them all.
  void discard_after(std::int64_t step);

  struct Best {
    std::int64_t step = 0;
    double validation_loss = 0;
    std::filesystem::path path;
  };
  /// The best checkpoint, of this run of the program or an earlier one.
  std::optional<Best> best() const;
  /// Steps of the step_*.h5 files that are there, ascending.
  std::vector<std::int64_t> steps() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  void set_best(std::int64_t step, double validation_loss);
  void link_best(std::int64_t step) const;
  void load_best();
  void forget_best();
  void remove_orphaned_shards(std::int64_t up_to) const;
  std::vector<std::string> shards_of_best() const;

  std::filesystem::path path_;
  std::int64_t keep_last_;
  bool keep_best_;
  std::optional<Best> best_;
};

/// The newest whole checkpoint in a folder of them, as CheckpointDirectory::newest_whole finds it, but changing nothing
/// there: for reading beside a run that is still going on. Nothing when there are none.
std::optional<std::filesystem::path> newest_whole_checkpoint(const std::filesystem::path& folder);

/// The folder of the last stage of a run of furlong finetune (1_transfer, 2_distillation, ...) that has a checkpoint,
/// where `run` holds such folders; nothing where it holds none. Throws UserError where no stage has a checkpoint yet,
/// and where two stages of one number do: left by different lists of stages.
std::optional<std::filesystem::path> last_stage_of(const std::filesystem::path& run);

}  // namespace furlong
