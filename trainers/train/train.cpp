#include "trainers/train/train.h"

#include "communication/process_group.h"
#include "framework/core/arena.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "framework/io/atomic_file.h"
#include "framework/io/text_file.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/model/objective.h"
#include "trainers/train/checkpoint_saver.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/recording/run_recorder.h"
#include "trainers/train/run/run_directory.h"
#include "trainers/train/run/run_resume.h"
#include "trainers/train/run/run_setup.h"
#include "trainers/train/signals.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// Returns whether resume_run() reads all weights, so that no initial ones are needed.
bool reads_weights(const Settings& settings, const TrainOptions& options) {
  return options.resume == TrainOptions::Resume::path || !settings.model.weights.empty();
}

/// A run writes its complete settings to config.yaml. Throws UserError if the user's own config has this path.
void keep_config(const LoadedSettings& loaded) {
  const fs::path config = loaded.settings.run_directory / "config.yaml";
  std::error_code missing;
  for (const fs::path& file : loaded.files) {
    if (!fs::equivalent(file, config, missing) || is_config_of_run(read_text_file(file, 16 << 20))) continue;
    throw UserError(
        "{}: training would replace this config by its complete settings, because it is in the run directory; move it, "
        "or pass another --run-dir",
        file.string());
  }
}

/// Throws UserError if a trace would replace a file that the run reads or writes, which may not exist yet.
void check_trace(const LoadedSettings& loaded, const TrainOptions& options) {
  if (!options.trace) return;
  std::vector<std::string> files = input_files(loaded);
  if (!options.checkpoint.empty()) files.push_back(options.checkpoint.string());
  refuse_replacing_inputs(files, options.trace->path, "--trace");
  refuse_file_of_run(loaded.settings.run_directory, options.trace->path, "--trace");
}

class Run {
 public:
  /// The referenced arguments must outlive the run. All ranks of the group construct it.
  Run(const Settings& settings, RunSetup setup, const TrainOptions& options, const ProcessGroup& group,
      const StopRequests& stop_requests)
      : settings_(settings),
        group_(group),
        stop_requests_(stop_requests),
        setup_(std::move(setup)),
        directory_(settings.run_directory, group),
        trainer_(settings, *setup_.data, setup_.device, std::nullopt, &group, !reads_weights(settings, options)),
        saver_(trainer_, group, setup_.copies_checkpoints),
        trace_(options.trace, group, setup_.device) {
    if (group.is_first())
      checkpoints_.emplace(directory_.checkpoints(), settings.checkpoint.keep_last, settings.checkpoint.keep_best);
    if (resume_run(options, group, directory_, trainer_, checkpoints_ ? &*checkpoints_ : nullptr))
      saved_at_ = trainer_.steps();
    recorder_.emplace(settings, setup_.device, group, directory_, trainer_.steps());
    if (!group.is_first()) return;  // only rank 0 writes the files of a run
    // A finished run keeps the settings that it was trained with.
    const fs::path config = directory_.path() / "config.yaml";
    const bool trains = !is_done() && !trainer_.early_stopping().is_due();
    if (trains) checkpoints_->check_writable();  // hours before the first checkpoint
    if (trains || !fs::exists(config)) write_file_atomically(config, to_yaml(settings));
    if (!can_validate())
      log_warn(
          "{}: no validation split; training continues without validation. To get a split, prepare the dataset again "
          "with --split 0.9,0.05,0.05",
          setup_.data->path());
  }

