// Several ranks on GPUs: on simulated devices, with the library that stands in for NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/communication/communicator_testing.h"
#include "tests/trainers/parallel_testing.h"
#include "tests/trainers/training.h"
#include "trainers/train/parallel/process_devices.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

using communicator_testing::Engine;
using parallel_testing::Curves;
using parallel_testing::Report;
using parallel_testing::run_world;
using parallel_testing::World;
using parallel_testing::WorldOptions;
using store_testing::message_of;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

const Device simulated{DeviceType::simulated, 0};

class DataParallelGpuTest : public testing::WithTemporaryFolder {
 protected:
  void SetUp() override {
    if (const std::string reason = communicator_testing::engine_missing(Engine::nccl_stand_in, 2); !reason.empty())
      GTEST_SKIP() << reason;
    testing::write_store(path("text.h5"), testing::synthetic_text(2000));
  }
  Settings settings(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all{"data.batch_size=3", "data.sequence_length=12", "model.n_layers=1",
                                 "trainer.validation_batches=1", "model.vocabulary_size=256"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return testing::small_settings(path("text.h5"), all).settings;
  }
  static WorldOptions with_stand_in(std::chrono::milliseconds timeout = 15000ms) {
    WorldOptions options;
    options.timeout = timeout;
    options.before = [](int) {
      ::setenv("FURLONG_CUDA_LIBDIR", communicator_testing::stand_in_folder().c_str(), 1);
    };
    return options;
  }
  /// Loss and gradient norm of each step, then a validation loss, and a sum over the parameters' magnitudes.
  Curves curves(int processes, const Settings& settings, const Device& device, int steps = 4) const {
    return run_world(
        processes,
        [&](ProcessGroup& group, const Report& report) {
          const TokenizedDataset data = TokenizedDataset::open(path("text.h5"));
          Trainer trainer(settings, data, device, DType::float64, &group);
          for (int i = 0; i < steps; ++i) {
            const StepReport found = trainer.step();
            report.add({found.loss, found.gradient_norm});
          }
          report.add(trainer.validate().loss);
          double sum = 0;
          for (const double value : trainer.model().store->values().to_vector<double>()) sum += std::abs(value);
          report.add(sum);
        },
        with_stand_in());
  }
};

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-9 * std::abs(expected[i])) << i;
}

TEST_F(DataParallelGpuTest, LossesEqualOneProcess) {
  const Curves one = curves(1, settings(), simulated);
  for (const char* change : {"parallel.zero_stage=0", "parallel.zero_stage=1", "trainer.gradient_accumulation=1"}) {
    const Curves two = curves(2, settings({change}), simulated);
    expect_near(two[0], one[0]);
    EXPECT_EQ(two[0], two[1]) << "bit for bit";
  }
  expect_near(curves(2, settings(), Device{})[0], one[0]);
}

