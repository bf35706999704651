// Whole training steps on every engine: CPU and GPU give the same result from the same YAML and checkpoint.
#include <gtest/gtest.h>

#include <cmath>

#include "framework/core/device_fault.h"
#include "tests/framework/engine_testing.h"
#include "tests/trainers/training.h"
#include "trainers/train/step_graph.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

struct Case {
  const char* name;
  std::vector<std::string> overrides;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"softmax_llama",
       {"model.attention.mechanism=softmax", "model.norm=rmsnorm", "model.activation=swiglu", "model.bias=false"}},
      {"favor_positive_gpt2",
       {"model.attention.mechanism=linear", "model.attention.feature_map=favor_positive", "model.position=learned",
        "model.dropout=0.1"}},
      {"elu1_convolution",
       {"model.attention.mechanism=linear", "model.attention.feature_map=elu1", "model.short_convolution=4"}},
      {"windowed", {"model.attention.mechanism=windowed", "model.attention.softmax_window=8"}},
      {"windowed_encoder",
       {"model.architecture=encoder", "objective.name=masked_tokens", "model.attention.mechanism=windowed",
        "model.attention.softmax_window=4", "model.attention.feature_map=favor_hyperbolic", "data.packing=documents"}},
      {"oprf_packed",
       {"model.attention.mechanism=linear", "model.attention.feature_map=oprf", "data.packing=documents",
        "trainer.gradient_accumulation=2"}},
      {"trig_guarded", {"model.attention.mechanism=linear", "model.attention.feature_map=favor_trig"}},
      {"linformer_masked",
       {"model.architecture=encoder", "objective.name=masked_tokens", "model.attention.mechanism=linformer",
        "model.attention.projected_length=8"}},
      {"recomputed_blocks",
       {"model.attention.mechanism=linear", "trainer.activation_checkpointing=blocks", "optimizer.ema_decay=0.9"}},
  };
  return all;
}

class TrainingOnEngines : public testing::WithTemporaryFolder, public ::testing::WithParamInterface<DeviceType> {
 protected:
  TrainingOnEngines()
      : data_(TokenizedDataset::open(testing::write_store(path("tokens.h5"), testing::synthetic_text(4000)))) {}
  void SetUp() override { testing::device_under_test() = Device{GetParam(), 0}; }
  void TearDown() override { testing::device_under_test() = Device{}; }

  Trainer trainer(const std::vector<std::string>& overrides, const Device& device) {
    return Trainer(testing::small_settings(path("tokens.h5"), overrides).settings, data_, device);
  }
  /// Trains on 640 tokens from now on: ten windows of 60, and a short one.
  void use_short_text() {
    data_ = TokenizedDataset::open(testing::write_store(path("short.h5"), testing::synthetic_text(800)));
  }

 private:
  TokenizedDataset data_;
};
FURLONG_INSTANTIATE_ENGINES(TrainingOnEngines);
class TrainingOnGpus : public TrainingOnEngines {};  // the CPU runs every step and records none
FURLONG_INSTANTIATE_GPUS(TrainingOnGpus);

TEST_P(TrainingOnEngines, LossesEqualCpuLosses) {
  for (const Case& one : cases()) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, one.name);
    Trainer here = trainer(one.overrides, testing::device()), cpu = trainer(one.overrides, Device{});
    // The initial bits are equal. Each step adds rounding (float32: 1e-7 per sum), which AdamW's first steps, of the
    // size of the learning rate whatever the gradient, magnify where gradients are near zero.
    for (int step = 0; step < 4; ++step) {
      const StepReport found = here.step(), expected = cpu.step();
      EXPECT_NEAR(found.loss, expected.loss, (step == 0 ? 2e-6 : 2e-4) * expected.loss) << step;
      EXPECT_NEAR(found.gradient_norm, expected.gradient_norm, (step == 0 ? 2e-5 : 2e-3) * expected.gradient_norm)
          << step;
      EXPECT_EQ(found.tokens, expected.tokens);
      EXPECT_EQ(found.denominators.rows, expected.denominators.rows);
    }
    EXPECT_NEAR(here.validate().loss, cpu.validate().loss, 1e-3);
  }
}

