#pragma once
// Counts of predicted labels, of documents or of tokens.
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "evaluation/label_metrics.h"
#include "evaluation/measures/multi_label.h"

namespace furlong {

/// How often each label was predicted for samples of each label.
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(std::size_t n_labels) : samples_(n_labels, 0), predictions_(n_labels, 0) {}
  /// Counts the predictions of all samples.
  explicit ConfusionMatrix(const ClassScores& scores);

  /// Counts one sample. Both are below the number of labels.
  void add(std::size_t target, std::size_t predicted);

  /// Returns how many samples of label `target` were predicted as `predicted`.
  std::int64_t count(std::size_t target, std::size_t predicted) const;
  /// Returns the decisions for one label.
  LabelDecisions decisions(std::size_t label) const;
  /// Returns the mean F1 over the labels that occur as a target or as a prediction; 0 if there is none.
  double f1_macro() const;
  /// Returns `labels`: precision, recall, f1 and samples of each label by its name, null where undefined; and
  /// `confusion_matrix`: by label and prediction, the counts that are not 0. `names` are those of all labels.
  nlohmann::ordered_json to_json(const std::vector<std::string>& names) const;

 private:
  std::vector<std::int64_t> samples_, predictions_;  // of each label
  // By target and prediction. Counts of 0 are left out: with thousands of labels almost all are.
  std::map<std::pair<std::size_t, std::size_t>, std::int64_t> counts_;
};

/// Returns precision, recall and f1 of a label, null where undefined, and the number of samples that have it.
nlohmann::ordered_json to_json(const LabelDecisions& decisions);

}  // namespace furlong
