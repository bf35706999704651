// Asynchronous checkpoints: content, waiting, and failures.
#include "trainers/train/checkpoint_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "framework/core/arena.h"
#include "framework/core/log.h"
#include "framework/io/checkpoint_copy.h"
#include "framework/io/hdf5_internal.h"
#include "tests/trainers/parallel_testing.h"
#include "tests/trainers/training.h"
#include "trainers/checkpoint/checkpoint_parts.h"
#include "trainers/train/run/step_forecast.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using parallel_testing::Report;
using parallel_testing::run_world;
using parallel_testing::World;
using parallel_testing::WorldOptions;
using ::testing::HasSubstr;
using testing::message_of;
using testing::small_settings;

class CheckpointSaverTest : public testing::WithTemporaryFolder {
 protected:
  CheckpointSaverTest() : store(testing::write_store(path("tokens.h5"), testing::synthetic_text(2000))) {
    for (const char* folder : {"here", "background"}) fs::create_directories(path(folder));
  }
  Settings settings(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"optimizer.ema_decay=0.9", "trainer.skip_outlier_factor=9",
                                 "model.attention.mechanism=linear"};
    all.insert(all.end(), more.begin(), more.end());
    return small_settings(store, all).settings;
  }
  std::string in(const char* folder, const char* name = "step_00000003.h5") const {
    return path(std::string(folder) + "/" + name);
  }

  std::string store;
};

constexpr auto nothing_more = [] {};

TEST_F(CheckpointSaverTest, AsynchronousFileEqualsSynchronousFile) {
  const TokenizedDataset data = TokenizedDataset::open(store);
  Trainer trainer(settings(), data, Device{});
  for (int i = 0; i < 3; ++i) trainer.step();
  trainer.save(in("here"), "{\"step\":3}\n");
  const ProcessGroup alone;
  CheckpointSaver saver(trainer, alone, true);
  saver.save(in("background"), "{\"step\":3}\n", nothing_more);
  for (int i = 0; i < 3; ++i) trainer.step();
  saver.wait();
  EXPECT_GT(fs::file_size(in("here")), 10000u);
  EXPECT_EQ(content(in("background")), content(in("here")));
  trainer.save(in("here"));
  EXPECT_NE(content(in("background")), content(in("here"))) << "a step must change the compared state";
}

// Two ranks, with the optimizer's state on both or sharded.
TEST_F(CheckpointSaverTest, AsynchronousShardsEqualSynchronousShards) {
  for (const char* sharded : {"parallel.zero_stage=0", "parallel.zero_stage=1"}) {
    run_world(2, [&](ProcessGroup& group, const Report&) {
      const TokenizedDataset data = TokenizedDataset::open(store);
      Trainer trainer(settings({sharded}), data, Device{}, std::nullopt, &group);
      for (int i = 0; i < 3; ++i) trainer.step();
      trainer.save(in("here"), "metrics");
      CheckpointSaver saver(trainer, group, true);
      int whole = 0;
      saver.save(in("background"), "metrics", [&] { ++whole; });
      for (int i = 0; i < 3; ++i) trainer.step();
      saver.wait();
      EXPECT_EQ(whole, 1);
      const std::string own = fmt::format("step_00000003.shard_{}_of_2.h5", group.rank());
      EXPECT_EQ(content(in("background", own.c_str())), content(in("here", own.c_str())));
      group.barrier();
      EXPECT_EQ(content(in("background")), content(in("here")));
      EXPECT_EQ(CheckpointReader::open(in("background")).integer("step"), 3);
    });
  }
}

TEST_F(CheckpointSaverTest, TrainingContinuesDuringWrite) {
  const TokenizedDataset data = TokenizedDataset::open(store);
  Trainer trainer(settings(), data, Device{});
  trainer.step();
  const ProcessGroup alone;
  CheckpointSaver saver(trainer, alone, true);
  {
    const hdf5::detail::Lock nobody_writes;
    saver.save(in("background"), "", nothing_more);
    for (int i = 0; i < 2; ++i) trainer.step();
    std::this_thread::sleep_for(50ms);
    saver.check();
    EXPECT_FALSE(fs::exists(in("background")));
  }
  saver.wait();
  EXPECT_EQ(CheckpointReader::open(in("background")).integer("step"), 1);
  EXPECT_EQ(trainer.steps(), 3);
}

