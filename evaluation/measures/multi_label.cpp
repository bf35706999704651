#include "evaluation/measures/multi_label.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "evaluation/label_metrics.h"
#include "framework/core/error.h"

namespace furlong {

double LabelDecisions::f1() const {
  const auto hits = static_cast<double>(2 * true_positives);
  const double all = hits + static_cast<double>(false_positives + false_negatives);
  return all > 0 ? hits / all : 0;
}

double area_under_roc(std::span<const double> scores, std::span<const double> targets) {
  require(scores.size() == targets.size(), "{} scores of {} targets", scores.size(), targets.size());
  if (scores.empty()) return std::numeric_limits<double>::quiet_NaN();
  ClassScores binary{.n_classes = 2};
  for (std::size_t i = 0; i < scores.size(); ++i) {
    binary.labels.push_back(targets[i] > 0.5);
    binary.scores.insert(binary.scores.end(), {-scores[i], scores[i]});
  }
  const std::vector<Metric> metrics = class_metrics(binary, {.resamples = 0});
  return std::find_if(metrics.begin(), metrics.end(), [](const Metric& m) { return m.name == "auroc"; })->value;
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
    found.f1_macro += of.f1() / static_cast<double>(n_labels);
    found.labels.push_back(of);
    found.auroc.push_back(area_under_roc(scores, truth));
    if (std::isnan(found.auroc.back())) continue;
    areas += found.auroc.back();
    ++measured;
  }
  found.f1_micro = all.f1();
  found.mean_auroc = measured > 0 ? areas / measured : std::numeric_limits<double>::quiet_NaN();
  return found;
}

}  // namespace furlong
