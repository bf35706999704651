#include "evaluation/measures/multi_label.h"

#include <cmath>
#include <limits>

#include "evaluation/measures/ranks.h"
#include "framework/core/error.h"

namespace furlong {

double LabelDecisions::f1() const {
  const auto hits = static_cast<double>(2 * true_positives);
  const double all = hits + static_cast<double>(false_positives + false_negatives);
  return all > 0 ? hits / all : 0;
}

// The Mann-Whitney statistic: the sum of the positives' ranks gives the number of pairs in the right order.
double area_under_roc(std::span<const double> scores, std::span<const double> targets) {
  require(scores.size() == targets.size(), "{} scores of {} targets", scores.size(), targets.size());
  const std::vector<double> ranks = mean_ranks(scores);
  double positives = 0, sum = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] <= 0.5) continue;
    ++positives;
    sum += ranks[i];
  }
  const double negatives = static_cast<double>(targets.size()) - positives;
  if (positives == 0 || negatives == 0) return std::numeric_limits<double>::quiet_NaN();
  return (sum - positives * (positives + 1) / 2) / (positives * negatives);
}

MultiLabelMeasures multi_label_measures(std::span<const double> logits, std::span<const double> targets,
                                        std::size_t n_labels) {
  require(n_labels > 0 && logits.size() == targets.size() && logits.size() % n_labels == 0,
          "{} logits and {} targets of {} labels", logits.size(), targets.size(), n_labels);
  const std::size_t samples = logits.size() / n_labels;
  MultiLabelMeasures found;
  LabelDecisions all;
  double areas = 0, measured = 0;
  for (std::size_t label = 0; label < n_labels; ++label) {
    std::vector<double> scores(samples), truth(samples);
    LabelDecisions of;
    for (std::size_t i = 0; i < samples; ++i) {
      scores[i] = logits[i * n_labels + label];
      truth[i] = targets[i * n_labels + label];
      const bool predicted = scores[i] > 0, has = truth[i] > 0.5;
      of.true_positives += predicted && has;
      of.false_positives += predicted && !has;
      of.false_negatives += !predicted && has;
    }
    all.true_positives += of.true_positives;
    all.false_positives += of.false_positives;
    all.false_negatives += of.false_negatives;
    found.macro_f1 += of.f1() / static_cast<double>(n_labels);
    found.labels.push_back(of);
    found.auroc.push_back(area_under_roc(scores, truth));
    if (std::isnan(found.auroc.back())) continue;
    areas += found.auroc.back();
    ++measured;
  }
  found.micro_f1 = all.f1();
  found.mean_auroc = measured > 0 ? areas / measured : std::numeric_limits<double>::quiet_NaN();
  return found;
}

}  // namespace furlong