TEST_F(CheckpointSaverTest, WaitsForPreviousCheckpoint) {
  const TokenizedDataset data = TokenizedDataset::open(store);
  Trainer trainer(settings(), data, Device{});
  const ProcessGroup alone;
  std::vector<int> whole;
  std::atomic<int> n_whole = 0;  // read while the second one is written
  const auto note = [&](int number) {
    std::this_thread::sleep_for(100ms);
    whole.push_back(number);
    ++n_whole;
  };
  {
    CheckpointSaver saver(trainer, alone, true);
    saver.save(in("background", "a.h5"), "", [&] { note(1); });
    saver.save(in("background", "b.h5"), "", [&] { note(2); });
    EXPECT_GE(n_whole, 1);
  }
  EXPECT_EQ(whole, (std::vector<int>{1, 2})) << "the end of training waits for the last checkpoint";
}

TEST_F(CheckpointSaverTest, NextCallThrowsWriteError) {
  const TokenizedDataset data = TokenizedDataset::open(store);
  Trainer trainer(settings(), data, Device{});
  const ProcessGroup alone;
  CheckpointSaver saver(trainer, alone, true);
  bool is_whole = false;
  const auto save = [&] { saver.save(in("nowhere"), "", [&] { is_whole = true; }); };
  save();
  EXPECT_THAT(message_of<UserError>([&] { saver.wait(); }), HasSubstr("nowhere/step_00000003.h5"));
  saver.check();  // it was reported once
  save();
  EXPECT_THAT(message_of<UserError>([&] {
                for (int i = 0; i < 1000; ++i, std::this_thread::sleep_for(10ms)) saver.check();
              }),
              HasSubstr("No such file or directory"));
  save();
  EXPECT_THAT(message_of<UserError>(save), HasSubstr("No such file or directory"));
  EXPECT_FALSE(is_whole);
}

TEST_F(CheckpointSaverTest, WritesSynchronouslyWithoutMemoryForCopy) {
#ifdef FURLONG_SANITIZED
  GTEST_SKIP() << "this build's arena touches allocated memory";
#endif
  const TokenizedDataset data = TokenizedDataset::open(store);
  Trainer trainer(settings(), data, Device{});
  const ProcessGroup alone;
  CheckpointSaver saver(trainer, alone, true);
  const LogCapture warnings;
  const Arena& memory = arena(Device{});
  const Tensor everything =
      Tensor::empty({memory.capacity() - memory.counters().system_bytes - (1 << 12)}, DType::uint8);
  std::vector<Tensor> gaps;  // and what earlier tests have given back
  for (const std::int64_t bytes : {1 << 20, 1 << 10}) {
    try {
      while (true) gaps.push_back(Tensor::empty({bytes}, DType::uint8));
    } catch (const MachineError&) {
    }
  }
  for (const char* name : {"a.h5", "b.h5"}) {
    bool is_whole = false;
    saver.save(in("background", name), "", [&] { is_whole = true; });
    EXPECT_TRUE(is_whole) << name;
    EXPECT_EQ(CheckpointReader::open(in("background", name)).integer("step"), 0);
  }
  const std::string text = warnings.text();
  EXPECT_THAT(text, HasSubstr("checkpoint.async: not enough memory for a copy"));
  EXPECT_EQ(text.find("checkpoint.async"), text.rfind("checkpoint.async")) << "once";
}

// The estimate of the copy before training.
TEST_F(CheckpointSaverTest, PredictsCopyMemory) {
  const auto measured = [](const Trainer& trainer) {
    const std::int64_t before = arena(Device{}).counters().bytes_in_use;
    const CheckpointParts copy = trainer.checkpoint_parts("").copy();
    return static_cast<double>(arena(Device{}).counters().bytes_in_use - before);
  };
  const std::vector<std::string> wide{"model.d_model=64"};
  const TokenizedDataset data = TokenizedDataset::open(store);
  const auto foretold = [&](int processes) {
    return static_cast<double>(predicted_copy_bytes(settings(wide), data.vocabulary(), processes));
  };
  EXPECT_NEAR(foretold(1) / measured(Trainer(settings(wide), data, Device{})), 1, 0.05)
      << "blocks are rounded up to 256 bytes";
  EXPECT_NEAR(foretold(2) / foretold(1), 0.5, 0.05);
  run_world(2, [&](ProcessGroup& group, const Report&) {
    const double share = measured(Trainer(settings(wide), data, Device{}, std::nullopt, &group));
    if (group.is_first()) {
      EXPECT_NEAR(foretold(2) / share, 1, 0.1);
    }
  });
}

