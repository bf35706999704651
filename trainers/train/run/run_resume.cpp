#include "trainers/train/run/run_resume.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/log.h"
#include "framework/io/atomic_file.h"
#include "framework/io/text_file.h"
#include "trainers/model/objective.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/optimizer/learning_rate.h"
#include "trainers/train/parallel/agreement.h"
#include "trainers/train/recording/metrics.h"
#include "trainers/train/validation.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// Removes the event files of an earlier run. Other files in the folder stay.
void remove_events(const fs::path& folder) {
  std::error_code failure;
  std::vector<fs::path> events;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end; entry.increment(failure)) {
    if (entry->path().filename().string().starts_with("events.out.tfevents.")) events.push_back(entry->path());
  }
  for (const fs::path& file : events) {
    fs::remove(file, failure);
    if (failure) log_warn("{}: cannot remove this file: {}", file.string(), failure.message());
  }
}

void forget_earlier_run(const RunDirectory& directory, CheckpointDirectory& checkpoints) {
  remove_events(directory.path() / "tensorboard");
  checkpoints.discard_after(-1);
}

/// Returns whether a checkpoint lies in the run's own folder of checkpoints.
bool is_own(const fs::path& checkpoint, const CheckpointDirectory& checkpoints) {
  std::error_code missing;
  return fs::equivalent(fs::absolute(checkpoint).parent_path(), checkpoints.path(), missing);
}

/// Throws UserError if --resume never would remove a checkpoint that the config names.
void keep_input(const char* key, const fs::path& given, const CheckpointDirectory& checkpoints) {
  if (given.empty()) return;
  std::error_code missing;  // loading reports it
  const fs::path file = fs::canonical(checkpoint_of(given), missing);
  if (missing || !is_own(file, checkpoints)) return;
  throw UserError(
      "{}: {}: is a checkpoint of this run directory, which --resume never removes; move it to another directory, or "
      "choose another --run-dir",
      key, given.string());
}

/// The job that has begun the run in this directory, if its starts have an id in common ($FURLONG_RESUME_ID).
fs::path job_file(const fs::path& run_directory) { return run_directory / "resume_id"; }

std::string job_id() {
  const char* id = std::getenv("FURLONG_RESUME_ID");
  return id == nullptr ? "" : id;
}

/// Throws what writing the first files of a run would throw, with as many files open at once. The earlier run's stay as
/// they are.
void check_first_files(const RunDirectory& directory, const Settings& settings) {
  AtomicFile config(directory.path() / "config.yaml"), job(job_file(directory.path()));
  config.write(to_yaml(settings));
  job.write(job_id());
  config.flush();
  job.flush();
  const TensorboardWriter events(directory.path() / "tensorboard");  // forget_earlier_run() removes its file
  const MetricsWriter metrics(directory.metrics());
}

/// Returns what --resume means at this start. A job that starts again continues the run that it has begun: with
/// --resume never or PATH it would lose its steps each time.
TrainOptions::Resume present_choice(const TrainOptions& options, const RunDirectory& directory,
                                    const CheckpointDirectory& checkpoints) {
  using Resume = TrainOptions::Resume;
  const bool is_own = was_begun_by_this_job(directory.path());
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (options.resume == Resume::never && !is_own && restarts != nullptr && std::string_view(restarts) != "0" &&
      !checkpoints.steps().empty())
    throw UserError(
        "--resume never: torchrun has started this job again, and {} contains checkpoints, perhaps its own; remove the "
        "option, to continue from them, or set FURLONG_RESUME_ID to a name of the job",
        directory.checkpoints().string());
  if (options.resume == Resume::automatic || !is_own || !checkpoints.newest_complete()) return options.resume;
  log_info("this job continues its own run; --resume was for its first start");
  return Resume::automatic;
}

/// Returns checkpoint.every of the earlier training in the directory, or of this one if it has no readable config.
std::int64_t earlier_interval(const RunDirectory& directory, const Settings& settings) {
  const fs::path config = directory.path() / "config.yaml";
  try {
    return from_checkpoint_text(read_text_file(config, 1 << 20), config.string()).settings.checkpoint.every;
  } catch (const Error&) {
    return settings.checkpoint.every;
  }
}

/// Throws UserError if the metrics have steps that must have been saved: more than two intervals, because the run waits
/// there until the first checkpoint is written.
void check_nothing_is_lost(const RunDirectory& directory, const Settings& settings) {
  const std::int64_t steps = last_step(directory.metrics()), every = earlier_interval(directory, settings);
  if (every == 0 || steps <= 2 * every) return;
  throw UserError(
      "{}: contains no checkpoint, but {} has {} steps; if the checkpoints are elsewhere, move them back; to start "
      "from step 0, remove {}, or use furlong train --resume never",
      directory.checkpoints().string(), directory.metrics().filename().string(), steps, directory.path().string());
}

