#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "trainers/train/recording/metrics.h"
#include "trainers/train/recording/progress.h"
#include "trainers/train/run/run_directory.h"
#include "trainers/train/trainer.h"

namespace furlong {

/// Shows the progress of a run and, on rank 0, writes metrics.jsonl and TensorBoard events.
class RunRecorder {
 public:
  /// `step`: the step that the run starts from. The arguments must outlive this object.
  RunRecorder(const Settings& settings, const Device& device, const ProcessGroup& group, const RunDirectory& directory,
              std::int64_t step);

  /// Prints a separate line.
  void print(const std::string& line) { progress_.print(line); }
  /// Starts the clock; pauses are not counted.
  void start() { clock_ = std::chrono::steady_clock::now(); }
  /// Stops the clock while this object exists: for validation and checkpoints.
  class Pause {
   public:
    explicit Pause(RunRecorder& recorder) : recorder_(recorder) {}
    ~Pause() { recorder_.clock_ += std::chrono::steady_clock::now() - start_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    RunRecorder& recorder_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  /// Call this after optimizer step `step`. `tokens`: of the run so far. Writes one step in log.every, the first one
  /// and that of trainer.max_steps.
  void note_step(std::int64_t step, std::int64_t tokens, const StepReport& report);
  /// Writes the last step, if it is not written: no other follows.
  void write_last_step();
  /// Call this after the validation of step `step`. `is_best`: its loss is the best so far.
  void note_validation(std::int64_t step, const Evaluation& found, bool is_best);
  /// Blocks until metrics.jsonl is on disk, and returns its content; empty on ranks other than 0.
  std::string metrics_on_disk();

 private:
  void print_unusual(std::int64_t step, const StepReport& report);
  void add_denominators(const ops::DenominatorReport& found, MetricsRecord& record);
  std::string text_of(const Evaluation& found) const;
  std::int64_t peak_bytes() const;
  /// Tokens per second since the last line.
  double rate() const;
  void write(const MetricsRecord& record);

  const Settings& settings_;
  Device device_;
  bool is_first_;
  std::filesystem::path metrics_path_;
  std::optional<MetricsWriter> metrics_;
  std::optional<TensorboardWriter> tensorboard_;
  Progress progress_;
  std::chrono::steady_clock::time_point clock_;
  std::int64_t tokens_since_ = 0;
  struct Step {
    std::int64_t step, tokens;
    double rate;  ///< rate() after the step, before anything is printed, which can wait for a reader
    StepReport report;
  };
  std::optional<Step> unwritten_;
  bool reported_guard_ = false, reported_no_targets_ = false;
};

}  // namespace furlong