TEST_F(CheckpointSaverTest, WaitLogNamesCheckpointAndRank) {
  WorldOptions options;
  options.notice = 300ms;
  World world(
      2,
      [&](ProcessGroup& group, const Report& report) {
        const TokenizedDataset data = TokenizedDataset::open(store);
        const Trainer trainer(settings(), data, Device{}, std::nullopt, &group);
        CheckpointSaver saver(trainer, group, true, {300ms, 300ms});
        const LogCapture warnings;
        std::thread hanging;
        if (group.rank() == 1) {
          std::promise<void> locked;
          hanging = std::thread([&] {
            const hdf5::detail::Lock nobody_writes;
            locked.set_value();
            std::this_thread::sleep_for(1500ms);
          });
          locked.get_future().wait();
        }
        saver.save(in("background"), "", nothing_more);
        saver.wait();
        if (hanging.joinable()) hanging.join();
        report.say(warnings.text());
      },
      options);
  EXPECT_EQ(world.wait(), (std::vector<int>{0, 0})) << world.errors();
  const std::string file = in("background");
  EXPECT_THAT(world[0].words(), HasSubstr("rank 1: its shard of " + file));
  EXPECT_THAT(world[0].words(), HasSubstr(file + ": training has been waiting for "));
  EXPECT_THAT(world[1].words(), HasSubstr(" s until this rank's shard is written"));
}

// Rank 1 waits for rank 0, which computes, while rank 0's thread waits for rank 1's shard: only the failed rank knows.
TEST_F(CheckpointSaverTest, AsynchronousFailureEndsAllRanks) {
  for (const int failing : {0, 1}) {
    WorldOptions options;
    options.timeout = 6s;
    World world(
        2,
        [&](ProcessGroup& group, const Report&) {
          const TokenizedDataset data = TokenizedDataset::open(store);
          const Trainer trainer(settings(), data, Device{}, std::nullopt, &group);
          CheckpointSaver saver(trainer, group, true);
          saver.save(in(group.rank() == failing ? "nowhere" : "background"), "", nothing_more);
          if (group.rank() != failing) {
            for (volatile std::uint64_t i = 0;;) i = i + 1;
          }
          group.barrier();
        },
        options);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(world.wait(), (std::vector<int>{1, 1}));
    EXPECT_LT(parallel_testing::seconds_since(begin), 40);
    const std::string errors = world.errors();
    EXPECT_THAT(errors,
                HasSubstr(fmt::format("error: rank {} on host here failed: error: {}", failing, path("nowhere"))));
    EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
  }
}

// As on a network file system: rank 1's shard becomes visible later.
TEST_F(CheckpointSaverTest, WaitsForLateShards) {
  run_world(2, [&](ProcessGroup& group, const Report&) {
    const TokenizedDataset data = TokenizedDataset::open(store);
    const Trainer trainer(settings(), data, Device{}, std::nullopt, &group);
    const CheckpointParts parts = trainer.checkpoint_parts("");
    const char* shard = "step_00000003.shard_1_of_2.h5";
    if (group.is_first()) {
      std::ofstream(in("here", shard)) << "of an earlier run";
      group.barrier();
      write_checkpoint(in("here"), parts, &group, 20s);
      CheckpointReader::open(in("here"));
    } else {
      group.barrier();
      write_checkpoint(in("background"), parts, &group);
      std::this_thread::sleep_for(500ms);
      fs::rename(in("background", shard), in("here", shard));
    }
  });
}

// Each rank has its own folder: rank 0 cannot see rank 1's shard.
TEST_F(CheckpointSaverTest, MissingShardFailsCheckpoint) {
  World world(2, [&](ProcessGroup& group, const Report&) {
    const TokenizedDataset data = TokenizedDataset::open(store);
    const Trainer trainer(settings(), data, Device{}, std::nullopt, &group);
    write_checkpoint(in(group.is_first() ? "here" : "background"), trainer.checkpoint_parts(""), &group, 300ms);
    group.barrier();
  });
  for (const int status : world.wait()) EXPECT_NE(status, 0);
  EXPECT_THAT(world.errors(), HasSubstr(in("here", "step_00000003.shard_1_of_2.h5") +
                                        ": rank 1 wrote this checkpoint shard, but rank 0 cannot see it after 0.3 s"));
  EXPECT_FALSE(fs::exists(in("here")));
}

}  // namespace
}  // namespace furlong
