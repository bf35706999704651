#pragma once
// How well a causal model recalls tokens of its context: furlong evaluate --suite recall.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "datasets/tasks/recall_task.h"
#include "trainers/model/model.h"

namespace furlong {

/// Options of recall_suite().
struct RecallSuiteOptions {
  /// Of the sequences. Empty: the four largest powers of two that the model was trained on or has positions for.
  std::vector<std::int64_t> lengths{};
  std::int64_t samples = 64;  ///< sequences of each task and length, at most 1024
  std::uint64_t seed = 1;
};

/// The result of one task at one length.
struct RecallResult {
  Recall task = Recall::associative;
  std::int64_t length = 0;
  std::int64_t pairs = 0;    ///< associative recall only
  std::string obstacle{};    ///< why the task was not run; empty if it was
  double accuracy = 0;       ///< fraction of correct answers
  double baseline = 0;       ///< accuracy of a guess among the possible answers
  double loss = 0;           ///< mean over the answers' tokens, nats
  std::int64_t answers = 0;  ///< tokens; passkey: digits as a whole, one answer for each sequence
};

/// Runs the tasks of Recall at each length; associative recall with 4, 16, 64, ... pairs, as many as fit. An answer is
/// correct if it is the most probable token after the correct tokens before it; a passkey is correct if all its tokens
/// are. Throws UserError for models that are not causal, and for lengths that are odd, below 16, or above the model's
/// positions. Calls `on_result`, if set, with each result as soon as it is known.
std::vector<RecallResult> recall_suite(Model& model, const RecallSuiteOptions& options,
                                       const std::function<void(const RecallResult&)>& on_result = {});

}  // namespace furlong
