#include "trainers/train/run/run_resume.h"

#include <algorithm>

#include "framework/core/log.h"
#include "framework/io/atomic_file.h"
#include "trainers/train/parallel/agreement.h"
#include "trainers/train/recording/metrics.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

void forget_earlier_run(const RunDirectory& directory, CheckpointDirectory& checkpoints) {
  checkpoints.discard_after(-1);
  fs::remove_all(directory.path() / "tensorboard");
}

/// Returns the checkpoint to resume from. Rank 0 selects it; the other ranks open the same path.
std::optional<fs::path> where_to_resume(const TrainOptions& options, const ProcessGroup& group,
                                        const RunDirectory& directory, CheckpointDirectory* checkpoints) {
  std::optional<fs::path> from;
  if (group.is_first()) {
    switch (options.resume) {
      case TrainOptions::Resume::never:
        forget_earlier_run(directory, *checkpoints);
        break;
      case TrainOptions::Resume::path:
        from = newest_checkpoint_of(options.checkpoint);
        break;
      case TrainOptions::Resume::automatic:
        from = checkpoints->newest_complete();
        break;
    }
  }
  const std::string chosen = group.broadcast_text(from ? fs::absolute(*from).string() : "");
  if (!group.is_first() && !chosen.empty()) from = chosen;
  return from;
}

void start_from_weights(Trainer& trainer, const fs::path& weights) {
  const fs::path path = checkpoint_of(weights);
  const WeightsReport report = trainer.start_from(CheckpointReader::open(path));
  const auto list = [](const std::vector<std::string>& names) {
    constexpr std::size_t most = 6;
    const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), most));
    return config::join({names.begin(), end}, ", ") + (names.size() > most ? ", ..." : "");
  };
  log_info("starting from the weights of {}", path.string());
  if (!report.missing.empty())
    log_info("{} tensors are missing there and keep their initial values: {}", report.missing.size(),
             list(report.missing));
  if (!report.restarted.empty())
    log_warn(
        "the output layer there predicts something else (tokens, or labels of other names or order), so here it "
        "starts untrained: {}",
        list(report.restarted));
  if (!report.unused.empty())
    log_warn("{}: {} tensors are not part of this model and are ignored: {}", path.string(), report.unused.size(),
             list(report.unused));
  if (report.positions_before > 0)
    log_warn("{}: has {} learned positions; the model's later positions repeat them", path.string(),
             report.positions_before);
}

/// Refuses to replace the checkpoints of another run.
void refuse_to_replace(const CheckpointDirectory& checkpoints, const fs::path& from) {
  const std::vector<std::int64_t> there = checkpoints.steps();
  if (there.empty() && !checkpoints.best()) return;
  throw UserError(
      "{}: contains checkpoints of another run, up to step {}, so {} cannot be resumed here; choose another --run-dir, "
      "or omit --resume to continue the existing run",
      checkpoints.path().string(), there.empty() ? checkpoints.best()->step : there.back(), from.string());
}

/// Warns about the later checkpoints that resuming from an earlier one removes.
void warn_about_discarded(const CheckpointDirectory& checkpoints, std::int64_t present) {
  std::vector<std::string> later;
  for (const std::int64_t step : checkpoints.steps()) {
    if (step > present) later.push_back(checkpoints.path_for(step).filename().string());
  }
  if (const auto best = checkpoints.best(); best && best->step > present)
    later.push_back(best->path.filename().string());
  if (!later.empty())
    log_warn("{}: resuming from step {}, which removes the later checkpoints {}", checkpoints.path().string(), present,
             config::join(later, ", "));
}

/// Throws UserError if the file name has another step: the checkpoint would be sorted or removed as that step.
void check_name(const fs::path& from, std::int64_t step) {
  const auto named = step_in_name(from.filename().string());
  if (named && *named != step)
    throw UserError("{}: contains step {}, but its name gives another step; rename it to {}", from.string(), step,
                    checkpoint_path(from.parent_path(), step).filename().string());
}

void check_data(const CheckpointReader& checkpoint, const Trainer& trainer, bool allow_new_data) {
  if (!checkpoint.has("data_fingerprint") || checkpoint.text("data_fingerprint") == data_fingerprint(trainer.data()))
    return;
  if (!allow_new_data)
    throw UserError(
        "{}: was trained on other data than {} contains now{}; restore the data, choose another --run-dir, or pass "
        "--allow-new-data to continue on the new data",
        checkpoint.path().string(), trainer.data().path(),
        trainer.data().weights().empty() ? "" : ", or with other weights of data.sources");
  log_warn("{}: was trained on other data than {} contains now", checkpoint.path().string(), trainer.data().path());
}

/// Loads on rank 0. Returns true if the checkpoint belongs to this run directory. Removes nothing that other ranks have
/// yet to read.
bool load_on_first(const fs::path& from, bool allow_new_data, const RunDirectory& directory, Trainer& trainer,
                   CheckpointDirectory& checkpoints) {
  const bool own = fs::equivalent(fs::absolute(from).parent_path(), checkpoints.path());
  if (!own) refuse_to_replace(checkpoints, from);
  const CheckpointReader checkpoint = CheckpointReader::open(from);
  check_data(checkpoint, trainer, allow_new_data);
  trainer.load(checkpoint);
  check_name(from, trainer.steps());
  // A run that continues in another directory takes its metrics along.
  if (!own) forget_earlier_run(directory, checkpoints);
  const fs::path metrics = directory.metrics();
  if (!own || !fs::exists(metrics))
    write_file_atomically(metrics, checkpoint.has("metrics") ? checkpoint.text("metrics") : "");
  return fs::exists(checkpoints.path_for(trainer.steps()));
}

}  // namespace

bool resume_run(const TrainOptions& options, const ProcessGroup& group, const RunDirectory& directory, Trainer& trainer,
                CheckpointDirectory* checkpoints) {
  const std::optional<fs::path> from = where_to_resume(options, group, directory, checkpoints);
  const fs::path& weights = trainer.model().settings.model.weights;
  bool is_saved = false;
  if (!from) {
    if (!weights.empty()) start_from_weights(trainer, weights);
  } else if (group.is_first()) {
    is_saved = load_on_first(*from, options.allow_new_data, directory, trainer, *checkpoints);
  } else {
    trainer.load(CheckpointReader::open(*from));
  }
  // Rank 0 knows whether the checkpoint belongs to this run; all ranks must agree on what to save.
  is_saved = group.broadcast_text(is_saved ? "saved" : "") == "saved";
  if (from || !weights.empty()) check_same_start(group, trainer.digest(), from ? *from : weights);
  if (group.is_first()) {
    if (is_saved) checkpoints->committed(trainer.steps(), trainer.early_stopping().best_at(trainer.steps()));
    if (from) warn_about_discarded(*checkpoints, trainer.steps());
    if (from) checkpoints->discard_after(trainer.steps());
    cut_back(directory.metrics(), from ? trainer.steps() : -1);
  }
  group.barrier();  // afterwards other ranks write shards, which discard_after() would remove as orphans
  return is_saved;
}

}  // namespace furlong
