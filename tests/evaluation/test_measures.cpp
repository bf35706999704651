// Measures of predicted labels, against SciPy (pearsonr, spearmanr) and scikit-learn (f1_score, roc_auc_score).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "evaluation/measures/confusion_matrix.h"
#include "evaluation/measures/multi_label.h"
#include "evaluation/measures/regression.h"

namespace furlong {
namespace {

TEST(Measures, CorrelationsEqualSciPy) {
  const std::vector<double> x{1.5, -0.25, 3, 3, 0.5, 2, -1, 4.25}, y{2, 0.5, 2.5, 3.5, 0.5, 0.5, -2, 3};
  EXPECT_NEAR(pearson_correlation(x, y), 0.8811676901832254, 1e-14);
  EXPECT_NEAR(spearman_correlation(x, y), 0.8835852486128687, 1e-14);
  EXPECT_NEAR(root_mean_squared_error(x, y), 0.875, 1e-14);
  EXPECT_TRUE(std::isnan(pearson_correlation(x, std::vector<double>(8, 0.1))));
  EXPECT_TRUE(std::isnan(spearman_correlation({}, {})));
  std::vector<double> diverged = x;
  diverged[3] = std::nan("");
  EXPECT_TRUE(std::isnan(spearman_correlation(diverged, y)));
  // The mean does not cancel the differences.
  std::vector<double> far = x;
  for (double& one : far) one += 1e6;
  EXPECT_NEAR(pearson_correlation(far, y), 0.8811676901832254, 1e-9);
}

TEST(Measures, SetsEqualScikitLearn) {
  const std::vector<double> logits{0.5, -1, 2, 1.5, 0.25, -0.5, -2, 0.25, 0.1, 0.5, -3, -1, -0.5, 1, 0.3, 2, 2, -0.2};
  const std::vector<double> targets{1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0};
  const MultiLabelMeasures found = multi_label_measures(logits, targets, 3);
  EXPECT_NEAR(found.f1_micro, 0.5555555555555556, 1e-14);
  EXPECT_NEAR(found.f1_macro, 0.44047619047619047, 1e-14);
  EXPECT_NEAR(found.auroc[0], 0.8125, 1e-14);
  EXPECT_NEAR(found.auroc[1], 0.3888888888888889, 1e-14);
  EXPECT_TRUE(std::isnan(found.auroc[2])) << "no sample has the label";
  EXPECT_NEAR(found.mean_auroc, (0.8125 + 0.3888888888888889) / 2, 1e-14);
}

TEST(Measures, TokensEqualScikitLearn) {
  const std::vector<std::size_t> targets{0, 0, 1, 1, 1, 2, 2, 0, 1, 2}, predicted{0, 1, 1, 1, 0, 2, 0, 0, 1, 2};
  ConfusionMatrix counts(4);  // the last label does not occur
  for (std::size_t i = 0; i < targets.size(); ++i) counts.add(targets[i], predicted[i]);
  EXPECT_NEAR(counts.f1_macro(), 0.7071428571428572, 1e-14);
  EXPECT_EQ(counts.decisions(1).true_positives, 3);
  EXPECT_EQ(counts.decisions(1).false_positives, 1);
  EXPECT_EQ(counts.decisions(1).false_negatives, 1);
}

TEST(Measures, ConfusionMatrixHasRowsForEachLabel) {
  // Label "b" has no samples, but is predicted once; "d" does not occur at all.
  const ClassScores scores{4, {0, 0, 2, 2, 2}, {.7, .1, .1, .1, .1, .7, .1, .1, .6, 0, .2, .2, 0, 0, 1, 0, 0, 0, 1, 0}};
  const ConfusionMatrix counts(scores);
  EXPECT_EQ(counts.count(0, 1), 1);
  EXPECT_EQ(counts.count(1, 0), 0);
  const nlohmann::ordered_json found = counts.to_json({"a", "b", "c", "d"});
  EXPECT_EQ(found["confusion_matrix"].dump(), R"({"a":{"a":1,"b":1},"b":{},"c":{"a":1,"c":2},"d":{}})");
  EXPECT_EQ(found["labels"]["a"].dump(), R"({"precision":0.5,"recall":0.5,"f1":0.5,"samples":2})");
  EXPECT_EQ(found["labels"]["b"].dump(), R"({"precision":0.0,"recall":null,"f1":0.0,"samples":0})");
  EXPECT_DOUBLE_EQ(found["labels"]["c"]["f1"], 0.8);
  EXPECT_EQ(found["labels"]["d"].dump(), R"({"precision":null,"recall":null,"f1":null,"samples":0})");
  EXPECT_NEAR(counts.f1_macro(), (0.5 + 0 + 0.8) / 3, 1e-14) << "as f1_macro of class_metrics()";
  EXPECT_NEAR(class_metrics(scores, {.resamples = 0})[2].value, counts.f1_macro(), 1e-14);
}

}  // namespace
}  // namespace furlong