TEST_P(TrainingOnGpus, ReplayedStepsEqualRunStepsBitwise) {
  // With the state of the run and the checkpoint at its end.
  const auto run = [&](std::vector<std::string> overrides, const char* graph, const std::string& file) {
    overrides.push_back(std::string("trainer.cuda_graph=") + graph);
    Trainer one = trainer(overrides, testing::device());
    std::vector<double> losses;
    int replayed = 0;
    for (int step = 0; step < 8; ++step) {
      if (step == 5) one.validate();
      losses.push_back(one.step().loss);
      replayed += one.replayed() ? 1 : 0;
    }
    one.save(path(file));
    return std::pair(losses, replayed);
  };
  const auto expect_same = [&](const std::vector<std::string>& overrides, int expected_replays) {
    const auto [replayed_losses, replays] = run(overrides, "true", "replayed.h5");
    const auto [eager_losses, none] = run(overrides, "false", "eager.h5");
    EXPECT_EQ(replays, expected_replays);
    EXPECT_EQ(none, 0);
    EXPECT_EQ(replayed_losses, eager_losses);
    const CheckpointReader replayed = CheckpointReader::open(path("replayed.h5")),
                           eager = CheckpointReader::open(path("eager.h5"));
    for (const TensorInfo& info : eager.tensors()) {
      std::vector<char> x(info.bytes), y(info.bytes);
      replayed.read(info.name, x.data(), info.bytes);
      eager.read(info.name, y.data(), info.bytes);
      EXPECT_EQ(x, y) << info.name;
    }
  };
  for (const char* dtype : {"float32", "bfloat16"}) {
    expect_same(
        {"data.sequence_length=16", "model.attention.mechanism=linear", "model.dropout=0.2", "optimizer.ema_decay=0.9",
         "model.attention.redraw_every=3", "trainer.gradient_accumulation=2", std::string("model.dtype=") + dtype},
        6);
  }
  expect_same({"data.sequence_length=16", "model.attention.mechanism=linear", "model.dtype=bfloat16",
               "optimizer.stochastic_rounding=true", "optimizer.ema_decay=0.9"},
              6);
  // The last window of a pass is short and masked: a recording without a mask must not be replayed for it. Of 11
  // windows the sixth batch has it: two steps run, three replayed, that one run, two run anew.
  use_short_text();
  expect_same({"model.architecture=encoder", "objective.name=masked_tokens", "model.attention.mechanism=linear",
               "data.sampler=sequential", "data.sequence_length=60"},
              3);
}

TEST_P(TrainingOnGpus, ReplayKeepsTablesAfterLongerSequence) {
  const auto run = [&](std::vector<std::string> overrides, const char* graph) {
    overrides.push_back(std::string("trainer.cuda_graph=") + graph);
    Trainer one = trainer(overrides, testing::device());
    std::vector<double> losses;
    std::vector<Tensor> others;  // take whatever memory was given back, and spoil it
    bool replayed = false;
    for (int step = 0; step < 6; ++step) {
      if (step == 4) {  // as a validation with longer sequences does
        Tape tape{testing::stream()};
        layers::ForwardContext context{tape};
        const Tensor tokens = Tensor::from(std::vector<std::int32_t>(2 * 64, 3), {2, 64}, testing::device());
        one.model().decoder->hidden(context, tokens);
        for (const std::int64_t bytes : {256, 1024, 2048, 4096}) {
          for (int i = 0; i < 50; ++i)
            others.push_back(Tensor::from(std::vector<float>(bytes / 4, 1e4f), {bytes / 4}, testing::device()));
        }
      }
      losses.push_back(one.step().loss);
      replayed = one.replayed();
    }
    return std::pair(losses, replayed);
  };
  for (const char* position : {"model.position=rotary", "model.position=sinusoidal"}) {
    const std::vector<std::string> overrides{"model.attention.mechanism=linear", "model.n_segments=2", position};
    const auto [replayed_losses, replayed] = run(overrides, "true");
    const auto [eager_losses, none] = run(overrides, "false");
    EXPECT_TRUE(replayed);
    EXPECT_FALSE(none);
    EXPECT_EQ(replayed_losses, eager_losses) << position;
  }
}

TEST_P(TrainingOnGpus, DeviceFaultIsNotCaptureRefusal) {
  StepGraph graph(testing::device());
  const auto steps = [&](int n) {
    for (int step = 0; step < n; ++step) graph.run("steady", [] {});
  };
  steps(2);  // the third would be recorded
  EXPECT_THROW(graph.run("steady", [] { throw DeviceFault("work launched earlier on the device failed"); }),
               DeviceFault);
  synchronize(testing::stream());  // throws while work is being recorded
  steps(1);
  EXPECT_TRUE(graph.replayed());

  // A request that cannot be recorded is refused, and the step runs.
  graph.forget();
  steps(2);
  int runs = 0;
  graph.run("steady", [&] {
    if (++runs == 1) throw MachineError("out of memory");
  });
  EXPECT_EQ(runs, 2);
  EXPECT_FALSE(graph.replayed());
}

TEST_P(TrainingOnGpus, RecordingsOfAlternatingShapesReuseMemory) {
  StepGraph graph(testing::device());
  const auto cycle = [&] {
    for (const auto& [shapes, elements] : {std::pair("long", 1 << 20), std::pair("short", 1 << 18)}) {
      for (int step = 0; step < 4; ++step) {
        graph.run(shapes, [&, n = elements] {
          const Tensor first = Tensor::zeros({n}, DType::float32, testing::device());
          const Tensor second = first.clone();
        });
      }
      EXPECT_TRUE(graph.replayed());
    }
  };
  for (int i = 0; i < 2; ++i) cycle();
  const std::int64_t before = arena(testing::device()).counters().system_bytes;
  for (int i = 0; i < 10; ++i) cycle();
  EXPECT_EQ(arena(testing::device()).counters().system_bytes, before);
}