  TrainResult train() {
    TrainResult result;
    result.train_loss = MetricsRecord::not_measured;
    print_start();
    recorder_->start();
    save_resumed_best();
    while (!is_done()) {
      // Checked before the step, so that a run that stopped early stays stopped after a restart.
      if (trainer_.early_stopping().is_due()) {
        recorder_->print(fmt::format("stopping early: {} validations without improvement",
                                     trainer_.early_stopping().validations_without_improvement()));
        result.stopped_early = true;
        break;
      }
      trace_.begin_step();
      const StepReport report = trainer_.step(stop_requests_.received());
      result.train_loss = report.loss;
      saver_.check();
      recorder_->note_step(trainer_.steps(), trainer_.tokens(), report);
      validate_and_save_where_due();
      trace_.end_step();
      if (report.stops || (group_.is_alone() && stop_requests_.received())) {
        result.stopped_early = trainer_.early_stopping().is_due();
        result.interrupted = !is_done() && !result.stopped_early;
        break;
      }
    }
    if (saved_at_ != trainer_.steps()) save(std::nullopt);
    saver_.wait();
    trace_.finish();  // after the checkpoint, which is more important
    result.step = trainer_.steps();
    result.validation_loss = trainer_.early_stopping().last_loss().value_or(MetricsRecord::not_measured);
    result.seconds = trainer_.seconds();
    result.run_directory = directory_.path();
    result.checkpoint = checkpoint_path(directory_.checkpoints(), trainer_.steps());
    group_.barrier();  // no rank closes connections that others still use
    return result;
  }

 private:
  bool is_done() const { return trainer_.steps() >= settings_.trainer.max_steps; }
  bool can_validate() const { return setup_.data->size(Split::validation) >= 2; }

  void print_start() {
    if (is_done()) {
      recorder_->print(fmt::format("already at step {}; trainer.max_steps is {}, nothing to do", trainer_.steps(),
                                   settings_.trainer.max_steps));
      return;
    }
    recorder_->print(fmt::format(
        "{}: {} parameters, attention: {}, trains on {} (vocabulary: {}), {}, run directory {}",
        trainer_.steps() > 0 ? fmt::format("resuming at step {}", trainer_.steps()) : "starting",
        trainer_.model().store->trained_parameter_count(), layers::attention_text(settings_.model.attention),
        data_to_train_on(), setup_.data->vocabulary().kind_name(), where(), directory_.path().string()));
    if (const std::string part = validated_part(); !part.empty()) recorder_->print(part);
    const std::string note = trainer_.source().note();
    if (!note.empty() && group_.is_first()) log_warn("{}", note);
  }

  /// A sentence if validation reads a part of its split only.
  std::string validated_part() {
    const std::int64_t limit = settings_.trainer.validation_batches, rows = settings_.data.batch_size;
    if (settings_.data.task != "none" || !can_validate() || limit == 0) return "";
    const auto source = validation_source(settings_, trainer_.model().vocabulary, *setup_.data);
    const auto batches =
        (source->n_samples() + static_cast<std::uint64_t>(rows) - 1) / static_cast<std::uint64_t>(rows);
    if (batches <= static_cast<std::uint64_t>(limit)) return "";
    return fmt::format("validation: {} {} of {} batches of the split (trainer.validation_batches)",
                       settings_.objective.learns_labels() ? "a random" : "the first", limit, batches);
  }

  std::string data_to_train_on() const {
    return settings_.data.task == "none" ? fmt::format("{} tokens", setup_.data->size(Split::train))
                                         : setup_.data->path();
  }

  /// The devices of the run: "2 threads", "cuda:0 (NVIDIA H100 80GB HBM3)".
  std::string where() const {
    const Device& device = setup_.device;
    const std::string here =
        device.is_gpu()
            ? fmt::format("{} ({})", device.text(), require_gpu_engine(device.type).describe(device.index).name)
            : fmt::format("{} thread{}", thread_count(), thread_count() == 1 ? "" : "s");
    if (group_.is_alone()) return here;
    return fmt::format("{} ranks ({}), rank 0 uses {}", group_.size(), group_.device_communicator(device).engine(),
                       here);
  }