// Each rank records its third step and replays it, with the exchange between the parts of the recording, while
// validations and checkpoints come between.
TEST_F(DataParallelGpuTest, ReplayedStepsEqualRunStepsBitwise) {
  const auto run = [&](std::vector<std::string> overrides, const char* graphs, const std::filesystem::path& file) {
    overrides.push_back(std::string("trainer.cuda_graph=") + graphs);
    return run_world(
        2,
        [&, settings = settings(overrides)](ProcessGroup& group, const Report& report) {
          const TokenizedDataset data = TokenizedDataset::open(path("text.h5"));
          Trainer trainer(settings, data, simulated, std::nullopt, &group);
          for (int i = 0; i < 8; ++i) {
            const StepReport found = trainer.step();
            report.add({found.loss, found.gradient_norm});
            EXPECT_EQ(trainer.replayed(), std::string(graphs) == "true" && i >= 2) << i;
            if (i == 4) report.add(trainer.validate().loss);
            if (i == 5) trainer.save(file);
          }
          // In bfloat16 one bucket of 1 MB takes all matrices.
          EXPECT_EQ(trainer.reducer()->overlapped_buckets() > 0, settings.parallel.gradient_dtype == "float32");
          for (const float value : trainer.model().store->values().to_vector<float>()) report.add(value);
        },
        with_stand_in());
  };
  const std::vector<std::vector<std::string>> cases{
      {"parallel.zero_stage=0", "model.dropout=0.1"},
      {"parallel.zero_stage=1", "trainer.gradient_accumulation=2", "optimizer.ema_decay=0.9"},
      {"parallel.zero_stage=1", "parallel.gradient_dtype=bfloat16"},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::vector<std::string> overrides = cases[i];
    overrides.insert(overrides.end(), {"model.d_model=112", "model.n_layers=2", "parallel.bucket_megabytes=1"});
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, fmt::format("{}", fmt::join(overrides, " ")));
    const auto file = [&](const char* name) { return path(fmt::format("{}_{}.h5", name, i)); };
    const Curves replayed = run(overrides, "true", file("replayed")), eager = run(overrides, "false", file("eager"));
    EXPECT_EQ(replayed[0], eager[0]);
    EXPECT_EQ(replayed[1], eager[1]);
    testing::expect_equal_tensors(file("replayed"), file("eager"));
  }
}

