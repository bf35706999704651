// furlong bench comm: all operations, plausible times, and documented formulas.
#include "evaluation/bench/bench_comm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "framework/core/trace.h"
#include "tests/trainers/parallel_testing.h"
#include "tests/trainers/training.h"

namespace furlong {
namespace {

using parallel_testing::Curves;
using parallel_testing::Report;
using parallel_testing::run_world;
using ::testing::HasSubstr;
using testing::message_of;
using testing::small_settings;

TEST(BenchComm, BandwidthsMatchNcclTests) {
  BenchCommFigure figure;
  figure.bytes = 1000;
  figure.median_seconds = 0.5;
  for (const auto& [operation, factor] : std::vector<std::pair<std::string, double>>{{"all_reduce", 1.5},
                                                                                     {"reduce_scatter", 0.75},
                                                                                     {"all_gather", 0.75},
                                                                                     {"broadcast", 1},
                                                                                     {"exchange", 1},
                                                                                     {"send_receive", 1}}) {
    figure.operation = operation;
    EXPECT_DOUBLE_EQ(algorithm_bandwidth(figure), 2000);
    EXPECT_DOUBLE_EQ(bus_bandwidth(figure, 4), factor * 2000) << operation;
  }
}

TEST(BenchComm, RejectsWorldSizeOne) {
  const ProcessGroup alone;
  EXPECT_THAT(message_of<UserError>([&] { bench_comm(alone, {}); }),
              HasSubstr("furlong launch --processes 2 bench comm"));
}

TEST(BenchComm, MeasuresEveryOperation) {
  for (const int size : {2, 3}) {
    const Curves found = run_world(size, [&](ProcessGroup& group, const Report& report) {
      BenchCommOptions options;
      options.bytes = {1, 5000, 300'000};
      options.repeats = 3;
      const std::vector<BenchCommFigure> figures = bench_comm(group, options);
      ASSERT_EQ(figures.size(), 6u * 3 + 1);
      std::size_t i = 0;
      for (const std::string& operation : bench_comm_operations()) {
        for (const std::int64_t bytes : options.bytes) {
          const BenchCommFigure& figure = figures[i++];
          EXPECT_EQ(figure.operation, operation);
          ASSERT_EQ(figure.seconds.size(), 3u);
          std::vector<double> sorted = figure.seconds;
          std::sort(sorted.begin(), sorted.end());
          EXPECT_EQ(figure.median_seconds, sorted[1]);
          EXPECT_GT(sorted[0], 0);
          EXPECT_GE(figure.at_once, 1);
          report.add(figure.seconds);
          report.add(static_cast<double>(figure.at_once));
          if (operation == "barrier") {
            EXPECT_EQ(figure.bytes, 0);
            break;
          }
          // Rounded down to whole float32 values, times the world size for operations that split the tensor.
          const std::int64_t unit = operation == "reduce_scatter" || operation == "all_gather" ? 4 * size : 4;
          EXPECT_EQ(figure.bytes, std::max(bytes / unit, std::int64_t{1}) * unit) << operation;
        }
      }
      EXPECT_EQ(i, figures.size());
    });
    for (const std::vector<double>& rank : found) EXPECT_EQ(rank, found[0]) << "the slowest one's, everywhere";
  }
}

class BenchCommTrainingTest : public testing::WithTemporaryFolder {
 protected:
  BenchCommTrainingTest() : store(testing::write_store(path("tokens.h5"), testing::synthetic_text(4000))) {}
  std::string store;
};

TEST_F(BenchCommTrainingTest, ReportsReductionAndWaitTimes) {
  const LoadedSettings loaded =
      small_settings(store, {"model.d_model=256", "model.n_layers=2", "parallel.bucket_megabytes=1",
                             "data.batch_size=4", "trainer.max_steps=2", "schedule.warmup_steps=1", "threads=1"});
  const Curves found = run_world(2, [&](ProcessGroup& group, const Report& report) {
    const BenchCommTraining training = bench_comm_training(group, loaded, 4);
    EXPECT_FALSE(trace::is_on());
    EXPECT_GT(training.parameters, 1'000'000);
    EXPECT_GE(training.bytes, 4 * training.parameters);
    EXPECT_LE(training.bytes, 4 * training.parameters + 100'000) << "but for what aligns parameters";
    EXPECT_GT(training.buckets, 3);
    ASSERT_EQ(training.seconds.size(), 4u);
    ASSERT_EQ(training.overlapped_buckets.size(), 4u);
    EXPECT_GT(training.overlapped_buckets[0], 0);
    ASSERT_EQ(training.ranks.size(), 2u);
    double seconds = 0, waited = 0;
    for (const BenchCommReductions& rank : training.ranks) {
      EXPECT_GT(rank.seconds, 0);
      EXPECT_LE(rank.waited, std::accumulate(training.seconds.begin(), training.seconds.end(), 0.0));
      seconds += rank.seconds;
      waited += rank.waited;
      report.add({rank.seconds, rank.waited});
    }
    EXPECT_DOUBLE_EQ(training.all.seconds, seconds);
    EXPECT_DOUBLE_EQ(training.all.waited, waited);
    report.add(training.seconds);
  });
  EXPECT_EQ(found[0], found[1]);
}

TEST_F(BenchCommTrainingTest, RejectsUnsupportedSettings) {
  run_world(2, [&](ProcessGroup& group, const Report&) {
    for (const auto& [override, key] : std::vector<std::pair<std::string, std::string>>{
             {"data.batch_size=1", "data.batch_size: 1"}, {"parallel.backend=none", "parallel.backend: none"}})
      EXPECT_THAT(message_of<UserError>([&] { bench_comm_training(group, small_settings(store, {override}), 2); }),
                  HasSubstr(key));
  });
}

TEST_F(BenchCommTrainingTest, RejectsDifferentSettingsBetweenRanks) {
  parallel_testing::World world(2, [&](ProcessGroup& group, const Report&) {
    bench_comm_training(group, small_settings(store, {group.is_first() ? "model.n_layers=2" : "model.n_layers=3"}), 2);
  });
  for (const int status : world.wait()) EXPECT_NE(status, 0);
  EXPECT_THAT(world.errors(), HasSubstr("model.n_layers: 3 on this rank and 2 on rank 0; expected equal values"));
}

TEST(BenchCommReductionsTest, HiddenFractionExcludesWaits) {
  EXPECT_DOUBLE_EQ((BenchCommReductions{4, 1}).overlapped_fraction(), 0.75);
  EXPECT_DOUBLE_EQ((BenchCommReductions{4, 5}).overlapped_fraction(), 0);
  EXPECT_DOUBLE_EQ((BenchCommReductions{0, 0}).overlapped_fraction(), 0);
}

}  // namespace
}  // namespace furlong