/// Returns the checkpoint to resume from. Rank 0 selects it, as `choice` says; the other ranks open the same file.
/// Removes nothing.
std::optional<fs::path> where_to_resume(TrainOptions::Resume choice, const TrainOptions& options,
                                        const ProcessGroup& group, const RunDirectory& directory,
                                        const Settings& settings, const CheckpointDirectory* checkpoints) {
  std::optional<fs::path> from;
  if (group.is_first()) {
    switch (choice) {
      case TrainOptions::Resume::never:
        keep_input("model.weights", settings.model.weights, *checkpoints);
        keep_input("teacher.checkpoint", settings.teacher.checkpoint, *checkpoints);
        break;
      case TrainOptions::Resume::path:
        from = newest_checkpoint_of(options.checkpoint);
        break;
      case TrainOptions::Resume::automatic:
        from = checkpoints->newest_complete();
        if (!from) check_nothing_is_lost(directory, settings);
        break;
    }
  }
  // The run directory may have another path on each host, so that a checkpoint there is sent as its name alone.
  std::string chosen;
  if (from) chosen = is_own(*from, *checkpoints) ? from->filename().string() : fs::absolute(*from).string();
  chosen = group.broadcast_text(chosen);
  if (!group.is_first() && !chosen.empty()) from = directory.checkpoints() / chosen;  // an absolute path stays
  return from;
}

void start_from_weights(Trainer& trainer, const fs::path& weights, bool continues_samples) {
  const fs::path path = checkpoint_of(weights);
  const CheckpointReader checkpoint = CheckpointReader::open(path);
  const WeightsReport report = trainer.start_from(checkpoint);
  if (continues_samples) trainer.continue_samples_of(checkpoint);
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
        "the output layer there predicts something else (tokens, or labels of other names or order), or from other "
        "states (objective.pooling), so here it starts untrained: {}",
        list(report.restarted));
  if (!report.unused.empty() && report.same_outputs)
    log_warn(
        "the trained output layer there is not part of this model: {}; set model.tied_embeddings, "
        "model.prediction_head and model.output_bias as there to keep it",
        list(report.unused));
  else if (!report.unused.empty())
    log_info("{} tensors of the output layer there are not part of this model: {}", report.unused.size(),
             list(report.unused));
  if (report.positions_before > 0)
    log_warn("{}: has {} learned positions; the model's later positions repeat them", path.string(),
             report.positions_before);
}

