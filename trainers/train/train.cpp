#include "trainers/train/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "communication/process_group.h"
#include "framework/core/arena.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "framework/io/atomic_file.h"
#include "trainers/checkpoint/checkpoints.h"
#include "trainers/settings/process_checks.h"
#include "trainers/train/checkpoint_saver.h"
#include "trainers/train/data_checks.h"
#include "trainers/train/parallel/agreement.h"
#include "trainers/train/parallel/process_devices.h"
#include "trainers/train/recording/progress.h"
#include "trainers/train/run/run_directory.h"
#include "trainers/train/run/run_memory.h"
#include "trainers/train/run/run_resume.h"
#include "trainers/train/signals.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Run {
 public:
  Run(const LoadedSettings& loaded, const TrainOptions& options, const ProcessGroup& group,
      const StopRequests& stop_requests)
      : group_(group),
        stop_requests_(stop_requests),
        settings_(loaded.settings),
        data_(open_data(settings_.data)),
        device_(prepare(loaded, options)),
        directory_(settings_.run_directory, group),
        checkpoints_(open_checkpoints()),
        trainer_(settings_, *data_, device_, std::nullopt, &group),
        saver_(trainer_, group, copies_checkpoints_),
        trace_(options.trace, group, device_) {
    if (resume_run(options, group, directory_, trainer_, checkpoints_ ? &*checkpoints_ : nullptr))
      saved_at_ = trainer_.steps();
    can_validate_ = data_->size(Split::validation) >= 2;
    if (!group_.is_first()) return;  // the files of a run are rank 0's
    metrics_.emplace(directory_.metrics());
    const bool nothing_to_do = trainer_.steps() >= settings_.trainer.max_steps;
    const fs::path config = directory_.path() / "config.yaml";
    // The settings that a finished run was trained with stay.
    if (!nothing_to_do || !fs::exists(config)) write_file_atomically(config, to_yaml(settings_));
    if (!nothing_to_do)
      tensorboard_.emplace(directory_.path() / "tensorboard",
                           trainer_.steps() > 0 ? std::optional(trainer_.steps()) : std::nullopt);
    if (!can_validate_)
      log_warn("{}: no validation split; training goes on without validation", settings_.data.store.string());
  }

  TrainResult go() {
    const std::int64_t last = settings_.trainer.max_steps;
    Progress progress(group_.is_first() ? settings_.log.progress : "none", trainer_.steps(), last);
    if (trainer_.steps() >= last) {
      progress.say(fmt::format("already at step {}; trainer.max_steps is {}, nothing to do", trainer_.steps(), last));
    } else {
      greet(progress);
    }
    TrainResult result;
    result.train_loss = MetricsRecord::not_measured;
    clock_ = std::chrono::steady_clock::now();
    const std::int64_t patience = settings_.trainer.early_stopping_patience;
    while (trainer_.steps() < last) {
      // Before the step, so that a run that has stopped early stays stopped when it is started again.
      if (patience > 0 && trainer_.validations_without_improvement() >= patience) {
        progress.say(fmt::format("stopping early: {} validations without improvement",
                                 trainer_.validations_without_improvement()));
        result.stopped_early = true;
        break;
      }
      trace_.begin_step();
      const StepReport report = trainer_.step(stop_requests_.received());
      result.train_loss = report.loss;
      finish_step(report, progress);
      trace_.end_step();
      if (report.stops || (group_.is_alone() && stop_requests_.received())) {
        result.interrupted = true;
        break;
      }
    }
    if (saved_at_ != trainer_.steps()) save(std::nullopt);
    saver_.wait();
    trace_.finish();  // behind the checkpoint, which counts for more
    result.step = trainer_.steps();
    result.validation_loss = trainer_.last_validation().value_or(MetricsRecord::not_measured);
    result.seconds = trainer_.seconds();
    result.run_directory = directory_.path();
    result.checkpoint = checkpoint_path(directory_.checkpoints(), trainer_.steps());
    group_.barrier();  // nobody closes connections that others still use
    return result;
  }

 private:
  std::string data_to_train_on() const {
    return settings_.data.task == "none" ? fmt::format("{} tokens", data_->size(Split::train)) : data_->path();
  }

  /// What computes: "2 threads", "cuda:0 (NVIDIA H100 80GB HBM3)".
  std::string where() const {
    if (!device_.is_gpu()) {
      const std::string processes =
          group_.is_alone() ? ""
                            : fmt::format("{} processes ({}), here ", group_.size(), group_.communicator().engine());
      return fmt::format("{}{} thread{}", processes, thread_count(), thread_count() == 1 ? "" : "s");
    }
    const std::string processes = group_.is_alone() ? ""
                                                    : fmt::format("{} processes ({}), here ", group_.size(),
                                                                  group_.device_communicator(device_).engine());
    return fmt::format("{}{} ({})", processes, device_.text(),
                       require_gpu_engine(device_.type).describe(device_.index).name);
  }

  void greet(Progress& progress) {
    progress.say(fmt::format("{}: {} parameters, {} to train on ({}), {}, run directory {}",
                             trainer_.steps() > 0 ? fmt::format("resuming at step {}", trainer_.steps()) : "starting",
                             trainer_.model().store->parameter_count(), data_to_train_on(),
                             data_->vocabulary().kind_name(), where(), directory_.path().string()));
    if (const std::string note = trainer_.source().note(); !note.empty()) log_warn("{}", note);
  }

  /// Says why where `auto` leaves a GPU alone.
  Device chosen_device() const {
    const Device device = device_of_process(settings_.device, group_.environment());
    const bool automatic = settings_.device == "auto";
    GpuEngine* cuda = gpu_engine(DeviceType::cuda);
    if (automatic && device.is_cpu() && cuda != nullptr && cuda->device_count() > 0)
      log_warn("device: auto computes on the CPU: {}",
               cuda->unavailable(device_index(group_.environment(), "auto", cuda->device_count())));
    return device;
  }

  std::optional<CheckpointDirectory> open_checkpoints() const {
    if (!group_.is_first()) return std::nullopt;
    return CheckpointDirectory(directory_.checkpoints(), settings_.checkpoint.keep_last,
                               settings_.checkpoint.keep_best);
  }

  Device prepare(const LoadedSettings& loaded, const TrainOptions& options) {
    if (!settings_.finetune.source.empty())
      throw UserError(
          "finetune.source: {}: training that begins from another model's weights in stages; run it with furlong "
          "finetune",
          settings_.finetune.source.string());
    configure_logging(settings_.log.level, prefix());
    const int fair_threads = group_.fair_threads();  // asked by all, whatever each of them was told
    set_thread_count(settings_.threads > 0 ? static_cast<int>(settings_.threads) : fair_threads);
    const Device device = chosen_device();
    check_processes(device);
    check_agreement(group_, settings_, *data_, &options);
    check_against_data(loaded, *data_);
    copies_checkpoints_ = check_memory(settings_, data_->vocabulary(), device, group_);
    return device;
  }

  void check_processes(const Device& device) const {
    if (group_.is_alone()) return check_one_process(settings_);
    const LaunchEnvironment& environment = group_.environment();
    check_process_settings(
        settings_,
        {group_.size(), fmt::format("the launcher ({}) started {} processes", environment.launcher, group_.size()),
         "start"});
    check_process_devices(settings_.parallel.engine, device, group_);
    if (device.is_gpu()) refuse_segments_on_gpu(settings_, "set device: cpu");
    log_info("rank {} of {} on {}: {}, {} thread{}, {}", group_.rank(), group_.size(), environment.host, device.text(),
             thread_count(), thread_count() == 1 ? "" : "s", environment.launcher);
    if (!group_.is_first() && (settings_.log.level == "info" || settings_.log.level == "debug"))
      configure_logging("warning", prefix());
    group_.device_communicator(device);  // before free memory is asked for, of which it takes its part
  }

  /// furlong launch marks its processes' lines itself.
  std::string prefix() const {
    return group_.is_alone() || group_.environment().launcher == "furlong" ? ""
                                                                           : fmt::format("[rank {}] ", group_.rank());
  }

  /// What is out of the ordinary in a step.
  void note(const StepReport& report, Progress& progress) {
    const std::int64_t step = trainer_.steps();
    if (report.skipped)
      progress.say(
          fmt::format("step {}: gradient norm {:.3g} is an outlier; the step was skipped", step, report.gradient_norm));
    if (report.targets == 0 && !std::exchange(told_of_no_targets_, true))
      progress.say(
          fmt::format("step {}: none of its tokens is a target, and it has no loss (null in metrics.jsonl, as for "
                      "later such steps); {}",
                      step,
                      settings_.objective.which() == ObjectiveSettings::Name::masked_tokens
                          ? "a higher objective.mask_probability or larger batches would give it some"
                          : "data.ignore_tokens or the borders of documents leave all out"));
  }

  void finish_step(const StepReport& report, Progress& progress) {
    saver_.check();
    const std::int64_t step = trainer_.steps();
    const bool last = step == settings_.trainer.max_steps;
    tokens_since_ += report.tokens;
    const auto now = std::chrono::steady_clock::now();
    const double rate =
        static_cast<double>(tokens_since_) / std::max(1e-9, std::chrono::duration<double>(now - clock_).count());
    const bool due = step % settings_.log.every == 0 || last || step == 1;
    const std::int64_t memory = arena(device_).counters().peak_bytes;
    progress.step(step, report.loss, rate, report.learning_rate, report.gradient_norm, memory, due);
    note(report, progress);
    if (due && group_.is_first()) {
      MetricsRecord record{
          step, "train", report.loss, trainer_.tokens(), rate, report.learning_rate, report.gradient_norm, memory, {}};
      if (settings_.trainer.skip_outlier_factor > 0) record.more.emplace_back("skipped", report.skipped ? 1 : 0);
      note_denominators(report.denominators, record, progress);
      write(record);
    }
    if (due) {
      clock_ = now;
      tokens_since_ = 0;
    }
    const std::int64_t validate_every = settings_.trainer.validate_every;
    std::optional<double> improved;
    if (can_validate_ && (last || (validate_every > 0 && step % validate_every == 0))) improved = validate(progress);
    const bool due_checkpoint = last || (settings_.checkpoint.every > 0 && step % settings_.checkpoint.every == 0);
    if (due_checkpoint || (improved && settings_.checkpoint.keep_best)) save(improved);
  }

  /// Of this step alone, so that a resumed run writes the same lines.
  void note_denominators(const ops::DenominatorReport& found, MetricsRecord& record, Progress& progress) {
    if (found.rows == 0) return;
    record.more.emplace_back("guarded_rows", static_cast<double>(found.guarded) / static_cast<double>(found.rows));
    record.more.emplace_back("least_denominator", found.least);
    if (found.guarded == 0 || std::exchange(told_of_guard_, true)) return;
    progress.say(
        fmt::format("step {}: {} of {} attention rows had a denominator below model.attention.denominator_guard and "
                    "were set to zero; metrics.jsonl goes on counting (guarded_rows)",
                    record.step, found.guarded, found.rows));
  }

  /// The loss when it is the best so far.
  std::optional<double> validate(Progress& progress) {
    const auto start = std::chrono::steady_clock::now();
    const Evaluation found = trainer_.validate();
    const bool best = trainer_.note_validation(found.loss);
    MetricsRecord record{trainer_.steps(),
                         "validation",
                         found.loss,
                         found.tokens,
                         static_cast<double>(found.tokens) / std::max(1e-9, found.seconds),
                         MetricsRecord::not_measured,
                         MetricsRecord::not_measured,
                         arena(device_).counters().peak_bytes,
                         {}};
    if (std::isfinite(found.accuracy)) record.more.emplace_back("accuracy", found.accuracy);
    if (std::isfinite(found.divergence)) record.more.emplace_back("divergence", found.divergence);
    for (const auto& [layer, error] : found.layer_errors)
      record.more.emplace_back(fmt::format("layer_{}", layer), error);
    if (group_.is_first()) write(record);
    progress.say(fmt::format("step {}: {}{}", trainer_.steps(), in_words(found), best ? "  (best)" : ""));
    clock_ += std::chrono::steady_clock::now() - start;  // validation does not count as training time
    return best ? std::optional(found.loss) : std::nullopt;
  }

  std::string in_words(const Evaluation& found) const {
    if (!found.layer_errors.empty()) {
      const auto worst = std::max_element(found.layer_errors.begin(), found.layer_errors.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
      return fmt::format("relative error of attention in validation {:.4f}, at most {:.4f} (layer {})", found.loss,
                         worst->second, worst->first);
    }
    const std::string in_bits =
        settings_.objective.learns_labels() ? "" : fmt::format(" = {:.4f} bits a token", found.bits_per_token());
    const std::string divergence =
        std::isfinite(found.divergence) ? fmt::format(", divergence from the teacher {:.4f}", found.divergence) : "";
    return fmt::format("validation loss {:.4f} nats{}, accuracy {:.3f}{}", found.loss, in_bits, found.accuracy,
                       divergence);
  }

  void save(std::optional<double> best_loss) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t step = trainer_.steps();
    saved_at_ = step;
    if (metrics_) metrics_->flush();
    saver_.save(checkpoint_path(directory_.checkpoints(), step), metrics_ ? contents(directory_.metrics()) : "",
                [this, step, best_loss] {
                  if (checkpoints_) checkpoints_->committed(step, best_loss);
                });
    clock_ += std::chrono::steady_clock::now() - start;  // what training waited for it does not count as training time
  }

  void write(const MetricsRecord& record) {
    metrics_->write(record);
    tensorboard_->write(record);
  }

  const ProcessGroup& group_;
  const StopRequests& stop_requests_;
  Settings settings_;
  std::unique_ptr<Dataset> data_;
  bool copies_checkpoints_ = false;  // to write them in the background; known with the device
  Device device_;
  RunDirectory directory_;
  std::optional<CheckpointDirectory> checkpoints_;  // rank 0's; while one is being written, of the thread that writes
  Trainer trainer_;
  CheckpointSaver saver_;
  StepTrace trace_;
  std::optional<MetricsWriter> metrics_;
  std::optional<TensorboardWriter> tensorboard_;
  bool can_validate_ = true;
  std::int64_t saved_at_ = -1, tokens_since_ = 0;
  bool told_of_guard_ = false, told_of_no_targets_ = false;
  std::chrono::steady_clock::time_point clock_;
};

}  // namespace

TrainResult train(const LoadedSettings& loaded, const TrainOptions& options) {
  ProcessGroup::Options group_options;
  group_options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(loaded.settings.parallel.timeout * 1000));
  const StopRequests stop_requests;  // from here on: a job that is asked to stop while it starts saves its first step
  ProcessGroup group(discover_launch(), group_options);
  std::optional<Run> run;  // outlives the catch: its end waits for a checkpoint that is being written, and that for the
                           // other processes
  try {
    if (options.resume == TrainOptions::Resume::path)
      checkpoint_of(options.checkpoint);  // a wrong path shows before a run directory is made
    run.emplace(loaded, options, group, stop_requests);
    TrainResult result = run->go();
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

}  // namespace furlong
