#pragma once
// Output of furlong evaluate: tables and JSON.
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "evaluation/context_loss.h"
#include "evaluation/label_metrics.h"
#include "evaluation/recall_suite.h"
#include "evaluation/unigram_baseline.h"

namespace furlong::command_line {

using Json = nlohmann::ordered_json;

/// Prints the evaluation of a split.
void print_evaluation(const Evaluation& found, const UnigramBaseline& baseline, const Model& model);
/// `labels`: the names of the classes, in order; of two, the second is named as that of average precision.
void print_metrics(const std::vector<Metric>& metrics, const Bootstrap& bootstrap,
                   const std::vector<std::string>& labels);
/// Prints the measures of LabelMeasures or of a ConfusionMatrix: those of each label in a line of its own, for at most
/// 50 labels, and the matrix of at most 12 labels.
void print_measures(const Json& measures);
void print_positions(const std::vector<ContextRange>& ranges);
void print_lengths(const std::vector<LengthLoss>& lengths);
/// Prints the head of a table, and one line of it.
void print_recall_head();
void print_recall(const RecallResult& result);

/// Labels have neither perplexity nor bits per token.
Json as_json(const Evaluation& found, const UnigramBaseline& baseline, const Model& model);
Json as_json(const std::vector<Metric>& metrics, const std::vector<std::string>& labels);
Json as_json(const std::vector<ContextRange>& ranges);
Json as_json(const std::vector<LengthLoss>& lengths);
Json as_json(const std::vector<RecallResult>& results);

}  // namespace furlong::command_line
