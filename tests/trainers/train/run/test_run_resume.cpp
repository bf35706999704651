// Resuming with several ranks: no rank removes files that another has yet to read or is already writing.
#include "trainers/train/run/run_resume.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "tests/trainers/parallel_testing.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using parallel_testing::Report;
using parallel_testing::run_world;

class RunResumeTest : public testing::WithTemporaryFolder {
 protected:
  RunResumeTest() : store(testing::write_store(path("tokens.h5"), testing::synthetic_text(2000))) {}

  fs::path checkpoints() const { return path("run/checkpoints"); }
  /// A saved run of `steps` steps, with the best checkpoint so far.
  void train(int steps) const {
    const std::vector<std::string> keys{"run_directory=" + path("run"), fmt::format("trainer.max_steps={}", steps),
                                        "schedule.warmup_steps=1", "trainer.validate_every=2"};
    furlong::train(testing::small_settings(store, keys), {});
    ASSERT_TRUE(fs::exists(checkpoints() / "best.h5"));
  }
  /// resume_run with two ranks, which also run `before` and `behind`.
  void resume(const TrainOptions& options, bool keep_best, const std::function<void(int rank)>& before,
              const std::function<void(const ProcessGroup& group, const Trainer& trainer)>& behind) const {
    run_world(2, [&](ProcessGroup& group, const Report&) {
      const TokenizedDataset data = TokenizedDataset::open(store);
      const RunDirectory directory(path("run"), group);
      std::optional<CheckpointDirectory> kept;
      if (group.is_first()) kept.emplace(directory.checkpoints(), 3, keep_best);
      Trainer trainer(settings(), data, Device{}, std::nullopt, &group);
      before(group.rank());
      resume_run(options, group, directory, trainer, kept ? &*kept : nullptr);
      behind(group, trainer);
    });
  }
  Settings settings(const std::vector<std::string>& more = {}) const {
    return testing::small_settings(store, more).settings;
  }

  std::string store;
};

// Rank 1 would save at once if the run is finished; rank 0, still looking for orphans, would remove its shard.
TEST_F(RunResumeTest, WaitsUntilRankZeroHasCleanedUp) {
  train(4);
  for (int i = 0; i < 1000; ++i)
    std::ofstream(checkpoints() / fmt::format("step_00000009.shard_{}_of_1000.h5", i))
        << "shard of a checkpoint that was never completed";
  resume(
      {}, true, [](int) {},
      [&](const ProcessGroup& group, const Trainer& trainer) {
        EXPECT_EQ(trainer.steps(), 4);
        int orphans = 0;
        for (const auto& entry : fs::directory_iterator(checkpoints()))
          orphans += entry.path().filename().string().find(".shard_") != std::string::npos;
        EXPECT_EQ(orphans, 0) << "rank " << group.rank();
        group.barrier();
      });
}

// Without checkpoint.keep_best the best checkpoint is removed, but not before all ranks have read it.
TEST_F(RunResumeTest, KeepsBestCheckpointUntilAllRanksHaveReadIt) {
  train(4);
  ASSERT_EQ(CheckpointReader::open(checkpoints() / "best.h5").integer("step"), 4);
  TrainOptions options;
  options.resume = TrainOptions::Resume::path;
  options.checkpoint = checkpoints() / "best.h5";
  const auto late = [](int rank) {
    if (rank == 1) std::this_thread::sleep_for(1s);
  };
  resume(options, false, late, [](const ProcessGroup&, const Trainer& trainer) { EXPECT_EQ(trainer.steps(), 4); });
  EXPECT_FALSE(fs::exists(checkpoints() / "best.h5"));
}

}  // namespace
}  // namespace furlong
