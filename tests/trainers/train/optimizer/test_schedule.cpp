#include "trainers/train/optimizer/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace furlong {
namespace {

constexpr double peak = 0.02;

Settings settings(const std::string& name, std::int64_t warmup, std::int64_t decay = 0, double final_fraction = 0.1,
                  std::int64_t max_steps = 1000) {
  Settings result;
  result.optimizer.learning_rate = peak;
  result.schedule = {name, warmup, final_fraction, decay};
  result.trainer.max_steps = max_steps;
  return resolve(result);
}

const char* const all_names[] = {"constant", "linear", "cosine", "inverse_square_root", "warmup_stable_decay"};

TEST(Schedule, WarmupRisesLinearlyToPeak) {
  for (const char* name : all_names) {
    const Settings s = settings(name, 40);
    for (std::int64_t step = 0; step < 40; ++step)
      EXPECT_NEAR(learning_rate(s, step), peak * static_cast<double>(step + 1) / 40, 1e-15) << name << " " << step;
  }
}

TEST(Schedule, FirstStepHasPeakWithoutWarmup) {
  for (const char* name : {"constant", "linear", "cosine", "warmup_stable_decay"})
    EXPECT_DOUBLE_EQ(learning_rate(settings(name, 0), 0), peak) << name;
}

// A jump would be an error at the border of two parts. The steepest expected change is that of the shortest part.
TEST(Schedule, ScheduleHasNoJumps) {
  for (const char* name : all_names) {
    const Settings s = settings(name, 50, std::string(name) == "warmup_stable_decay" ? 100 : 0);
    for (std::int64_t step = 1; step < 1200; ++step) {
      const double change = learning_rate(s, step) - learning_rate(s, step - 1);
      const double allowed = step < 50 ? peak / 50 : peak / 100;
      EXPECT_LE(std::abs(change), allowed * (1 + 1e-9)) << name << " " << step;
      if (step >= 50) {
        EXPECT_LE(change, 0) << name << " rises after the warmup, at step " << step;
      }
    }
  }
}

TEST(Schedule, ConstantStaysAtPeak) {
  for (const std::int64_t step : {40, 500, 999, 100'000})
    EXPECT_DOUBLE_EQ(learning_rate(settings("constant", 40), step), peak);
}

TEST(Schedule, LinearInterpolatesBetweenItsEnds) {
  const Settings s = settings("linear", 100, 401, 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(s, 99), peak);
  EXPECT_DOUBLE_EQ(learning_rate(s, 100), peak);
  EXPECT_NEAR(learning_rate(s, 200), peak * (1 - 0.75 * 0.25), 1e-15);
  EXPECT_NEAR(learning_rate(s, 300), peak * (1 - 0.75 * 0.5), 1e-15);
  EXPECT_NEAR(learning_rate(s, 500), peak * 0.25, 1e-15);
  EXPECT_NEAR(learning_rate(s, 900), peak * 0.25, 1e-15) << "it stays at the end";
}

TEST(Schedule, CosineIsHalfPeriodBetweenItsEnds) {
  const Settings s = settings("cosine", 100, 401, 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(s, 100), peak);
  EXPECT_NEAR(learning_rate(s, 200), peak * (0.2 + 0.8 * 0.5 * (1 + std::sqrt(0.5))), 1e-15);
  EXPECT_NEAR(learning_rate(s, 300), peak * 0.6, 1e-15);
  EXPECT_NEAR(learning_rate(s, 500), peak * 0.2, 1e-15);
  EXPECT_NEAR(learning_rate(s, 999), peak * 0.2, 1e-15);
}

TEST(Schedule, DecayEndsWithRunByDefault) {
  for (const char* name : {"linear", "cosine", "warmup_stable_decay"}) {
    const Settings s = settings(name, 100);
    EXPECT_NEAR(learning_rate(s, 999), peak * 0.1, 1e-15) << name;
    EXPECT_GT(learning_rate(s, 998), peak * 0.1 + 1e-9) << name;
  }
}

TEST(Schedule, InverseSquareRootDecaysAfterWarmup) {
  const Settings s = settings("inverse_square_root", 64);
  EXPECT_DOUBLE_EQ(learning_rate(s, 63), peak);
  EXPECT_NEAR(learning_rate(s, 64), peak * std::sqrt(64.0 / 65.0), 1e-15);
  EXPECT_NEAR(learning_rate(s, 255), peak / 2, 1e-15);
  EXPECT_NEAR(learning_rate(s, 64 * 10'000 - 1), peak / 100, 1e-15);
}

TEST(Schedule, WarmupStableDecayIsConstantBeforeDecay) {
  const Settings s = settings("warmup_stable_decay", 100, 200, 0.0);
  for (const std::int64_t step : {100, 400, 799}) EXPECT_DOUBLE_EQ(learning_rate(s, step), peak) << step;
  EXPECT_NEAR(learning_rate(s, 800), peak * (1 - 1.0 / 200), 1e-15);
  EXPECT_NEAR(learning_rate(s, 899), peak * 0.5, 1e-15);
  EXPECT_NEAR(learning_rate(s, 999), 0, 1e-15);
  EXPECT_NEAR(learning_rate(s, 1500), 0, 1e-15);
}

TEST(Schedule, HandlesDecayAndRunOfOneStep) {
  EXPECT_NEAR(learning_rate(settings("linear", 0, 1, 0.5), 0), peak * 0.5, 1e-15);
  for (const char* name : all_names) {
    const double rate = learning_rate(settings(name, 1, 0, 0.1, 1), 0);
    EXPECT_DOUBLE_EQ(rate, peak) << name;
  }
}

}  // namespace
}  // namespace furlong
