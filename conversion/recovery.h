#pragma once
// How much of a teacher's ability its student has, before and after each stage of furlong finetune.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluation/chance.h"
#include "trainers/train/signals.h"
#include "trainers/train/validation.h"

namespace furlong {

/// A model to measure.
struct Candidate {
  std::string name;  ///< "teacher", "before" (the student before its first step), or a stage
  std::filesystem::path checkpoint;
  std::int64_t steps = 0, tokens = 0;
  double seconds = 0;  ///< steps and tokens spent on the stage, and the time that they took, whichever of its
                       ///< checkpoints is the best
};

/// (student - chance) / (teacher - chance): 1 is the teacher, 0 chance. Nothing where the last two are equal.
std::optional<double> relative_recovery(double student, double teacher, double chance);
/// Standard error of a recovery of accuracy, from that of the student's accuracy alone, its targets taken as
/// independent. Nothing where that says nothing: all of the targets right or none, or a teacher no better than chance.
std::optional<double> recovery_error(const Evaluation& student, double teacher, double chance);

/// Relative recoveries of a student, each only beside a teacher that is better than chance in it.
struct Recovered {
  std::optional<double> accuracy, accuracy_error, loss;
};
Recovered recovered(const Evaluation& student, const Evaluation& teacher, const Chance& chance);

struct MeasuredModel {
  Candidate candidate;
  Evaluation found;
  Recovered recovered;
  /// Relative error of the output of each attention beside the teacher's, on the teacher's hidden states.
  std::vector<std::pair<std::size_t, double>> layer_errors;
  /// The same with the exact weights of softmax windows off (mechanism windowed), so that what the linear part has
  /// learned shows.
  std::optional<Evaluation> window_off;
  Recovered window_off_recovered;
};

/// A forward pass over one sequence of random tokens.
struct MeasuredLength {
  std::int64_t length = 0;
  struct Pass {
    double seconds = 0;
    std::int64_t peak_bytes = 0;  ///< of tensors, beside the weights
    std::string failure;          ///< why there is none; empty
  } teacher, student;
};

struct Recovery {
  std::string data, objective;
  Split split = Split::test;
  std::int64_t sequence_length = 0;
  Chance chance;
  std::vector<MeasuredModel> models;
  std::vector<MeasuredLength> lengths;
};

/// Measures the teacher, then the students, on the test split of settings.data.store (where it is empty on the
/// validation split) as settings.finetune says; `settings` are the student's. A teacher that was trained for another
/// objective is left out, and there is no recovery then. All figures are of the same batches. `say` is told what is
/// measured. Nothing where one of `stop_requests` was received between two of them.
std::optional<Recovery> measure_recovery(const Settings& settings, const std::filesystem::path& teacher,
                                         const std::vector<Candidate>& students, const StopRequests& stop_requests,
                                         const std::function<void(const std::string&)>& say);

nlohmann::ordered_json to_json(const Recovery& recovery);
/// A table for people, and one of speed and memory where lengths were measured.
std::string to_text(const Recovery& recovery);

}  // namespace furlong