  void validate_and_save_where_due() {
    const std::int64_t step = trainer_.steps(), validate_every = settings_.trainer.validate_every,
                       save_every = settings_.checkpoint.every;
    std::optional<double> best_loss;
    if (can_validate() && (is_done() || (validate_every > 0 && step % validate_every == 0))) best_loss = validate();
    if (trainer_.early_stopping().is_due()) recorder_->write_last_step();
    if (is_done() || (save_every > 0 && step % save_every == 0) || (best_loss && settings_.checkpoint.keep_best))
      save(best_loss);
  }

  /// Validates; returns the loss if it is the best so far.
  std::optional<double> validate() {
    const RunRecorder::Pause pause(*recorder_);
    const Evaluation found = trainer_.validate();
    const bool is_best = trainer_.note_validation(found.loss);
    recorder_->note_validation(trainer_.steps(), found, is_best);
    return is_best ? std::optional(found.loss) : std::nullopt;
  }

  /// A run that continues the best checkpoint of another run directory has it in its own.
  void save_resumed_best() {
    const std::optional<double> best_loss = trainer_.early_stopping().best_at(trainer_.steps());
    if (settings_.checkpoint.keep_best && best_loss && saved_at_ != trainer_.steps()) save(best_loss);
  }

  void save(std::optional<double> best_loss) {
    const RunRecorder::Pause pause(*recorder_);
    const std::int64_t step = trainer_.steps();
    saved_at_ = step;
    saver_.wait();  // two threads must not use the group at once
    directory_.check_in_place(group_);
    saver_.save(checkpoint_path(directory_.checkpoints(), step), recorder_->metrics_on_disk(), [this, step, best_loss] {
      if (!checkpoints_) return;
      directory_.check_in_place();
      checkpoints_->committed(step, best_loss);
    });
  }

  const Settings& settings_;
  const ProcessGroup& group_;
  const StopRequests& stop_requests_;
  RunSetup setup_;
  RunDirectory directory_;
  // rank 0 only; used by the writing thread while a checkpoint is written
  std::optional<CheckpointDirectory> checkpoints_;
  Trainer trainer_;
  CheckpointSaver saver_;
  StepTrace trace_;
  std::optional<RunRecorder> recorder_;  // made when the first step is known
  std::int64_t saved_at_ = -1;
};

}  // namespace

TrainResult train(const LoadedSettings& loaded, const TrainOptions& options) {
  ProcessGroup::Options group_options;
  group_options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(loaded.settings.parallel.timeout * 1000));
  const StopRequests stop_requests;  // from here on a stop request during startup saves the first step
  group_options.stop_requested = [&stop_requests] { return stop_requests.received(); };
  ProcessGroup group(discover_launch(), group_options);
  // Outlives the catch: its destructor waits for a checkpoint in progress, which waits for the other ranks.
  std::optional<Run> run;
  try {
    keep_config(loaded);
    check_trace(loaded, options);
    // Report a bad path before the run directory is created. A job that continues its own run no longer needs it.
    if (options.resume == TrainOptions::Resume::path && !was_begun_by_this_job(loaded.settings.run_directory))
      checkpoint_of(options.checkpoint);
    RunSetup setup = set_up_run(loaded, options, group);
    arena(setup.device).reset_peak();  // memory_bytes is of this run, not of earlier ones of this process
    run.emplace(loaded.settings, std::move(setup), options, group, stop_requests);
    TrainResult result = run->train();
    result.is_first = group.is_first();
    run.reset();
    if (result.is_first && options.before_leaving) options.before_leaving(result);
    group.leave();
    return result;
  } catch (const std::exception& error) {
    group.fail(error);
    throw;
  }
}

bool has_finished(const Settings& settings) {
  const std::optional<CheckpointReader> checkpoint = open_newest_checkpoint(settings.run_directory / "checkpoints");
  if (!checkpoint) return false;
  if (checkpoint->integer("step") >= settings.trainer.max_steps) return true;
  if (settings.trainer.early_stopping_patience == 0) return false;
  EarlyStopping early_stopping(settings.trainer.early_stopping_patience);
  early_stopping.load(*checkpoint);
  return early_stopping.is_due();
}

}  // namespace furlong
