// Metrics of classifiers against scikit-learn's (tests/parity/label_metrics.py), and their bootstrap intervals.
#include "evaluation/label_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "framework/core/error.h"
#include "framework/core/random.h"
#include "tests/places.h"

namespace furlong {
namespace {

using Json = nlohmann::json;

struct GoldenCase {
  std::string name;
  ClassScores scores;
  Json metrics;
};

std::vector<GoldenCase> golden_cases() {
  std::ifstream file(testing::source_directory() / "tests/parity/goldens/label_metrics.json");
  const Json all = Json::parse(file);
  std::vector<GoldenCase> found;
  for (const auto& [name, one] : all.items())
    found.push_back({name, {one["classes"], one["labels"], one["scores"]}, one["metrics"]});
  return found;
}

double value_of(const std::vector<Metric>& metrics, const std::string& name) {
  for (const Metric& metric : metrics) {
    if (metric.name == name) return metric.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return 0;
}

TEST(LabelMetrics, EqualThoseOfScikitLearn) {
  const std::vector<GoldenCase> cases = golden_cases();
  ASSERT_EQ(cases.size(), 6u);
  for (const GoldenCase& one : cases) {
    const std::vector<Metric> found = class_metrics(one.scores, {.resamples = 0});
    ASSERT_EQ(found.size(), one.metrics.size());
    for (const Metric& metric : found) {
      EXPECT_NEAR(metric.value, one.metrics.at(metric.name).get<double>(), 1e-12) << one.name << ": " << metric.name;
      EXPECT_TRUE(std::isnan(metric.low) && std::isnan(metric.high));
    }
  }
}

/// The interval by its definition: metrics of lists of drawn samples.
TEST(LabelMetrics, IntervalsHoldTheMiddleOfResampledValues) {
  const std::vector<GoldenCase> cases = golden_cases();
  const auto found_case =
      std::find_if(cases.begin(), cases.end(), [](const auto& c) { return c.name == "four classes"; });
  ASSERT_NE(found_case, cases.end());
  const GoldenCase& one = *found_case;
  const std::size_t n = one.scores.labels.size(), classes = 4;
  const Bootstrap bootstrap{.resamples = 41, .seed = 7};
  std::map<std::string, std::vector<double>> values;
  for (std::uint32_t resample = 0; resample < 41; ++resample) {
    ClassScores drawn{.n_classes = 4};
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t i = random_word({7, resample, random_stream("bootstrap")}, k) * std::uint64_t{n} >> 32;
      drawn.labels.push_back(one.scores.labels[i]);
      const auto row = one.scores.scores.begin() + static_cast<std::ptrdiff_t>(i * classes);
      drawn.scores.insert(drawn.scores.end(), row, row + classes);
    }
    for (const Metric& metric : class_metrics(drawn, {.resamples = 0})) values[metric.name].push_back(metric.value);
  }
  const std::vector<Metric> found = class_metrics(one.scores, bootstrap);
  for (const Metric& metric : found) {
    std::vector<double>& sorted = values[metric.name];
    std::sort(sorted.begin(), sorted.end());
    // Places 1 and 39 of 0 to 40 are the quantiles 0.025 and 0.975.
    EXPECT_NEAR(metric.low, sorted[1], 1e-12) << metric.name;
    EXPECT_NEAR(metric.high, sorted[39], 1e-12) << metric.name;
    EXPECT_LT(metric.low, metric.high);
  }
  const std::vector<Metric> other = class_metrics(one.scores, {.resamples = 41, .seed = 8});
  EXPECT_NE(other[4].low, found[4].low);
  EXPECT_EQ(other[4].value, found[4].value);
}

// The interval of a mean over n samples has about 2 * 1.96 standard errors.
TEST(LabelMetrics, IntervalOfAccuracyHasTheWidthOfItsStandardError) {
  ClassScores scores{.n_classes = 2};
  for (int i = 0; i < 400; ++i) {
    scores.labels.push_back(i % 2);
    const bool right = i % 5 != 0;
    scores.scores.insert(scores.scores.end(), {right == (i % 2 == 0) ? 0.9 : 0.1, right == (i % 2 == 1) ? 0.9 : 0.1});
  }
  const Metric accuracy = class_metrics(scores)[0];
  EXPECT_DOUBLE_EQ(accuracy.value, 0.8);
  EXPECT_NEAR(accuracy.high - accuracy.low, 2 * 1.96 * std::sqrt(0.8 * 0.2 / 400), 0.01);
  EXPECT_NEAR((accuracy.high + accuracy.low) / 2, 0.8, 0.005);
}

TEST(LabelMetrics, ClassesWithoutSamplesAreLeftOutOfMeans) {
  // Class 2 has no sample; class 0 is predicted for the second sample of class 1.
  const ClassScores three{3, {0, 1, 1, 0}, {.8, .1, .1, .5, .4, .1, .1, .7, .2, .6, .3, .1}};
  const auto found = class_metrics(three, {.resamples = 0});
  EXPECT_DOUBLE_EQ(value_of(found, "balanced_accuracy"), 0.75);
  EXPECT_DOUBLE_EQ(value_of(found, "f1_macro"), (0.8 + 2.0 / 3) / 2);
  EXPECT_DOUBLE_EQ(value_of(found, "auroc"), 1);
  const ClassScores one{2, {1, 1, 1}, {.1, .9, .8, .2, .3, .7}};
  const auto alone = class_metrics(one, {.resamples = 10});
  EXPECT_DOUBLE_EQ(value_of(alone, "balanced_accuracy"), 2.0 / 3);
  EXPECT_EQ(value_of(alone, "mcc"), 0);
  EXPECT_TRUE(std::isnan(value_of(alone, "auroc")) && std::isnan(value_of(alone, "auprc")));
  EXPECT_TRUE(std::isnan(alone[4].low));
}

// Of 60 samples three have class 1, and all are missing in about 5% of the resamples; a single one in 37%.
TEST(LabelMetrics, IntervalsOfMeansLeaveOutResamplesWithoutARareClass) {
  ClassScores always_zero{.n_classes = 2};
  for (int i = 0; i < 60; ++i) {
    always_zero.labels.push_back(i < 3 ? 1 : 0);
    always_zero.scores.insert(always_zero.scores.end(), {0.9, 0.1});
  }
  const std::vector<Metric> found = class_metrics(always_zero);
  EXPECT_EQ(found[1].low, 0.5) << found[1].name;
  EXPECT_EQ(found[1].high, 0.5) << "no constant prediction has a higher balanced accuracy";
  EXPECT_LT(found[2].high, 0.5) << found[2].name;
  EXPECT_EQ(found[0].high, 1) << "accuracy has all resamples";
  always_zero.labels[1] = always_zero.labels[2] = 0;
  const std::vector<Metric> one_sample = class_metrics(always_zero);
  for (const int mean : {1, 2, 4, 5}) EXPECT_TRUE(std::isnan(one_sample[mean].low)) << one_sample[mean].name;
  EXPECT_TRUE(std::isfinite(one_sample[0].low) && std::isfinite(one_sample[3].low));
  // Class 2 has no sample and one wrong prediction: a resample without it counts F1 0 as the whole split does.
  ClassScores one_stray{.n_classes = 3};
  for (int i = 0; i < 40; ++i) {
    one_stray.labels.push_back(i % 2);
    const int predicted = i == 0 ? 2 : i % 2;
    for (int k = 0; k < 3; ++k) one_stray.scores.push_back(k == predicted ? 0.8 : 0.1);
  }
  const Metric f1 = class_metrics(one_stray)[2];
  EXPECT_NEAR(f1.value, (1 + 2 * 19.0 / 39 + 0) / 3, 1e-12);
  EXPECT_LE(f1.high, 2.0 / 3);
}

TEST(LabelMetrics, ScoresOfADivergedModelEnd) {
  const double nan = std::nan("");
  const auto found = class_metrics({2, {0, 1, 1}, {nan, nan, nan, nan, nan, nan}}, {.resamples = 3});
  EXPECT_DOUBLE_EQ(found[0].value, 1.0 / 3) << "the first class of equals";
  const auto partly = class_metrics({2, {0, 1, 1, 0}, {.9, .1, nan, nan, .2, .8, .7, .3}}, {.resamples = 0});
  EXPECT_TRUE(std::isnan(value_of(partly, "auroc")) && std::isnan(value_of(partly, "auprc")));
  EXPECT_THROW(class_metrics({2, {}, {}}), ContractError);
}

}  // namespace
}  // namespace furlong
