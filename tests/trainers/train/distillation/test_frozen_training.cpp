// Training with frozen parameters: checkpoints and resuming.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainers/training.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

using testing::small_settings;

class FrozenTraining : public testing::WithTemporaryFolder {
 protected:
  FrozenTraining()
      : store(testing::write_store(path("tokens.h5"), testing::synthetic_text(4000))),
        data(TokenizedDataset::open(store)) {}
  /// With LoRA adapters; the other weights are frozen.
  Trainer trainer() const {
    return Trainer(small_settings(store, {"model.lora_rank=2", "optimizer.ema_decay=0.5"}).settings, data, Device{});
  }
  std::string store;
  TokenizedDataset data;
};

TEST_F(FrozenTraining, FrozenParametersHaveNoMomentsInCheckpoints) {
  Trainer t = trainer();
  const ParameterStore& parameters = *t.model().store;
  ASSERT_GT(parameters.trained_parameter_count(), 0);
  ASSERT_LT(parameters.trained_parameter_count(), parameters.total_parameter_count());
  std::map<std::string, std::vector<float>> before;
  for (const Parameter& parameter : parameters.parameters())
    before[parameter.name()] = parameter.master().to_vector<float>();
  for (int i = 0; i < 3; ++i) t.step();
  t.save(path("model.h5"));
  const auto checkpoint = CheckpointReader::open(path("model.h5"));
  int frozen = 0, trained = 0;
  for (const Parameter& parameter : parameters.parameters()) {
    if (parameters.is_buffer(parameter)) continue;
    const std::string& name = parameter.name();
    SCOPED_TRACE(name);
    EXPECT_TRUE(checkpoint.has("parameters/" + name));
    const bool moves = parameters.is_trained(parameter);
    for (const char* state : {"first_moments/", "second_moments/", "ema/"})
      EXPECT_EQ(checkpoint.has(state + name), moves) << state;
    if (moves) {
      ++trained;
    } else {
      ++frozen;
      EXPECT_EQ(parameter.master().to_vector<float>(), before[name]);
    }
  }
  EXPECT_GT(frozen, 0);
  EXPECT_GT(trained, 0);
}

TEST_F(FrozenTraining, ResumesBitwise) {
  Trainer whole = trainer();
  for (int i = 0; i < 5; ++i) whole.step();
  {
    Trainer before = trainer();
    for (int i = 0; i < 2; ++i) before.step();
    before.save(path("stop.h5"));
  }
  Trainer after = trainer();
  // Loaded values must come from the file.
  for (const Parameter& parameter : after.model().store->parameters()) parameter.master().fill_zero();
  after.load(CheckpointReader::open(path("stop.h5")));
  while (after.steps() < whole.steps()) after.step();
  for (const Parameter& parameter : whole.model().store->parameters()) {
    EXPECT_EQ(parameter.master().to_vector<float>(),
              after.model().store->find(parameter.name()).master().to_vector<float>())
        << parameter.name();
  }
  EXPECT_EQ(whole.validate().loss, after.validate().loss);
}

/// Loads a checkpoint of an unfrozen run into a model with frozen parameters, with EMA where requested.
TEST_F(FrozenTraining, LoadsCheckpointOfUnfrozenRun) {
  Trainer all(small_settings(store, {"optimizer.ema_decay=0.5"}).settings, data, Device{});
  for (int i = 0; i < 3; ++i) all.step();
  all.save(path("whole.h5"));
  const auto checkpoint = CheckpointReader::open(path("whole.h5"));
  for (const Weights weights : {Weights::raw, Weights::ema_if_present}) {
    const Model frozen = load_model(checkpoint, Device{}, weights, [](const Parameter&) { return true; });
    EXPECT_EQ(frozen.store->trained_parameter_count(), 0);
    const Model trained = load_model(checkpoint, Device{}, weights);
    for (const Parameter& parameter : trained.store->parameters()) {
      EXPECT_EQ(parameter.master().to_vector<float>(), frozen.store->find(parameter.name()).master().to_vector<float>())
          << parameter.name();
    }
  }
}

}  // namespace
}  // namespace furlong
