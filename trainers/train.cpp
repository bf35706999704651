#include "trainers/train.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "communication/process_group.h"
#include "framework/core/arena.h"
#include "framework/core/gpu_engine.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/io/atomic_file.h"
#include "framework/ops/gemm.h"
#include "trainers/agreement.h"
#include "trainers/data_checks.h"
#include "trainers/process_devices.h"
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

/// Bytes that tensors on the device may take now.
std::int64_t available_memory(const Device& device) {
  if (device.type == DeviceType::cuda) return require_gpu_engine(device.type).describe(device.index).free_bytes;
  return static_cast<std::int64_t>(read_machine().memory.available);
}

/// Each of `here` processes on this host takes as much of the host's memory; a GPU is one process's own.
void check_memory(const Settings& settings, const Vocabulary& vocabulary, const Device& device, int processes, int here) {
  const std::int64_t available = available_memory(device) / (device.has_host_memory() ? here : 1);
  const std::int64_t countable = arena(Device{DeviceType::shape_only, 0}).capacity();
  const ModelSettings& model = settings.model;
  const auto widest = static_cast<double>(std::max({model.d_model, model.n_heads * model.d_head, model.d_feedforward}));
  // A single activation beyond what can be counted may have more elements than 64 bits hold: then nothing is tried.
  bool more = static_cast<double>(settings.data.batch_size) * static_cast<double>(settings.data.sequence_length) * widest >
              static_cast<double>(countable);
  std::int64_t needed = countable;
  try {
    if (!more) needed = predicted_peak_bytes(settings, vocabulary, processes);
  } catch (const MachineError&) {
    more = true;  // not even the shape-only device, which only counts, has room for it
  }
  spdlog::debug("one step will take {} MiB for tensors of {} MiB available", needed >> 20, available >> 20);
  if (more || (available > 0 && needed > available)) {
    const std::string found =
        more ? fmt::format("more than {} TiB", countable >> 40) : fmt::format("{:.1f} GiB", static_cast<double>(needed) / (1 << 30));
    throw UserError(
        "this configuration needs {} for tensors and {:.1f} GiB are available on {}; lower data.batch_size or data.sequence_length, use "
        "trainer.recompute: "
        "blocks, or raise trainer.gradient_accumulation with a smaller batch",
        found, static_cast<double>(available) / (1 << 30), device.text());
  }
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Run {
 public:
  Run(const LoadedSettings& loaded, const TrainOptions& options, const ProcessGroup& group)
      : group_(group),
        settings_(loaded.settings),
        directory_(settings_.run_directory),
        data_(open_data(settings_.data)),
        device_(prepare(loaded)),
        lock_(group.is_first() ? std::make_unique<RunLock>(directory_) : nullptr),
        trainer_(settings_, *data_, device_, std::nullopt, &group),
        checkpoints_(directory_ / "checkpoints", settings_.checkpoint.keep_last, settings_.checkpoint.keep_best),
        trace_(options.trace, group, device_) {
    resume(options);
    can_validate_ = data_->size(Split::validation) >= 2;
    if (!group_.is_first()) return;  // the files of a run are rank 0's
    metrics_.emplace(directory_ / "metrics.jsonl");
    const bool nothing_to_do = trainer_.steps() >= settings_.trainer.max_steps;
    // The settings that a finished run was trained with stay.
    if (!nothing_to_do || !fs::exists(directory_ / "config.yaml")) write_file_atomically(directory_ / "config.yaml", to_yaml(settings_));
    if (!nothing_to_do)
      tensorboard_.emplace(directory_ / "tensorboard", trainer_.steps() > 0 ? std::optional(trainer_.steps()) : std::nullopt);
    if (!can_validate_) spdlog::warn("{}: no validation split; training goes on without validation", settings_.data.store.string());
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
        progress.say(fmt::format("stopping early: {} validations without improvement", trainer_.validations_without_improvement()));
        result.stopped_early = true;
        break;
      }
      trace_.begin_step();
      const StepReport report = trainer_.step();
      result.train_loss = report.loss;
      finish_step(report, progress);
      trace_.end_step();
      if (report.stops || (group_.is_alone() && StopSignals::received() != 0)) {
        result.interrupted = true;
        break;
      }
    }
    trace_.finish();
    if (saved_at_ != trainer_.steps()) save(std::nullopt);
    result.step = trainer_.steps();
    result.validation_loss = trainer_.last_validation().value_or(MetricsRecord::not_measured);
    result.seconds = trainer_.seconds();
    result.run_directory = directory_;
    result.checkpoint = checkpoints_.path_for(trainer_.steps());
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
          group_.is_alone() ? "" : fmt::format("{} processes ({}), here ", group_.size(), group_.communicator().engine());
      return fmt::format("{}{} thread{}", processes, thread_count(), thread_count() == 1 ? "" : "s");
    }
    const std::string processes =
        group_.is_alone() ? "" : fmt::format("{} processes ({}), here ", group_.size(), group_.device_communicator(device_).engine());
    return fmt::format("{}{} ({})", processes, device_.text(), require_gpu_engine(device_.type).describe(device_.index).name);
  }

  void greet(Progress& progress) {
    progress.say(fmt::format("{}: {} parameters, {} to train on ({}), {}, run directory {}",
                             trainer_.steps() > 0 ? fmt::format("resuming at step {}", trainer_.steps()) : "starting",
                             trainer_.model().store->parameter_count(), data_to_train_on(), data_->vocabulary().kind_name(), where(),
                             directory_.string()));
    if (const std::string note = trainer_.source().note(); !note.empty()) spdlog::warn("{}", note);
  }

  /// Says why where `auto` leaves a GPU alone.
  Device chosen_device() const {
    const Device device = device_of_process(settings_.device, group_.environment());
    const bool automatic = settings_.device == "auto";
    GpuEngine* cuda = gpu_engine(DeviceType::cuda);
    if (automatic && device.is_cpu() && cuda != nullptr && cuda->device_count() > 0)
      spdlog::warn("device: auto computes on the CPU: {}",
                   cuda->unavailable(device_index(group_.environment(), "auto", cuda->device_count())));
    if (!device.is_gpu() || settings_.model.attention.compat == "none") return device;
    constexpr const char* reason = "the arithmetic of other libraries is there for comparison, and computed on the CPU alone";
    if (!automatic)
      throw UserError("model.attention.compat: {} cannot be with device: {}: {}; use device: cpu", settings_.model.attention.compat,
                      settings_.device, reason);
    spdlog::warn("device: auto computes on the CPU, because of model.attention.compat: {}: {}", settings_.model.attention.compat, reason);
    return Device{};
  }

  Device prepare(const LoadedSettings& loaded) {
    if (!settings_.finetune.source.empty())
      throw UserError("finetune.source: {}: training that begins from another model's weights in stages; run it with furlong finetune",
                      settings_.finetune.source.string());
    configure_logging(settings_.log.level, prefix());
    const int fair_threads = group_.fair_threads();  // asked by all, whatever each of them was told
    set_thread_count(settings_.threads > 0 ? static_cast<int>(settings_.threads) : fair_threads);
    const Device device = chosen_device();
    check_processes(device);
    ops::set_tf32(settings_.tf32);
    check_agreement(group_, settings_, *data_);
    check_against_data(loaded, *data_);
    check_memory(settings_, data_->vocabulary(), device, group_.size(), group_.environment().local_world_size);
    if (!group_.is_first()) return device;
    std::error_code failure;
    fs::create_directories(directory_, failure);
    if (failure) throw UserError("run_directory: cannot create {}: {}", directory_.string(), failure.message());
    return device;
  }

  /// What several processes cannot do together.
  void check_processes(const Device& device) const {
    if (group_.is_alone()) {
      if (settings_.parallel.sequence_processes > 1)
        throw UserError("parallel.sequence_processes: {}: there is one process; start a multiple of that many, or set it to 1",
                        settings_.parallel.sequence_processes);
      return;
    }
    const std::string found = fmt::format("the launcher ({}) started {} processes", group_.environment().launcher, group_.size());
    if (settings_.parallel.engine == "none")
      throw UserError("parallel.engine: none trains in one process, but {}; start one, or set it to auto", found);
    if (settings_.teacher.teaches())
      throw UserError("teacher.loss: {}: {}, and a model learns from a teacher in one; start one", settings_.teacher.loss, found);
    if (settings_.data.carry_state)
      throw UserError("data.carry_state: true: {}, and states are carried in one; start one, or set it to false", found);
    check_sequence_processes(found);
    check_process_devices(settings_.parallel.engine, device, group_);
    if (device.is_gpu() && settings_.parallel.sequence_processes > 1)
      throw UserError("parallel.sequence_processes: {}: segments are exchanged between CPUs alone; set it to 1, or set device: cpu",
                      settings_.parallel.sequence_processes);
    const std::int64_t rows = group_.size() / settings_.parallel.sequence_processes;
    if (settings_.data.batch_size < rows)
      throw UserError("data.batch_size: {}: {}, which share the samples of each batch; raise it to {} or start fewer",
                      settings_.data.batch_size, found, rows);
    if (settings_.data.sampler == "stream" && settings_.data.batch_size % rows != 0)
      throw UserError("data.batch_size: {}: {}, and data.sampler: stream gives each as many rows; expected a multiple of {}",
                      settings_.data.batch_size, found, rows);
    spdlog::info("rank {} of {} on {}: {}, {} thread{}, {}", group_.rank(), group_.size(), group_.environment().host, device.text(),
                 thread_count(), thread_count() == 1 ? "" : "s", group_.environment().launcher);
    if (!group_.is_first() && (settings_.log.level == "info" || settings_.log.level == "debug")) configure_logging("warning", prefix());
    group_.device_communicator(device);  // before free memory is asked for, of which it takes its part
  }

  /// What a sequence of which each process has a segment cannot have.
  void check_sequence_processes(const std::string& found) const {
    const std::int64_t processes = settings_.parallel.sequence_processes;
    if (processes == 1) return;
    const std::string key = fmt::format("parallel.sequence_processes: {}", processes);
    if (group_.size() % processes != 0) throw UserError("{}: {}, which is no multiple of it", key, found);
    if (settings_.data.sequence_length % processes != 0)
      throw UserError("{}: data.sequence_length: {} does not divide into as many segments", key, settings_.data.sequence_length);
    const auto refuse = [&](bool condition, std::string_view what, std::string_view why) {
      if (condition) throw UserError("{} cannot be with {}: {}", key, what, why);
    };
    const ModelSettings& model = settings_.model;
    const AttentionSettings& attention = model.attention;
    refuse(attention.mechanism != "linear" || !attention.layers.empty() || !attention.heads.empty(),
           "attention other than model.attention.mechanism: linear", "only its state has one size whatever the length of a segment");
    refuse(attention.window > 0, "model.attention.window", "keys near a border lie in another process");
    refuse(attention.compat != "none", "model.attention.compat", "it needs all tokens at once");
    refuse(model.short_convolution > 0, "model.short_convolution", "tokens before a border lie in another process");
    refuse(settings_.objective.learns_labels(), "objective.name: " + settings_.objective.name, "a label belongs to a whole sequence");
    refuse(settings_.data.sampler == "documents" && settings_.data.padding == "longest", "data.padding: longest",
           "segments have one length");
  }

  /// furlong launch marks its processes' lines itself.
  std::string prefix() const {
    return group_.is_alone() || group_.environment().launcher == "furlong" ? "" : fmt::format("[rank {}] ", group_.rank());
  }

  void forget_earlier_run() {
    checkpoints_.discard_after(-1);
    fs::remove_all(directory_ / "tensorboard");
  }

  /// Rank 0 chooses; the others open what it has chosen, which lies where all of them can read it.
  std::optional<fs::path> where_to_resume(const TrainOptions& options) {
    std::optional<fs::path> from;
    if (group_.is_first()) {
      switch (options.resume) {
        case TrainOptions::Resume::never:
          forget_earlier_run();
          break;
        case TrainOptions::Resume::path:
          from = newest_checkpoint_of(options.checkpoint);
          break;
        case TrainOptions::Resume::automatic:
          from = checkpoints_.newest_whole();
          break;
      }
    }
    const std::string chosen = group_.from_first(from ? fs::absolute(*from).string() : "");
    if (!group_.is_first() && !chosen.empty()) from = chosen;
    return from;
  }

  void resume(const TrainOptions& options) {
    const std::optional<fs::path> from = where_to_resume(options);
    if (!group_.is_first()) {
      if (from) trainer_.load(CheckpointReader::open(*from));
      if (!from && !settings_.model.weights.empty()) start_from_weights();
      group_.barrier();
      share_saved();
      return;
    }
    const fs::path metrics = directory_ / "metrics.jsonl";
    if (!from && !settings_.model.weights.empty()) start_from_weights();
    if (from) {
      const bool own = fs::equivalent(fs::absolute(*from).parent_path(), checkpoints_.path());
      if (!own) refuse_to_replace(*from);
      const CheckpointReader checkpoint = CheckpointReader::open(*from);
      trainer_.load(checkpoint);
      // A run that goes on in another directory takes its history along.
      if (!own) forget_earlier_run();
      if (!own || !fs::exists(metrics)) write_file_atomically(metrics, checkpoint.has("metrics") ? checkpoint.text("metrics") : "");
      if (fs::exists(checkpoints_.path_for(trainer_.steps()))) {
        checkpoints_.committed(trainer_.steps(), trainer_.best_now());
        saved_at_ = trainer_.steps();
      }
    }
    group_.barrier();  // before files go that the others may still read
    if (from) name_discarded();
    if (from) checkpoints_.discard_after(trainer_.steps());
    cut_back(metrics, from ? trainer_.steps() : -1);
    share_saved();
  }

  /// Whether what was loaded is a checkpoint of this run: rank 0 knows, and all must agree on what is to be saved.
  void share_saved() {
    if (group_.from_first(saved_at_ == trainer_.steps() ? "saved" : "") == "saved") saved_at_ = trainer_.steps();
  }

  void start_from_weights() {
    const fs::path path = checkpoint_of(settings_.model.weights);
    const WeightsReport report = trainer_.start_from(CheckpointReader::open(path));
    const auto list = [](const std::vector<std::string>& names) {
      constexpr std::size_t most = 6;
      const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), most));
      return config::join({names.begin(), end}, ", ") + (names.size() > most ? ", ..." : "");
    };
    spdlog::info("beginning from the weights of {}", path.string());
    if (!report.missing.empty())
      spdlog::info("{} tensors are not there and begin as in a new model: {}", report.missing.size(), list(report.missing));
    if (!report.unused.empty())
      spdlog::warn("{}: {} tensors have no place in this model: {}", path.string(), report.unused.size(), list(report.unused));
    if (report.positions_before > 0)
      spdlog::warn("{}: has {} learned positions; each one later repeats that which stands so many before it", path.string(),
                   report.positions_before);
  }

  /// Checkpoints of another run are not given up for one that starts elsewhere.
  void refuse_to_replace(const fs::path& from) const {
    const std::vector<std::int64_t> there = checkpoints_.steps();
    if (there.empty() && !checkpoints_.best()) return;
    throw UserError(
        "{}: holds checkpoints of another run, up to step {}, and cannot take up {}; choose another --run-dir, or, to go on with the run "
        "that is here, leave --resume out",
        checkpoints_.path().string(), there.empty() ? checkpoints_.best()->step : there.back(), from.string());
  }

  /// Says which checkpoints go when the run goes on from an earlier one.
  void name_discarded() const {
    std::vector<std::string> later;
    for (const std::int64_t step : checkpoints_.steps()) {
      if (step > trainer_.steps()) later.push_back(checkpoints_.path_for(step).filename().string());
    }
    if (const auto best = checkpoints_.best(); best && best->step > trainer_.steps()) later.push_back(best->path.filename().string());
    if (!later.empty())
      spdlog::warn("{}: going on from step {}, which removes the later checkpoints {}", checkpoints_.path().string(), trainer_.steps(),
                   config::join(later, ", "));
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
    if (report.skipped)
      progress.say(fmt::format("step {}: gradient norm {:.3g} is an outlier; the step was skipped", step, report.gradient_norm));
    if (report.targets == 0 && !std::exchange(told_of_no_targets_, true))
      progress.say(
          fmt::format("step {}: none of its tokens is a target, and it has no loss (null in metrics.jsonl, as for later such steps); "
                      "{}",
                      step,
                      settings_.objective.which() == ObjectiveSettings::Name::masked_tokens
                          ? "a higher objective.mask_probability or larger batches would give it some"
                          : "data.ignore_tokens or the borders of documents leave all out"));
    if (due && group_.is_first()) {
      MetricsRecord record{step, "train", report.loss, trainer_.tokens(), rate, report.learning_rate, report.gradient_norm, memory, {}};
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
        fmt::format("step {}: {} of {} attention rows had a denominator below model.attention.denominator_guard and were set to zero; "
                    "metrics.jsonl goes on counting (guarded_rows)",
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
    for (const auto& [layer, error] : found.layer_errors) record.more.emplace_back(fmt::format("layer_{}", layer), error);
    if (group_.is_first()) write(record);
    progress.say(fmt::format("step {}: {}{}", trainer_.steps(), in_words(found), best ? "  (best)" : ""));
    clock_ += std::chrono::steady_clock::now() - start;  // validation does not count as training time
    return best ? std::optional(found.loss) : std::nullopt;
  }

  std::string in_words(const Evaluation& found) const {
    if (!found.layer_errors.empty()) {
      const auto worst = std::max_element(found.layer_errors.begin(), found.layer_errors.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
      return fmt::format("relative error of attention in validation {:.4f}, at most {:.4f} (layer {})", found.loss, worst->second,
                         worst->first);
    }
    const std::string in_bits = settings_.objective.learns_labels() ? "" : fmt::format(" = {:.4f} bits a token", found.bits_per_token());
    const std::string divergence =
        std::isfinite(found.divergence) ? fmt::format(", divergence from the teacher {:.4f}", found.divergence) : "";
    return fmt::format("validation loss {:.4f} nats{}, accuracy {:.3f}{}", found.loss, in_bits, found.accuracy, divergence);
  }

  void save(std::optional<double> best_loss) {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t step = trainer_.steps();
    saved_at_ = step;
    if (metrics_) metrics_->flush();
    trainer_.save(checkpoints_.path_for(step), metrics_ ? contents(directory_ / "metrics.jsonl") : "");
    if (!group_.is_first()) return;
    checkpoints_.committed(step, best_loss);
    clock_ += std::chrono::steady_clock::now() - start;
  }

  void write(const MetricsRecord& record) {
    metrics_->write(record);
    tensorboard_->write(record);
  }

  const ProcessGroup& group_;
  Settings settings_;
  fs::path directory_;
  std::unique_ptr<Dataset> data_;
  Device device_;
  std::unique_ptr<RunLock> lock_;
  Trainer trainer_;
  CheckpointDirectory checkpoints_;
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
  const StopSignals signals;  // from here on: a job that is asked to stop while it starts saves its first step
  ProcessGroup group(discover_launch(), group_options);
  try {
    if (options.resume == TrainOptions::Resume::path)
      checkpoint_of(options.checkpoint);  // a wrong path shows before a run directory is made
    TrainResult result = Run(loaded, options, group).go();
    result.is_first = group.is_first();
    group.leave();
    return result;
  } catch (const std::exception& error) {
    group.fail(error);
    throw;
  }
}

}  // namespace furlong