TEST_P(TrainingOnEngines, SteadyStepAllocatesNoSystemMemory) {
  Trainer one = trainer({"model.attention.mechanism=linear"}, testing::device());
  for (int step = 0; step < 4; ++step) one.step();
  const ArenaCounters before = arena(testing::device()).counters();
  for (int step = 0; step < 3; ++step) one.step();
  const ArenaCounters after = arena(testing::device()).counters();
  EXPECT_EQ(after.system_requests, before.system_requests);
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
}

TEST_P(TrainingOnEngines, CheckpointResumesBitwiseAndOnCpu) {
  const std::vector<std::string> overrides{"model.attention.mechanism=linear", "model.dropout=0.1"};
  Trainer whole = trainer(overrides, testing::device());
  for (int step = 0; step < 3; ++step) whole.step();
  whole.save(path("three.h5"));
  for (int step = 0; step < 3; ++step) whole.step();
  whole.save(path("six.h5"));

  Trainer resumed = trainer(overrides, testing::device());
  resumed.load(CheckpointReader::open(path("three.h5")));
  for (int step = 0; step < 3; ++step) resumed.step();
  resumed.save(path("resumed.h5"));
  testing::expect_equal_tensors(path("six.h5"), path("resumed.h5"));

  Trainer cpu = trainer(overrides, Device{});
  cpu.load(CheckpointReader::open(path("six.h5")));
  EXPECT_NEAR(cpu.validate().loss, whole.validate().loss, 1e-5);
}

TEST_P(TrainingOnEngines, PrefetchedInputIsBitwiseEqual) {
  // A run with prefetched inputs, and the same one stopped and resumed after each step, which prevents prefetching.
  const std::vector<std::vector<std::string>> runs{
      {"model.attention.mechanism=linear", "trainer.gradient_accumulation=2"},
      {"model.architecture=encoder", "objective.name=masked_tokens", "model.attention.mechanism=linear",
       "data.sampler=sequential", "data.sequence_length=60", "data.packing=documents"}};
  use_short_text();
  for (const auto& overrides : runs) {
    Trainer whole = trainer(overrides, testing::device());
    // Compared at the first step, at replayed ones, and at the sixth batch, which in the second run has a mask.
    for (int step = 0; step < 7; ++step) {
      if (step % 3 == 1 || step == 2) {
        whole.step();
        continue;
      }
      whole.save(path("before.h5"));
      Trainer resumed = trainer(overrides, testing::device());
      resumed.load(CheckpointReader::open(path("before.h5")));
      const StepReport expected = resumed.step(), found = whole.step();
      EXPECT_EQ(found.loss, expected.loss) << step;
      EXPECT_EQ(found.gradient_norm, expected.gradient_norm) << step;
    }
  }
}

TEST_P(TrainingOnEngines, StochasticRoundingResumesBitwise) {
  // With validation by the EMA in between.
  const std::vector<std::string> overrides{
      "model.attention.mechanism=linear",   "model.dropout=0.1",       "model.dtype=bfloat16",
      "optimizer.stochastic_rounding=true", "optimizer.ema_decay=0.9", "optimizer.learning_rate=0.001",
      "trainer.gradient_accumulation=2",    "trainer.cuda_graph=true"};
  const auto copies = [](Trainer& one) {
    std::vector<std::uint16_t> bits;
    for (const bfloat16 value : one.model().store->compute_values().to_vector<bfloat16>()) bits.push_back(value.bits);
    return bits;
  };
  Trainer whole = trainer(overrides, testing::device());
  for (int step = 0; step < 3; ++step) whole.step();
  const auto after_three = copies(whole);
  whole.save(path("three.h5"));
  whole.validate();
  EXPECT_EQ(copies(whole), after_three);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) losses.push_back(whole.step().loss);
  whole.save(path("six.h5"));

  Trainer resumed = trainer(overrides, testing::device());
  resumed.load(CheckpointReader::open(path("three.h5")));
  EXPECT_EQ(copies(resumed), after_three);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(resumed.step().loss, losses[static_cast<std::size_t>(step)]) << step;
  resumed.save(path("resumed.h5"));
  testing::expect_equal_tensors(path("six.h5"), path("resumed.h5"));
  EXPECT_EQ(copies(resumed), copies(whole));

  // Without it the same checkpoint continues from values rounded to nearest.
  std::vector<std::string> nearest = overrides;
  nearest[3] = "optimizer.stochastic_rounding=false";
  Trainer other = trainer(nearest, testing::device());
  other.load(CheckpointReader::open(path("three.h5")));
  EXPECT_NE(copies(other), after_three);
}

TEST_P(TrainingOnEngines, ReportsNanAndKeepsState) {
  Trainer one = trainer({"model.attention.mechanism=linear"}, testing::device());
  one.step();
  Parameter& parameter = one.model().store->find("blocks.0.feedforward.output.weight");
  std::vector<float> values = parameter.master().to_vector<float>();
  values[3] = std::nanf("");
  parameter.master().copy_from(Tensor::from(values, parameter.shape()));
  one.model().store->refresh_compute_values(testing::stream());
  const std::vector<float> before = one.model().store->values().to_vector<float>();
  EXPECT_THROW(one.step(), NonFiniteError);
  const std::vector<float> after = one.model().store->values().to_vector<float>();
  EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace furlong
