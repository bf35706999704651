#pragma once
// Metrics of classifiers, from scores and labels alone, with bootstrap confidence intervals.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace furlong {

/// The scores of each class for each sample, and the true classes.
struct ClassScores {
  std::int64_t n_classes = 0;
  std::vector<std::int32_t> labels{};  ///< [samples], each below n_classes
  std::vector<double> scores{};        ///< [samples, n_classes], for example probabilities
  /// Returns the class with the highest score, the first one if tied.
  std::int32_t predicted(std::size_t sample) const;
};

/// A metric with the limits of its 95% confidence interval. NaN: undefined, or not computed.
struct Metric {
  std::string name;
  double value = std::numeric_limits<double>::quiet_NaN();
  double low = std::numeric_limits<double>::quiet_NaN(), high = low;
};

/// How confidence intervals are made: samples are drawn with replacement, and the interval holds the middle 95% of the
/// metric's values (percentile bootstrap; Efron 1979). Resamples in which a metric is undefined are left out; means
/// over classes also are where a class of the samples is missing. If more than a tenth is left out, there is no
/// interval.
struct Bootstrap {
  std::int64_t resamples = 1000;  ///< 0: no intervals
  std::uint64_t seed = 1;
};

/// Returns these metrics, defined as in scikit-learn:
///  - accuracy;
///  - balanced_accuracy: mean over the classes of the fraction of their samples that is predicted correctly;
///  - f1_macro: mean over the classes of their F1, the harmonic mean of precision and recall;
///  - mcc: Matthews correlation coefficient, 0 if all samples have one label or one prediction;
///  - auroc: area under the receiver operating characteristic;
///  - auprc: average precision, the area under the steps of the precision-recall curve.
/// The last two rank samples by the scores of class 1 if there are two classes; otherwise they are the mean over the
/// classes, each against all others. A class without samples (f1_macro: without predictions too) is left out of means.
/// auroc and auprc are NaN if all samples have one label. Throws ContractError without samples.
std::vector<Metric> class_metrics(const ClassScores& scores, const Bootstrap& bootstrap = {});

}  // namespace furlong
