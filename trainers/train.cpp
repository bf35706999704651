#include "trainers/train.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/core/arena.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/io/atomic_file.h"
#include "trainers/progress.h"
#include "trainers/signals.h"
#include "trainers/trainer.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;

/// One training at a time in a run directory.
class RunLock {
 public:
  explicit RunLock(const fs::path& directory) : descriptor_(open((directory / ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) throw_file_error(directory / ".lock", "create", errno);
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close(descriptor_);
      throw UserError("{}: another furlong train is running in this run directory; choose another with --run-dir", directory.string());
    }
  }
  ~RunLock() { close(descriptor_); }
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_;
};

/// This build trains in one process: a launcher that started several would have each of them write the same files.
void refuse_several_processes() {
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* value = std::getenv(name);
    if (value && std::atoll(value) > 1) {
      throw UserError("parallel.engine: none trains in one process, but the launcher started {} ({}={}); start one, or unset {}", value, name, value, name);
    }
  }
}

void check_memory(const Settings& settings, const Vocabulary& vocabulary) {
  const auto available = static_cast<std::int64_t>(read_machine().memory.available);
  std::int64_t needed = 0;
  bool more = false;
  try {
    needed = predicted_peak_bytes(settings, vocabulary);
  } catch (const MachineError&) {
    // Not even the shape-only device, which only counts, has room for it.
    needed = arena(Device{DeviceType::shape_only, 0}).capacity();
    more = true;
  }
  spdlog::debug("one step will take {} MiB for tensors of {} MiB available", needed >> 20, available >> 20);
  if (more || (available > 0 && needed > available)) {
    throw UserError("this configuration needs {}{:.1f} GiB for tensors and {:.1f} GiB are available; lower data.batch_size or data.sequence_length, use trainer.recompute: "
                    "blocks, or raise trainer.gradient_accumulation with a smaller batch",
                    more ? "more than " : "", static_cast<double>(needed) / (1 << 30), static_cast<double>(available) / (1 << 30));
  }
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Run {
 public:
  Run(const LoadedSettings& loaded, const TrainOptions& options)
      : settings_(loaded.settings), directory_(settings_.run_directory), data_(TokenStore::open(settings_.data.store.string())), device_(prepare()), lock_(directory_),
        trainer_(settings_, data_, device_), checkpoints_(directory_ / "checkpoints", settings_.checkpoint.keep_last, settings_.checkpoint.keep_best) {
    resume(options);
    write_file_atomically(directory_ / "config.yaml", to_yaml(settings_));
    metrics_.emplace(directory_ / "metrics.jsonl");
    tensorboard_.emplace(directory_ / "tensorboard", trainer_.steps() > 0 ? std::optional(trainer_.steps()) : std::nullopt);
    can_validate_ = data_.size(Split::validation) >= 2;
    if (!can_validate_) spdlog::warn("{}: no validation split; training goes on without validation", settings_.data.store.string());
  }

  TrainResult go() {
    const StopSignals signals;
    const std::int64_t last = settings_.trainer.max_steps;
    Progress progress(settings_.log.progress, trainer_.steps(), last);
    progress.say(fmt::format("{}: {} parameters, {} tokens to train on ({}), {} threads, run directory {}", trainer_.steps() > 0 ? fmt::format("resuming at step {}", trainer_.steps()) : "starting",
                             trainer_.model().store->parameter_count(), data_.size(Split::train), data_.vocabulary().kind_name(), thread_count(), directory_.string()));
    TrainResult result;
    result.train_loss = MetricsRecord::not_measured;
    clock_ = std::chrono::steady_clock::now();
    const std::int64_t patience = settings_.trainer.early_stopping_patience;
    while (trainer_.steps() < last) {
      // Before the step, so that a run that has stopped early stays stopped when it is started again.
      if (patience > 0 && trainer_.validations_without_improvement() >= patience) {
        progress.say(fmt::format("stopping early: {} validations without improvement", trainer_.validations_without_improvement()));
        result.stopped_early = true;
        break;
      }
      const StepReport report = trainer_.step();
      result.train_loss = report.loss;
      finish_step(report, progress);
      if (StopSignals::received() != 0) {
        result.interrupted = true;
        break;
      }
    }
    if (saved_at_ != trainer_.steps()) save(std::nullopt);
    result.step = trainer_.steps();
    result.validation_loss = trainer_.last_validation().value_or(MetricsRecord::not_measured);
    result.run_directory = directory_;
    result.checkpoint = checkpoints_.path_for(trainer_.steps());
    return result;
  }

 private:
  Device prepare() {
    refuse_several_processes();
    configure_logging(settings_.log.level);
    set_thread_count(static_cast<int>(settings_.threads));
    const Device device = device_from_name(settings_.device);
    check_memory(settings_, data_.vocabulary());
    std::error_code failure;
    fs::create_directories(directory_, failure);
    if (failure) throw UserError("run_directory: cannot create {}: {}", directory_.string(), failure.message());
    return device;
  }

  void forget_earlier_run() {
    checkpoints_.discard_after(-1);
    fs::remove_all(directory_ / "tensorboard");
  }

  void resume(const TrainOptions& options) {
    std::optional<fs::path> from;
    switch (options.resume) {
      case TrainOptions::Resume::never: forget_earlier_run(); break;
      case TrainOptions::Resume::path: from = checkpoint_of(options.checkpoint); break;
      case TrainOptions::Resume::automatic: from = checkpoints_.newest_whole(); break;
    }
    const fs::path metrics = directory_ / "metrics.jsonl";
    if (from) {
      const CheckpointReader checkpoint = CheckpointReader::open(*from);
      trainer_.load(checkpoint);
      const bool own = fs::equivalent(fs::absolute(*from).parent_path(), checkpoints_.path());
      // A run that goes on in another directory takes its history along, and leaves none there of another run.
      if (!own) forget_earlier_run();
      if (!own || !fs::exists(metrics)) write_file_atomically(metrics, checkpoint.text("metrics"));
      checkpoints_.discard_after(trainer_.steps());
      if (fs::exists(checkpoints_.path_for(trainer_.steps()))) {
        checkpoints_.committed(trainer_.steps(), trainer_.best_now());
        saved_at_ = trainer_.steps();
      }
    }
    cut_back(metrics, from ? trainer_.steps() : -1);
  }

  void finish_step(const StepReport& report, Progress& progress) {
    const std::int64_t step = trainer_.steps();
    const bool last = step == settings_.trainer.max_steps;
    tokens_since_ += report.tokens;
    const auto now = std::chrono::steady_clock::now();
    const double rate = static_cast<double>(tokens_since_) / std::max(1e-9, std::chrono::duration<double>(now - clock_).count());
    const bool due = step % settings_.log.every == 0 || last || step == 1;
    const std::int64_t memory = arena(device_).counters().peak_bytes;
    progress.step(step, report.loss, rate, report.learning_rate, report.gradient_norm, memory, due);
    if (report.skipped) progress.say(fmt::format("step {}: gradient norm {:.3g} is an outlier; the step was skipped", step, report.gradient_norm));
    if (due) {
      MetricsRecord record{step, "train", report.loss, trainer_.tokens(), rate, report.learning_rate, report.gradient_norm, memory, {}};
      if (settings_.trainer.skip_outlier_factor > 0) record.more.emplace_back("skipped", report.skipped ? 1 : 0);
      write(record);
      clock_ = now;
      tokens_since_ = 0;
    }
    const std::int64_t validate_every = settings_.trainer.validate_every;
    std::optional<double> improved;
    if (can_validate_ && (last || (validate_every > 0 && step % validate_every == 0))) improved = validate(progress);
    const bool due_checkpoint = last || (settings_.checkpoint.every > 0 && step % settings_.checkpoint.every == 0);
    if (due_checkpoint || (improved && settings_.checkpoint.keep_best)) save(improved);
  }

  /// The loss when it is the best so far.
  std::optional<double> validate(Progress& progress) {
    const auto start = std::chrono::steady_clock::now();
    const Evaluation found = trainer_.validate();
    const bool best = trainer_.note_validation(found.loss);
    MetricsRecord record{trainer_.steps(), "validation", found.loss, found.tokens, static_cast<double>(found.tokens) / std::max(1e-9, found.seconds), MetricsRecord::not_measured,
                         MetricsRecord::not_measured, arena(device_).counters().peak_bytes, {{"accuracy", found.accuracy}}};
    write(record);
    progress.say(fmt::format("step {}: validation loss {:.4f} nats = {:.4f} bits a token, accuracy {:.3f}{}", trainer_.steps(), found.loss, found.bits_per_token(), found.accuracy,
                             best ? "  (best)" : ""));
    clock_ += std::chrono::steady_clock::now() - start;  // validation does not count as training time
    return best ? std::optional(found.loss) : std::nullopt;
  }

  void save(std::optional<double> best_loss) {
    const auto start = std::chrono::steady_clock::now();
    metrics_->flush();
    const std::int64_t step = trainer_.steps();
    trainer_.save(checkpoints_.path_for(step), contents(directory_ / "metrics.jsonl"));
    checkpoints_.committed(step, best_loss);
    saved_at_ = step;
    clock_ += std::chrono::steady_clock::now() - start;
  }

  void write(const MetricsRecord& record) {
    metrics_->write(record);
    tensorboard_->write(record);
  }

  Settings settings_;
  fs::path directory_;
  TokenStore data_;
  Device device_;
  RunLock lock_;
  Trainer trainer_;
  CheckpointDirectory checkpoints_;
  std::optional<MetricsWriter> metrics_;
  std::optional<TensorboardWriter> tensorboard_;
  bool can_validate_ = true;
  std::int64_t saved_at_ = -1, tokens_since_ = 0;
  std::chrono::steady_clock::time_point clock_;
};

}  // namespace

TrainResult train(const LoadedSettings& loaded, const TrainOptions& options) { return Run(loaded, options).go(); }

}  // namespace furlong
