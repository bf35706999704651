#pragma once
// Writes the samples of a generated task to a tokenized dataset: `furlong prepare listops` and `pathfinder`.
#include <array>
#include <functional>

#include "datasets/prepare/prepare.h"
#include "datasets/tasks/labeled_task.h"

namespace furlong {

/// Output of prepare_task().
struct PrepareTaskOptions {
  std::string output;
  bool force = false;                             ///< replace an existing output
  std::array<std::uint64_t, 3> samples{};         ///< of train, validation and test
  decltype(PrepareOptions::progress) progress{};  ///< see PrepareOptions; may be empty
  std::function<void()> completed{};              ///< see DatasetWriterOptions; may be empty
};

/// Logs the progress of prepare_task().
void log_progress(const PrepareOptions::Progress& now);

/// Returns the options in the provenance of a dataset of prepare_task(), by name: `format` is the task's name,
/// `samples` has the number of each split.
nlohmann::ordered_json provenance_options(const LabeledTask& task, const std::array<std::uint64_t, 3>& samples);

/// Generates samples on all threads and writes them in order, a document each. The file does not depend on the number
/// of threads. Throws UserError if a split has no samples, and as prepare().
PrepareReport prepare_task(const LabeledTask& task, const PrepareTaskOptions& options);

}  // namespace furlong
