#include "framework/ops/optimizer/step_control.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/framework/engine_testing.h"

namespace furlong {
namespace {

using namespace ops;

class StepControl : public testing::EngineTest {
 protected:
  static std::vector<double> decided(double clip, double threshold, double loss, double sum_of_squares) {
    std::vector<double> numbers(step_numbers, -1);
    numbers[step_gradient_clip] = clip, numbers[step_outlier_threshold] = threshold;
    numbers[step_loss] = loss, numbers[step_sum_of_squares] = sum_of_squares;
    const Tensor tensor = Tensor::from(numbers, {step_numbers}, testing::device());
    control_step(testing::stream(), tensor);
    return tensor.to_vector<double>();
  }
};
FURLONG_INSTANTIATE_ENGINES(StepControl);

TEST_P(StepControl, ScalesDownToTheClipButNeverUp) {
  for (const auto& [clip, scale] : {std::pair{1.0, 0.25}, {8.0, 1.0}, {4.0, 1.0}, {0.0, 1.0}}) {
    const auto found = decided(clip, 0, 2, 16);
    EXPECT_EQ(found[step_gradient_norm], 4);
    EXPECT_EQ(found[step_gradient_scale], scale);
    EXPECT_EQ(found[step_skipped], 0);
    EXPECT_EQ(found[step_learning_rate], -1);  // unchanged
  }
}

TEST_P(StepControl, SkipsStepsAboveTheThresholdOrNotFinite) {
  constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(decided(1, 3.9, 2, 16)[step_skipped], 1);
  EXPECT_EQ(decided(1, 4, 2, 16)[step_skipped], 0);
  EXPECT_EQ(decided(1, 0, nan, 16)[step_skipped], 1);
  EXPECT_EQ(decided(1, 0, -infinity, 16)[step_skipped], 1);
  EXPECT_EQ(decided(1, 0, 2, infinity)[step_skipped], 1);
  EXPECT_EQ(decided(1, 0, 2, nan)[step_skipped], 1);
}

TEST(StepControlContract, RejectsOtherTensors) {
  EXPECT_THROW(control_step(Stream{}, Tensor::zeros({4}, DType::float64)), ContractError);
  EXPECT_THROW(control_step(Stream{}, Tensor::zeros({step_numbers}, DType::float32)), ContractError);
}

}  // namespace
}  // namespace furlong
