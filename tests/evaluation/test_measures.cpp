// Measures of predicted labels, against SciPy (pearsonr, spearmanr) and scikit-learn (f1_score, roc_auc_score).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "evaluation/measures/multi_label.h"
#include "evaluation/measures/regression.h"
#include "evaluation/measures/token_labels.h"

namespace furlong {
namespace {

TEST(Measures, CorrelationsEqualSciPy) {
  const std::vector<double> x{1.5, -0.25, 3, 3, 0.5, 2, -1, 4.25}, y{2, 0.5, 2.5, 3.5, 0.5, 0.5, -2, 3};
  EXPECT_NEAR(pearson_correlation(x, y), 0.8811676901832254, 1e-14);
  EXPECT_NEAR(spearman_correlation(x, y), 0.8835852486128687, 1e-14);
  EXPECT_NEAR(root_mean_squared_error(x, y), 0.875, 1e-14);
  EXPECT_TRUE(std::isnan(pearson_correlation(x, std::vector<double>(8, 0.1))));
  EXPECT_TRUE(std::isnan(spearman_correlation({}, {})));
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
  TokenLabelCounts counts(4);  // the last label does not occur
  for (std::size_t i = 0; i < targets.size(); ++i) counts.add(targets[i], predicted[i]);
  EXPECT_NEAR(counts.f1_macro(), 0.7071428571428572, 1e-14);
  EXPECT_EQ(counts.decisions(1).true_positives, 3);
  EXPECT_EQ(counts.decisions(1).false_positives, 1);
  EXPECT_EQ(counts.decisions(1).false_negatives, 1);
}

}  // namespace
}  // namespace furlong