/// Refuses to replace the checkpoints of another run.
void refuse_to_replace(const CheckpointDirectory& checkpoints, const fs::path& from) {
  const std::vector<std::int64_t> there = checkpoints.steps();
  const auto best = checkpoints.best();
  if (there.empty() && !best) {
    // Without its record, too: the new run would remove it.
    if (const fs::path file = checkpoints.path() / "best.h5"; fs::exists(file))
      throw UserError("{}: is a checkpoint of another run, so {} cannot be resumed here; choose another --run-dir",
                      file.string(), from.string());
    return;
  }
  throw UserError(
      "{}: contains checkpoints of another run, up to step {}, so {} cannot be resumed here; choose another --run-dir, "
      "or omit --resume to continue the existing run",
      checkpoints.path().string(), there.empty() ? best->step : there.back(), from.string());
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

/// Throws UserError if the checkpoint has another step than its file name or best.json gives: it would be sorted or
/// removed as that step. Also if its shards would be removed, because no checkpoint is named after their step.
void check_name(const CheckpointReader& checkpoint, std::int64_t step, const CheckpointDirectory& checkpoints) {
  const fs::path& from = checkpoint.path();
  const std::string name = checkpoint_path(from.parent_path(), step).filename().string();
  const auto named = step_in_name(from.filename().string());
  if (named && *named != step)
    throw UserError("{}: contains step {}, but its name gives another step; rename it to {}", from.string(), step,
                    name);
  if (named || !is_own(from, checkpoints)) return;
  std::error_code missing;
  const bool is_best = fs::equivalent(from, checkpoints.path() / "best.h5", missing);
  if (const auto best = checkpoints.best(); is_best && best && best->step != step)
    throw UserError("{}: contains step {}, but best.json gives step {}; copy it to {} and remove best.json",
                    best->path.string(), step, best->step, name);
  if (!is_best && checkpoint.has("shards") && !fs::exists(checkpoints.path_for(step)))
    throw UserError("{}: contains step {} in shards, which are removed if no checkpoint has the name {}; rename it",
                    from.string(), step, name);
}

/// Returns whether the data have changed since the checkpoint. Throws UserError if they have and must not.
bool check_data(const CheckpointReader& checkpoint, const Trainer& trainer, bool allow_new_data) {
  if (!was_trained_on_other_data(checkpoint, trainer.data()).value_or(false)) return false;
  if (!allow_new_data)
    throw UserError(
        "{}: was trained on other data than {} contains now{}; restore the data, train in another directory, or "
        "continue on the new data with furlong train --allow-new-data",
        checkpoint.path().string(), trainer.data().path(),
        trainer.data().weights().empty() ? "" : ", or with other weights of data.sources");
  log_warn("{}: was trained on other data than {} contains now; the best validation loss starts anew",
           checkpoint.path().string(), trainer.data().path());
  return true;
}

/// Warns about settings that differ from those of the steps so far. The run continues with the present ones.
void warn_about_changes(const CheckpointReader& checkpoint, const Settings& before, const Settings& now) {
  const std::string origin = checkpoint.path().string();
  const auto changed =
      changed_since(before, now, {"model", "data", "objective", "teacher", "optimizer", "schedule", "trainer"});
  if (!changed.empty())
    log_warn("{}: was trained with other settings: {}; the present ones apply to further steps only", origin,
             config::join(changed, ", "));
  const std::int64_t steps_then = before.trainer.max_steps, steps_now = now.trainer.max_steps;
  const auto is_layer_wise = [](const TeacherSettings& teacher) {
    return teacher.has_loss() && teacher.layers == "layer_wise";
  };
  if (is_layer_wise(before.teacher) && is_layer_wise(now.teacher) && steps_then != steps_now)
    log_warn(
        "{}: teacher.layers: layer_wise divides {} steps now, and divided {} before; layers that were trained "
        "before have another share",
        origin, steps_now, steps_then);
  const std::int64_t step = checkpoint.integer("step");
  if (step <= before.schedule.warmup_steps) return;
  const double rate = learning_rate(before, step - 1), next = learning_rate(now, step);
  if (next > 1.05 * rate) log_info("the learning rate rises from {:.2e} to {:.2e}", rate, next);
}

/// Returns the number of samples that a validation reads.
std::uint64_t validated_samples(const Settings& settings, std::uint64_t split) {
  const auto part = static_cast<std::uint64_t>(settings.trainer.validation_batches * settings.data.batch_size);
  return part == 0 ? split : std::min(part, split);
}

/// Returns whether further validations measure other samples than those so far, so that losses do not compare. Warns
/// if so.
bool check_validation(const fs::path& checkpoint, const Settings& before, Trainer& trainer) {
  const Settings& now = trainer.model().settings;
  const EarlyStopping& so_far = trainer.early_stopping();
  const bool validates = trainer.data().size(Split::validation) >= 2 && trainer.steps() < now.trainer.max_steps;
  if (!validates || so_far.is_due() || !so_far.has_best()) return false;
  const std::uint64_t split = validation_source(now, trainer.model().vocabulary, trainer.data())->n_samples(),
                      samples = validated_samples(now, split);
  const bool same_streams = now.data.sampler != "stream" || before.data.batch_size == now.data.batch_size;
  const bool same_rows =
      before.data.sequence_length == now.data.sequence_length && validation_rows(before) == validation_rows(now);
  if (same_rows && changed_targets(before, now).empty() && validated_samples(before, split) == samples &&
      (same_streams || samples == split))
    return false;
  log_warn(
      "{}: its validations measured other samples or targets than those from now on (trainer.validation_batches, "
      "settings of data and objective, or teacher.input); the best validation loss starts anew",
      checkpoint.string());
  return true;
}

/// What rank 0 has loaded.
struct Loaded {
  bool is_own = true;           ///< a checkpoint of this run directory
  bool validates_anew = false;  ///< on other data or samples, so that losses do not compare with earlier ones
  std::string metrics;          ///< up to that step
};

/// Loads on rank 0. Changes no file.
Loaded load_on_first(const fs::path& from, bool allow_new_data, Trainer& trainer,
                     const CheckpointDirectory& checkpoints) {
  Loaded loaded;
  loaded.is_own = is_own(from, checkpoints);
  if (!loaded.is_own) refuse_to_replace(checkpoints, from);
  const CheckpointReader checkpoint = CheckpointReader::open(from);
  loaded.validates_anew = check_data(checkpoint, trainer, allow_new_data);
  trainer.load(checkpoint);
  check_name(checkpoint, trainer.steps(), checkpoints);
  const Settings before = from_checkpoint_text(checkpoint.text("config"), from.string() + " (config)").settings;
  if (!loaded.validates_anew) loaded.validates_anew = check_validation(from, before, trainer);
  warn_about_changes(checkpoint, before, trainer.model().settings);
  if (checkpoint.has("metrics")) loaded.metrics = checkpoint.text("metrics");
  return loaded;
}

/// Rank 0: removes what the run writes again, after all ranks have loaded. Returns whether this directory does not have
/// the best checkpoint so far: it was removed now or earlier, or is in the directory of the run that is continued.
bool clean_up(const std::optional<fs::path>& from, const Loaded& loaded, const RunDirectory& directory,
              const Trainer& trainer, CheckpointDirectory& checkpoints) {
  // A run that continues in another directory takes its metrics along.
  if (!loaded.is_own) forget_earlier_run(directory, checkpoints);
  if (!from) remove_events(directory.path() / "tensorboard");  // of a start that ended before its first checkpoint
  if (from && (!loaded.is_own || !fs::exists(directory.metrics())))
    write_file_atomically(directory.metrics(), loaded.metrics);
  const std::int64_t step = trainer.steps();
  if (from) {
    checkpoints.forget_wrong_record(step);
    if (loaded.is_own) checkpoints.adopt(*from, step);
    warn_about_discarded(checkpoints, step);
    checkpoints.discard_after(step);
  }
  // After the later best checkpoint is gone, so that this one can become the best.
  if (from && loaded.is_own) checkpoints.committed(step, trainer.early_stopping().best_at(step));
  cut_back(directory.metrics(), from ? step : -1);
  // Of another directory's checkpoint: if it is the best so far, the run saves it.
  const EarlyStopping& so_far = trainer.early_stopping();
  return from && so_far.has_best() && !so_far.best_at(step) && !checkpoints.best();
}

}  // namespace

