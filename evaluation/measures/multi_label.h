#pragma once
// Measures of predicted sets of labels.
#include <cstdint>
#include <span>
#include <vector>

namespace furlong {

/// Decisions for one label, or sums over labels.
struct LabelDecisions {
  std::int64_t true_positives = 0, false_positives = 0, false_negatives = 0;
  /// Returns the number of samples that have the label.
  std::int64_t samples() const { return true_positives + false_negatives; }
  /// Returns 2 TP / (2 TP + FP + FN); 0 if there are neither predictions nor targets.
  double f1() const;
};

/// Measures of each label and of all labels together.
struct MultiLabelMeasures {
  std::vector<LabelDecisions> labels;
  std::vector<double> auroc;  ///< area under the ROC curve of each label; NaN if all samples have it or none does
  double f1_micro = 0;        ///< of the decisions for all labels together
  double f1_macro = 0;        ///< mean of the labels' F1
  double mean_auroc = 0;      ///< mean over the labels with one; NaN if there is none
};

/// Measures logits and targets (0 or 1), both [samples, n_labels]. A label is predicted if its probability is above
/// 0.5, that is, if its logit is positive.
MultiLabelMeasures multi_label_measures(std::span<const double> logits, std::span<const double> targets,
                                        std::size_t n_labels);

/// Returns the area under the ROC curve: the probability that a sample with the label has a larger score than one
/// without it, ties counting half. NaN if all targets are equal.
double area_under_roc(std::span<const double> scores, std::span<const double> targets);

}  // namespace furlong