// A rank that cannot record runs its steps while the other replays them.
TEST_F(DataParallelGpuTest, OneRankMayRunWhatAnotherReplays) {
  const auto run = [&](bool other_records) {
    return run_world(
        2,
        [&](ProcessGroup& group, const Report& report) {
          const bool records = group.is_first() || other_records;
          const TokenizedDataset data = TokenizedDataset::open(path("text.h5"));
          const Settings own = settings({fmt::format("trainer.cuda_graph={}", records)});
          Trainer trainer(own, data, simulated, std::nullopt, &group);
          for (int i = 0; i < 5; ++i) report.add(trainer.step().loss);
          EXPECT_EQ(trainer.replayed(), records);
        },
        with_stand_in());
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(DataParallelGpuTest, ReportsKilledRankAndEndsOthers) {
  World world(
      2,
      [&](ProcessGroup& group, const Report& report) {
        const TokenizedDataset data = TokenizedDataset::open(path("text.h5"));
        Trainer trainer(settings(), data, simulated, std::nullopt, &group);
        for (int i = 0; i < 4; ++i) trainer.step();
        EXPECT_TRUE(trainer.replayed());
        report.say("began");
        if (group.rank() == 1) ::kill(::getpid(), SIGKILL);
        for (;;) trainer.step();
      },
      with_stand_in(3000ms));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(world.wait(), (std::vector<int>{1, 128 + SIGKILL}));
  EXPECT_LT(parallel_testing::seconds_since(start), 60);
  EXPECT_THAT(world[0].errors(), HasSubstr("error: rank 1 on host here failed"));
}

// NCCL aborts during a step while all ranks are alive: the step must report an error, because its results are invalid.
class AbortedByNccl : public DataParallelGpuTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(InRunAndReplayedSteps, AbortedByNccl, ::testing::Values(5, 12));

TEST_P(AbortedByNccl, StepIsDiscarded) {
  WorldOptions options = with_stand_in(3000ms);
  options.before = [before = options.before](int rank) {
    before(rank);
    const std::string fault = fmt::format("operation {} breaks", GetParam());
    if (rank == 1) ::setenv("FURLONG_NCCL_STAND_IN_FAULT", fault.c_str(), 1);
  };
  World world(
      2,
      [&](ProcessGroup& group, const Report& report) {
        const TokenizedDataset data = TokenizedDataset::open(path("text.h5"));
        Trainer trainer(settings(), data, simulated, std::nullopt, &group);
        for (;;) {
          trainer.step();
          report.add(static_cast<double>(trainer.steps()));
        }
      },
      options);
  EXPECT_EQ(world.wait(), (std::vector<int>{1, 1}));
  EXPECT_THAT(world.errors(), HasSubstr("NCCL: remote process exited or there was a network error"));
  const std::size_t steps = world[0].numbers().size();  // two operations each
  EXPECT_LT(steps, static_cast<std::size_t>(GetParam()));
  EXPECT_GE(steps, GetParam() == 12 ? 3u : 0u) << "the fault was meant for a replayed step";
}

TEST_F(DataParallelGpuTest, RejectsBackendForOtherDevices) {
  run_world(2, [](ProcessGroup& group, const Report&) {
    const auto check = [&](const char* engine, const Device& device) {
      return message_of<UserError>([&] { check_process_devices(engine, device, group); });
    };
    EXPECT_THAT(check("gloo", simulated),
                HasSubstr("parallel.backend: gloo works between CPUs, but these ranks use simulated"));
    EXPECT_THAT(check("nccl", Device{}),
                HasSubstr("parallel.backend: nccl works between GPUs, but these ranks use cpu"));
    EXPECT_THAT(check("auto", group.is_first() ? simulated : Device{}),
                HasSubstr("device: rank 0 on here uses simulated, but rank 1 on here uses cpu"));
    check_process_devices("auto", Device{}, group);
    check_process_devices("gloo", Device{}, group);
    check_process_devices("nccl", simulated, group);
    check_process_devices("auto", simulated, group);
  });
}

TEST(ProcessDevices, EachRankOfAHostTakesItsOwnGpu) {
  LaunchEnvironment environment;
  environment.launcher = "slurm";
  environment.host = "node07";
  environment.local_world_size = 4;
  for (environment.local_rank = 0; environment.local_rank < 4; ++environment.local_rank) {
    EXPECT_EQ(device_index(environment, "cuda", 4), environment.local_rank);
    EXPECT_EQ(device_index(environment, "cuda", 8), environment.local_rank);
    EXPECT_EQ(device_index(environment, "cuda", 1), 0) << "the launcher shows each rank its own GPU";
  }
  environment.local_rank = 3;
  EXPECT_EQ(message_of<UserError>([&] { device_index(environment, "cuda", 3); }),
            "device: cuda: the launcher (slurm) started 4 ranks on node07, which has 3 GPUs, and each rank needs its "
            "own; start 3 there, or set device: cpu");
}

TEST(ProcessDevices, RejectsSharedAndMissingGpus) {
  const ProcessDevice first{"a", "cuda:0", "GPU-1"}, second{"a", "cuda:1", "GPU-2"}, other_host{"b", "cuda:0", "GPU-3"},
      cpu{"b", "cpu", ""};
  EXPECT_NO_THROW(check_process_devices({first, second, other_host}));
  EXPECT_NO_THROW(check_process_devices({cpu, cpu}));
  EXPECT_EQ(message_of<UserError>([&] {
              check_process_devices({first, second, first});
            }),
            "device: rank 0 on a uses cuda:0 and rank 2 on a uses cuda:0, the same GPU (GPU-1), but each rank needs "
            "its own; start as many ranks on a host as it has GPUs, with device: cuda");
  EXPECT_EQ(message_of<UserError>([&] {
              check_process_devices({first, second, cpu});
            }),
            "device: rank 0 on a uses cuda:0, but rank 2 on b uses cpu; expected GPUs on all ranks or on none: set "
            "device: cuda to see what is missing, or device: cpu");
}

TEST(ProcessDevices, DeviceNamesWithoutGpuMatchOneProcess) {
  LaunchEnvironment environment;
  environment.world_size = environment.local_world_size = 2;
  EXPECT_TRUE(device_of_process("cpu", environment).is_cpu());
  EXPECT_THROW(device_of_process("gpu", environment), UserError);
  GpuEngine* cuda = gpu_engine(DeviceType::cuda);
  if (cuda != nullptr && cuda->device_count() > 0) return;
  EXPECT_TRUE(device_of_process("auto", environment).is_cpu());
}

}  // namespace
}  // namespace furlong
