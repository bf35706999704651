#include "trainers/train/run/run_memory.h"

#include <gtest/gtest.h>

#include "tests/trainers/parallel_testing.h"
#include "tests/trainers/training.h"
#include "trainers/train/run/step_forecast.h"

namespace furlong {
namespace {

using namespace std::chrono_literals;
using parallel_testing::Report;
using parallel_testing::run_world;
using parallel_testing::steady_clock;

TEST(MemoryShareTest, HostMemoryHoldsStepAndCopy) {
  MemoryShare share{.step = 60, .copy = 40, .on_device = 100, .on_host = 100};
  EXPECT_TRUE(share.fits_step());
  EXPECT_TRUE(share.fits_copy());
  share.copy = 41;
  EXPECT_TRUE(share.fits_step());
  EXPECT_FALSE(share.fits_copy());
  share.step = 101;
  EXPECT_FALSE(share.fits_step());
  share.on_host = share.on_device = 0;
  EXPECT_TRUE(share.fits_step() && share.fits_copy()) << "unknown available memory";
}

TEST(MemoryShareTest, GpuCheckpointCopyUsesHostMemory) {
  MemoryShare share{.step = 60, .copy = 100, .on_device = 60, .on_host = 100, .is_one_memory = false};
  EXPECT_TRUE(share.fits_step());
  EXPECT_TRUE(share.fits_copy());
  share.copy = 101;
  EXPECT_FALSE(share.fits_copy());
}

class RunMemoryTest : public testing::WithTemporaryFolder {
 protected:
  RunMemoryTest() : store(testing::write_store(path("tokens.h5"), testing::synthetic_text(500))) {}
  std::string store;
};

// A rank that continued early would allocate memory that a neighbor then no longer finds available.
TEST_F(RunMemoryTest, WaitsUntilAllRanksHaveChecked) {
  const TokenizedDataset data = TokenizedDataset::open(store);
  const Settings settings = testing::small_settings(store).settings;
  const auto found = run_world(3, [&](ProcessGroup& group, const Report& report) {
    const auto now = [] { return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count(); };
    std::this_thread::sleep_for(150ms * group.rank());
    const double begun = now();
    EXPECT_TRUE(check_memory(settings, data.vocabulary(), Device{}, group));
    report.add({begun, now()});
  });
  for (const std::vector<double>& rank : found)
    for (const std::vector<double>& other : found) EXPECT_LT(rank[0], other[1]);
}

TEST(ReusableMemoryTest, IsWhatEarlierTensorsReleased) {
  constexpr std::int64_t n = 64 << 20;
  const auto make = [] { return Tensor::empty({n}, DType::float32, Device{}); };
  { const Tensor earlier = make(); }
  const std::int64_t released = reusable_bytes(Device{});
  EXPECT_GE(released, 4 * n);
  const Tensor later = make();
  EXPECT_EQ(reusable_bytes(Device{}), released - 4 * n) << "memory that is in use again is not available";
}

TEST_F(RunMemoryTest, SettingDisablesCheckpointCopies) {
  const TokenizedDataset data = TokenizedDataset::open(store);
  EXPECT_TRUE(check_memory(testing::small_settings(store).settings, data.vocabulary(), Device{}, ProcessGroup()));
  EXPECT_FALSE(check_memory(testing::small_settings(store, {"checkpoint.async=false"}).settings, data.vocabulary(),
                            Device{}, ProcessGroup()));
}

TEST_F(RunMemoryTest, EstimateContainsInputsOfAllAccumulatedBatches) {
  const TokenizedDataset data = TokenizedDataset::open(store);
  const auto peak = [&](int batches) {
    return predicted_peak_bytes(
        testing::small_settings(store, {"data.batch_size=64", fmt::format("trainer.gradient_accumulation={}", batches)})
            .settings,
        data.vocabulary());
  };
  constexpr double input_bytes = 2 * 64 * 32 * 4;  // inputs and targets, int32
  EXPECT_NEAR(static_cast<double>(peak(102) - peak(2)), 100 * input_bytes, input_bytes);
}

}  // namespace
}  // namespace furlong