bool was_begun_by_this_job(const fs::path& run_directory) {
  const fs::path file = job_file(run_directory);
  return !job_id().empty() && fs::exists(file) && read_text_file(file, 4096) == job_id();
}

bool resume_run(const TrainOptions& options, const ProcessGroup& group, const RunDirectory& directory, Trainer& trainer,
                CheckpointDirectory* checkpoints) {
  const Settings& settings = trainer.model().settings;
  TrainOptions::Resume choice = options.resume;
  if (group.is_first()) choice = present_choice(options, directory, *checkpoints);
  const std::optional<fs::path> from = where_to_resume(choice, options, group, directory, settings, checkpoints);
  const fs::path& weights = settings.model.weights;
  Loaded loaded;
  if (!from) {
    if (!weights.empty()) start_from_weights(trainer, weights, options.continues_samples);
  } else if (group.is_first()) {
    loaded = load_on_first(*from, options.allow_new_data, trainer, *checkpoints);
  } else {
    trainer.load(CheckpointReader::open(*from));
  }
  // Rank 0 knows whether the checkpoint belongs to this run; all ranks must agree on what to save.
  const bool is_saved = group.broadcast_text(from && loaded.is_own ? "saved" : "") == "saved";
  if (from || !weights.empty())
    check_same_start(group, trainer.digest(), from ? *from : weights);
  else
    group.barrier();        // a rank that cannot start has not come here
  std::string best_losses;  // new: of other samples so far; lost: of a checkpoint that is not here
  if (group.is_first()) {
    // Only now: a run that cannot start leaves the earlier one unchanged.
    if (choice == TrainOptions::Resume::never) {
      check_first_files(directory, settings);
      forget_earlier_run(directory, *checkpoints);
    }
    const bool lost_best = clean_up(from, loaded, directory, trainer, *checkpoints);
    best_losses = loaded.validates_anew ? "new" : lost_best && settings.checkpoint.keep_best ? "lost" : "";
    if (!job_id().empty()) write_file_atomically(job_file(directory.path()), job_id());
  }
  // The other ranks also wait until rank 0 is done: they write shards, which discard_after() would remove as orphans.
  best_losses = group.broadcast_text(best_losses);
  if (best_losses == "new") trainer.start_validation_anew();
  if (best_losses == "lost") trainer.forget_best_validation();
  if (group.is_first() && !trainer.early_stopping().has_best()) checkpoints->outdate_best();
  return is_saved;
}

}  // namespace furlong
