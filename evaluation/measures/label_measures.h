#pragma once
// Measures of `furlong evaluate` for numbers, sets of labels and labels of tokens.
#include <nlohmann/json.hpp>

#include "evaluation/measures/confusion_matrix.h"
#include "trainers/train/validation.h"

namespace furlong {

/// Collects a model's predictions while evaluate() runs.
class LabelMeasures {
 public:
  /// `model` has an objective over labels and must outlive this object.
  explicit LabelMeasures(Model& model);

  /// Returns the loss to pass to evaluate(), which also collects predictions. It refers to this object.
  BatchLoss loss();
  /// Returns the measures by name, and those of each label under "labels". Regression: pearson and spearman (means over
  /// the numbers) and rmse, in the units of the data. Sets: f1_micro, f1_macro, auroc. Tokens: f1_macro, and what
  /// ConfusionMatrix::to_json() returns. Undefined measures are null. Empty for other objectives.
  nlohmann::ordered_json to_json() const;

  /// Predictions and targets of all samples, [samples, labels]: numbers in the units of the data; of sets logits, and 0
  /// or 1. Empty for labels of tokens.
  const std::vector<double>& predicted() const { return predicted_; }
  const std::vector<double>& targets() const { return targets_; }
  /// Logits of the last batch, [batch, labels] or [batch, n, labels].
  const std::vector<double>& logits() const { return logits_; }

 private:
  void collect(const Batch& batch);
  nlohmann::ordered_json numbers() const;
  nlohmann::ordered_json sets() const;
  nlohmann::ordered_json tokens() const;

  Model& model_;
  LabelKind kind_;
  std::size_t outputs_;
  std::vector<double> predicted_, targets_;  // [samples, outputs], numbers and sets
  std::vector<double> logits_;               // of the last batch
  ConfusionMatrix counts_;
};

}  // namespace furlong
