#include "trainers/train/recording/run_recorder.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

#include "framework/core/arena.h"

namespace furlong {

RunRecorder::RunRecorder(const Settings& settings, const Device& device, const ProcessGroup& group,
                         const RunDirectory& directory, std::int64_t step)
    : settings_(settings),
      device_(device),
      is_first_(group.is_first()),
      metrics_path_(directory.metrics()),
      progress_(is_first_ ? settings.log.progress : "none", step, settings.trainer.max_steps) {
  if (!is_first_) return;
  metrics_.emplace(metrics_path_);
  if (step < settings.trainer.max_steps)
    tensorboard_.emplace(directory.path() / "tensorboard", step > 0 ? std::optional(step) : std::nullopt);
}

std::int64_t RunRecorder::peak_bytes() const { return arena(device_).counters().peak_bytes; }

void RunRecorder::note_step(std::int64_t step, std::int64_t tokens, const StepReport& report) {
  tokens_since_ += report.tokens;
  unwritten_ = {step, tokens, rate(), report};
  const bool due = step % settings_.log.every == 0 || step == settings_.trainer.max_steps || step == 1;
  progress_.step(step, report.loss, unwritten_->rate, report.learning_rate, report.gradient_norm, peak_bytes(), due);
  print_unusual(step, report);
  if (due) write_last_step();
}

double RunRecorder::rate() const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - clock_;
  return static_cast<double>(tokens_since_) / std::max(1e-9, passed.count());
}

void RunRecorder::write_last_step() {
  if (!unwritten_) return;
  const auto& [step, tokens, rate, report] = *unwritten_;
  if (is_first_) {
    MetricsRecord record{step,         "train", report.loss, tokens, rate, report.learning_rate, report.gradient_norm,
                         peak_bytes(), {}};
    if (settings_.trainer.skip_outlier_factor > 0) record.more.emplace_back("skipped", report.skipped ? 1 : 0);
    add_denominators(report.denominators, record);
    write(record);
  }
  clock_ = std::chrono::steady_clock::now();
  tokens_since_ = 0;
  unwritten_.reset();
}

void RunRecorder::print_unusual(std::int64_t step, const StepReport& report) {
  if (report.skipped)
    print(fmt::format("step {}: gradient norm {:.3g} is an outlier; the step was skipped", step, report.gradient_norm));
  if (report.targets == 0 && !std::exchange(reported_no_targets_, true))
    print(
        fmt::format("step {}: no token is a target, so the step has no loss (null in metrics.jsonl; later such steps "
                    "are not logged); {}",
                    step,
                    settings_.objective.name == Objective::masked_tokens
                        ? "raise objective.mask_probability or use larger batches"
                        : "data.ignore_tokens or document borders exclude all tokens"));
}

/// Counts this step alone, so that a resumed run writes the same lines.
void RunRecorder::add_denominators(const ops::DenominatorReport& found, MetricsRecord& record) {
  if (found.rows == 0) return;
  record.more.emplace_back("guarded_rows", static_cast<double>(found.guarded) / static_cast<double>(found.rows));
  record.more.emplace_back("least_denominator", found.least);
  if (found.guarded == 0 || std::exchange(reported_guard_, true)) return;
  print(
      fmt::format("step {}: {} of {} attention rows had a denominator below model.attention.denominator_guard and "
                  "were set to zero; metrics.jsonl counts later ones (guarded_rows)",
                  record.step, found.guarded, found.rows));
}

void RunRecorder::note_validation(std::int64_t step, const Evaluation& found, bool is_best) {
  MetricsRecord record{step,
                       "validation",
                       found.loss,
                       found.tokens,
                       static_cast<double>(found.tokens) / std::max(1e-9, found.seconds),
                       MetricsRecord::not_measured,
                       MetricsRecord::not_measured,
                       peak_bytes(),
                       {}};
  if (std::isfinite(found.accuracy)) record.more.emplace_back("accuracy", found.accuracy);
  if (std::isfinite(found.divergence)) record.more.emplace_back("divergence", found.divergence);
  for (const auto& [layer, error] : found.layer_errors) record.more.emplace_back(fmt::format("layer_{}", layer), error);
  if (is_best) record.more.emplace_back("best", 1.0);
  if (is_first_) write(record);
  print(fmt::format("step {}: {}{}", step, text_of(found), is_best ? "  (best)" : ""));
}

std::string RunRecorder::text_of(const Evaluation& found) const {
  if (!found.layer_errors.empty()) {
    const auto worst = std::max_element(found.layer_errors.begin(), found.layer_errors.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
    return fmt::format("validation: squared attention error {:.4f}, at most {:.4f} (layer {})", found.loss,
                       worst->second, worst->first);
  }
  const std::string in_bits =
      settings_.objective.learns_labels() ? "" : fmt::format(" = {:.4f} bits per token", found.bits_per_token());
  const std::string divergence =
      std::isfinite(found.divergence) ? fmt::format(", divergence from the teacher {:.4f}", found.divergence) : "";
  const char* unit = settings_.objective.name == Objective::regression ? "" : " nats";
  const std::string accuracy = std::isfinite(found.accuracy) ? fmt::format(", accuracy {:.3f}", found.accuracy) : "";
  return fmt::format("validation loss {:.4f}{}{}{}{}", found.loss, unit, in_bits, accuracy, divergence);
}

std::string RunRecorder::metrics_on_disk() {
  if (!metrics_) return "";
  metrics_->flush();
  std::ifstream file(metrics_path_, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void RunRecorder::write(const MetricsRecord& record) {
  metrics_->write(record);
  tensorboard_->write(record);
}

}  // namespace furlong
