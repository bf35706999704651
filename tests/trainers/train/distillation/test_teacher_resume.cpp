// Training with a teacher: resuming, and every engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/framework/engine_testing.h"
#include "tests/trainers/train/distillation/teacher_testing.h"

namespace furlong {
namespace {

using namespace teacher_testing;
using testing::expect_equal_tensors;
using ::testing::HasSubstr;
using testing::message_of;

struct Case {
  const char* name;
  Overrides overrides;
};

std::vector<Case> cases(const TeacherTest&, const Overrides& transfer, const Overrides& distillation) {
  return {
      {"attention_transfer", transfer},
      {"transfer in turn", transfer + Overrides{"teacher.layers=layer_wise", "trainer.max_steps=8"}},
      {"transfer in turn, with constants",
       transfer + Overrides{"teacher.layers=layer_wise", "trainer.max_steps=6", "model.attention.centering=true",
                            "model.attention.feature_map=oprf"}},
      {"transfer on its own states", transfer + Overrides{"teacher.input=student", "trainer.gradient_accumulation=2"}},
      {"distillation", distillation + Overrides{"teacher.temperature=2", "optimizer.ema_decay=0.9"}},
      {"distillation and task", distillation + Overrides{"teacher.distillation_weight=0.5", "teacher.positions=all",
                                                         "model.dropout=0.1", "trainer.gradient_accumulation=2"}}};
}

TEST_F(TeacherTest, ResumesBitwise) {
  for (const Case& one : cases(*this, transfer(), distillation())) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, one.name);
    Trainer whole = student(one.overrides);
    for (int step = 0; step < 3; ++step) whole.step();
    whole.save(path("three.h5"));
    for (int step = 0; step < 3; ++step) whole.step();
    whole.save(path("six.h5"));
    Trainer resumed = trainer(one.overrides);
    resumed.load(CheckpointReader::open(path("three.h5")));
    for (int step = 0; step < 3; ++step) resumed.step();
    resumed.save(path("resumed.h5"));
    expect_equal_tensors(path("six.h5"), path("resumed.h5"));
  }
  Trainer other = trainer(linear);
  EXPECT_THAT(message_of<UserError>([&] { other.load(CheckpointReader::open(path("six.h5"))); }),
              HasSubstr("teacher.loss was distillation in the checkpoint and is none now"));
}

TEST_F(TeacherTest, LayerWiseResumeRoundsEachLayerByItsLastStep) {
  const Overrides rounded = transfer({"teacher.layers=layer_wise", "trainer.max_steps=8", "model.dtype=bfloat16",
                                      "optimizer.stochastic_rounding=true"});
  const auto copies = [](Trainer& one) {
    std::vector<std::vector<float>> values;
    for (const Parameter& parameter : one.model().store->parameters()) {
      const Tensor copy = parameter.variable().value();
      if (copy.dtype() != DType::bfloat16) continue;
      std::vector<float>& numbers = values.emplace_back();
      for (const bfloat16 value : copy.to_vector<bfloat16>()) numbers.push_back(static_cast<float>(value));
    }
    return values;
  };
  Trainer whole = student(rounded);
  for (int step = 0; step < 6; ++step) whole.step();  // the first layer's turn is over after four
  whole.save(path("six.h5"));
  Trainer resumed = trainer(rounded);
  resumed.load(CheckpointReader::open(path("six.h5")));
  EXPECT_EQ(copies(resumed), copies(whole));
  EXPECT_EQ(resumed.step().loss, whole.step().loss);
}

class TeacherOnEngines : public TeacherTest, public ::testing::WithParamInterface<DeviceType> {
 protected:
  void SetUp() override { testing::device_under_test() = Device{GetParam(), 0}; }
  void TearDown() override { testing::device_under_test() = Device{}; }
};
FURLONG_INSTANTIATE_ENGINES(TeacherOnEngines);
class TeacherOnGpus : public TeacherOnEngines {};
FURLONG_INSTANTIATE_GPUS(TeacherOnGpus);

TEST_P(TeacherOnEngines, LossesEqualCpuLosses) {
  for (const Case& one : cases(*this, transfer(), distillation())) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, one.name);
    Trainer here = student(one.overrides, testing::device()), cpu = student(one.overrides);
    // A divergence is the small difference of two logarithms of up to ln 256, each of which is rounded.
    const double rounding = 0x1p-24 * 2 * std::log(256);
    for (int step = 0; step < 2; ++step) {
      const StepReport found = here.step(), expected = cpu.step();
      // float32 sums in another order; AdamW's first step, of the size of the learning rate whatever the gradient,
      // spreads them.
      EXPECT_NEAR(found.loss, expected.loss, (step == 0 ? 1e-5 : 1e-3) * expected.loss + rounding) << step;
      EXPECT_NEAR(found.gradient_norm, expected.gradient_norm, (step == 0 ? 1e-4 : 1e-2) * expected.gradient_norm)
          << step;
    }
    EXPECT_NEAR(here.validate().loss, cpu.validate().loss, 2e-3 * cpu.validate().loss);
  }
}

TEST_P(TeacherOnGpus, ReplayedStepsEqualRunStepsBitwise) {
  for (const Case& one : cases(*this, transfer(), distillation())) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, one.name);
    const auto run = [&](const char* graph) {
      Trainer trainer =
          student(one.overrides + Overrides{"data.sequence_length=16", std::string("trainer.cuda_graph=") + graph},
                  testing::device());
      std::vector<double> losses;
      int replayed = 0;
      for (int step = 0; step < 8; ++step) {
        losses.push_back(trainer.step().loss);
        replayed += trainer.replayed() ? 1 : 0;
      }
      return std::pair(losses, replayed);
    };
    const auto [replayed_losses, replays] = run("true");
    const auto [eager_losses, none] = run("false");
    EXPECT_EQ(replayed_losses, eager_losses);
    // Each layer's interval is recorded separately.
    EXPECT_EQ(replays, std::string(one.name).starts_with("transfer in turn") ? 4 : 6);
    EXPECT_EQ(none, 0);
  }
}

}  // namespace
}  // namespace furlong
