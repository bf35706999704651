#pragma once
// Measures how much of its teacher's accuracy and loss a student recovers, before and after each stage of furlong
// finetune.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluation/unigram_baseline.h"
#include "trainers/train/signals.h"
#include "trainers/train/validation.h"

namespace furlong {

/// A model to measure.
struct Candidate {
  std::string name;  ///< "teacher", "before" (the student before its first step), or the name of a stage
  std::filesystem::path checkpoint;
  /// Training cost of the whole stage, even if its best checkpoint is an earlier one.
  std::int64_t steps = 0, tokens = 0;
  double seconds = 0;
};

/// Returns (student - baseline) / (teacher - baseline): 1 at the teacher's level, 0 at the baseline. Empty if teacher
/// and baseline are equal.
std::optional<double> relative_recovery(double student, double teacher, double baseline);
/// Returns the standard error of the recovery of accuracy. It covers the student's accuracy only and treats its targets
/// as independent. Empty if all targets are right or all wrong, or if the teacher is not better than the baseline.
std::optional<double> recovery_error(const Evaluation& student, double teacher, double baseline);

/// Relative recoveries of a student. A value is empty if the teacher is not better than the baseline.
struct Recovered {
  std::optional<double> accuracy, accuracy_error, loss;
};
/// Returns the relative recoveries of a student in accuracy and loss.
Recovered recovered(const Evaluation& student, const Evaluation& teacher, const UnigramBaseline& baseline);

/// Returns why recovered() lacks the recovery of accuracy, of loss or of both; empty if it has both.
std::string undefined_recovery(const Evaluation& teacher, const UnigramBaseline& baseline);

struct MeasuredModel {
  Candidate candidate;
  Evaluation found;
  Recovered recovered;
  /// Relative error of each attention layer's output compared with the teacher's, on the teacher's hidden states.
  std::vector<std::pair<std::size_t, double>> layer_errors;
  /// Evaluation without the exact weights of softmax windows (mechanism windowed): shows what the linear part learned.
  std::optional<Evaluation> window_off;
  Recovered window_off_recovered;
};

/// A forward pass over one sequence of random tokens.
struct MeasuredLength {
  std::int64_t length = 0;
  struct Pass {
    double seconds = 0;
    std::int64_t peak_bytes = 0;  ///< of tensors, without the weights
    std::string failure;          ///< why the pass was not measured; empty if it was
  } teacher, student;
};

struct Recovery {
  std::string data, objective;
  Split split = Split::test;
  std::int64_t sequence_length = 0;
  UnigramBaseline baseline;
  std::string undefined;  ///< why recoveries of accuracy or of loss are empty; empty if they are not
  std::vector<MeasuredModel> models;
  std::vector<MeasuredLength> lengths;
};

/// Returns the split that measure_recovery() reads: test, or validation if the test split is empty.
Split measured_split(const Dataset& data);

/// Measures the teacher, then the students, on measured_split() of the dataset (data.dataset). `settings` are the
/// student's; settings.finetune gives the number of batches and the lengths. All models are evaluated on the same
/// batches. A teacher with another objective, or of a stateful student, is left out, and recoveries are then empty.
/// `report` receives a line about each measurement. Returns nothing if one of `stop_requests` was received.
std::optional<Recovery> measure_recovery(const Settings& settings, const std::filesystem::path& teacher,
                                         const std::vector<Candidate>& students, const StopRequests& stop_requests,
                                         const std::function<void(const std::string&)>& report);

nlohmann::ordered_json to_json(const Recovery& recovery);
/// Returns a table for display, and a second one of speed and memory if lengths were measured.
std::string to_text(const Recovery& recovery);

}  // namespace furlong
