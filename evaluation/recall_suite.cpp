#include "evaluation/recall_suite.h"

#include <algorithm>
#include <bit>

#include "evaluation/context_loss.h"
#include "evaluation/score.h"
#include "evaluation/sequences/hidden_states.h"
#include "framework/core/enum_names.h"

namespace furlong {
namespace {

std::vector<std::int64_t> lengths_of(const Model& model, const RecallSuiteOptions& options) {
  const std::int64_t limit = longest_sequence(model);
  if (limit > 0 && limit < 16)
    throw UserError("--suite recall: the model has {} positions; expected at least 16", limit);
  std::vector<std::int64_t> lengths = options.lengths;
  if (lengths.empty()) {
    std::int64_t longest = model.settings.data.sequence_length;
    if (limit > 0) longest = std::min(longest, limit);
    auto length =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(longest, 16))));
    for (; lengths.size() < 4 && length >= 16; length /= 2) lengths.push_back(length);
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  for (const std::int64_t length : lengths) {
    if (length < 16 || length % 2 != 0)
      throw UserError("--lengths {}: the recall suite needs even lengths of at least 16; use {}", length,
                      std::max<std::int64_t>(16, length + length % 2));
    if (limit > 0 && length > limit)
      throw UserError("--lengths {}: the model has {} positions; expected at most as many", length, limit);
  }
  return lengths;
}

/// Returns the largest divisor of `samples` that is at most `rows`, so that every batch is full.
std::int64_t rows_of_batch(std::int64_t samples, std::int64_t rows) {
  std::int64_t found = std::clamp<std::int64_t>(rows, 1, samples);
  while (samples % found != 0) --found;
  return found;
}

double guess(const Vocabulary& vocabulary, const RecallOptions& task) {
  switch (task.task) {
    case Recall::associative: {  // one of the values, which are drawn from the symbols that are no keys and can be
                                 // equal
      const auto pairs = static_cast<double>(task.pairs);
      const auto values = static_cast<double>(recall_tokens(vocabulary, task.start).symbols.size()) - pairs;
      return 1 / pairs + (1 - 1 / pairs) / values;
    }
    case Recall::passkey:
      return 1e-5;
    default:
      return 1 / static_cast<double>(recall_tokens(vocabulary, task.start).symbols.size());
  }
}

RecallResult run_recall(Model& model, const RecallOptions& task, std::int64_t samples) {
  RecallResult result{.task = task.task, .length = task.sequence_length, .pairs = task.pairs};
  result.obstacle = recall_obstacle(model.vocabulary, task);
  if (!result.obstacle.empty()) return result;
  const auto source = make_recall_task(model.vocabulary, task);
  const DataSettings& data = model.settings.data;
  const bool whole = task.task == Recall::passkey;  // a batch of one sequence, whose answers count as one
  const std::int64_t rows =
      whole ? 1 : rows_of_batch(samples, data.batch_size * data.sequence_length / task.sequence_length);
  std::int64_t correct = 0;
  const Evaluation found = evaluate(model, *source,
                                    {.batch_size = rows,
                                     .max_batches = samples / rows,
                                     .observe = [&](std::uint64_t, const Batch&, const ops::CrossEntropyResult& batch) {
                                       const auto counts = batch.counts.to_vector<std::int32_t>();
                                       correct += whole ? counts[0] == counts[1] : counts[1];
                                     }});
  result.answers = whole ? samples : found.targets;
  result.accuracy = static_cast<double>(correct) / static_cast<double>(result.answers);
  result.baseline = guess(model.vocabulary, task);
  result.loss = found.loss;
  return result;
}

}  // namespace

std::vector<RecallResult> recall_suite(Model& model, const RecallSuiteOptions& options,
                                       const std::function<void(const RecallResult&)>& on_result) {
  require_causal(model, "--suite recall");
  const SequenceFrame frame = scoring_frame(model, "auto");
  RecallOptions task{.seed = options.seed};
  if (!frame.front.empty()) task.start = frame.front.front();
  const std::vector<std::int64_t> lengths = lengths_of(model, options);
  std::vector<RecallResult> results;
  for (const Recall kind : all_values<Recall>()) {
    task.task = kind;
    for (const std::int64_t length : lengths) {
      task.sequence_length = length;
      task.pairs = kind == Recall::associative ? 4 : 0;
      do {
        results.push_back(run_recall(model, task, options.samples));
        if (on_result) on_result(results.back());
        task.pairs *= 4;
      } while (task.pairs > 0 && recall_obstacle(model.vocabulary, task).empty());
    }
  }
  return results;
}

}  // namespace furlong
