#include "framework/core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/temporary_folder.h"

namespace furlong {
namespace {

/// Each test runs with several thread counts, independent of the machine.
class Parallel : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    before_ = thread_count();
    set_thread_count(GetParam());
  }
  void TearDown() override { set_thread_count(before_); }

 private:
  int before_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Threads, Parallel, ::testing::Values(1, 2, 4, 7));

TEST_P(Parallel, RunsEachTaskOnce) {
  EXPECT_EQ(thread_count(), GetParam());
  for (std::int64_t tasks : {0, 1, 2, 3, 100, 10007}) {
    const auto runs = std::make_unique<std::atomic<int>[]>(static_cast<std::size_t>(tasks));
    parallel_tasks(tasks, [&](std::int64_t task) { ++runs[static_cast<std::size_t>(task)]; });
    for (std::int64_t task = 0; task < tasks; ++task)
      ASSERT_EQ(runs[static_cast<std::size_t>(task)], 1) << "task " << task << " of " << tasks;
  }
}

TEST_P(Parallel, MakesWritesOfTasksVisibleToTheCaller) {
  std::vector<std::int64_t> squares(5000);
  for (int repeat = 0; repeat < 20; ++repeat) {
    parallel_tasks(5000, [&](std::int64_t task) { squares[static_cast<std::size_t>(task)] = task * task + repeat; });
    for (std::int64_t task = 0; task < 5000; ++task)
      ASSERT_EQ(squares[static_cast<std::size_t>(task)], task * task + repeat);
  }
}

TEST_P(Parallel, GivesConcurrentTasksDistinctThreadIndices) {
  const auto busy = std::make_unique<std::atomic<int>[]>(static_cast<std::size_t>(thread_count()));
  std::atomic<int> faults = 0;
  parallel_tasks(2000, [&](std::int64_t) {
    const int index = thread_index();
    if (index < 0 || index >= thread_count()) {
      ++faults;
      return;
    }
    if (busy[static_cast<std::size_t>(index)]++ != 0) ++faults;
    for (int i = 0; i < 100; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    --busy[static_cast<std::size_t>(index)];
  });
  EXPECT_EQ(faults, 0);
  EXPECT_EQ(thread_index(), 0);
}

TEST_P(Parallel, RethrowsAnExceptionAndRunsTheNextLoop) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    const std::string message = testing::message_of<std::runtime_error>([] {
      parallel_tasks(200, [](std::int64_t task) {
        if (task == 57) throw std::runtime_error("task 57");
      });
    });
    EXPECT_EQ(message, "task 57");
    std::atomic<int> runs = 0;
    parallel_tasks(200, [&](std::int64_t) { ++runs; });
    EXPECT_EQ(runs, 200);
  }
}

TEST_P(Parallel, RethrowsOneOfManyExceptions) {
  EXPECT_THROW(parallel_tasks(300, [](std::int64_t task) { throw std::out_of_range(std::to_string(task)); }),
               std::out_of_range);
}

TEST_P(Parallel, RunsNestedLoopsInTheCallersThread) {
  std::atomic<int> runs = 0, strayed = 0;
  parallel_tasks(40, [&](std::int64_t) {
    const auto thread = std::this_thread::get_id();
    const int index = thread_index();
    parallel_tasks(25, [&](std::int64_t) {
      ++runs;
      if (std::this_thread::get_id() != thread || thread_index() != index) ++strayed;
    });
  });
  EXPECT_EQ(runs, 1000);
  // A single outer task occupies no thread, so an inner loop may use a team.
  EXPECT_EQ(strayed, 0);
}

TEST_P(Parallel, RethrowsNestedExceptionsThroughBothLoops) {
  EXPECT_THROW(parallel_tasks(10,
                              [](std::int64_t outer) {
                                parallel_tasks(10, [&](std::int64_t inner) {
                                  if (outer == 3 && inner == 4) throw std::domain_error("inner");
                                });
                              }),
               std::domain_error);
  std::atomic<int> runs = 0;
  parallel_tasks(10, [&](std::int64_t) { parallel_tasks(10, [&](std::int64_t) { ++runs; }); });
  EXPECT_EQ(runs, 100);
}

TEST_P(Parallel, CoversTheRangeOnceWithPartsOfAtLeastTheGrain) {
  for (std::int64_t n : {1, 2, 7, 64, 1000, 12345}) {
    for (std::int64_t grain : {0, 1, 5, 64, 5000}) {
      std::mutex mutex;
      std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
      parallel_ranges(n, grain, [&](std::int64_t begin, std::int64_t end) {
        const std::lock_guard lock(mutex);
        ranges.emplace_back(begin, end);
      });
      std::sort(ranges.begin(), ranges.end());
      ASSERT_LE(ranges.size(), static_cast<std::size_t>(thread_count()));
      std::int64_t next = 0;
      for (const auto& [begin, end] : ranges) {
        ASSERT_EQ(begin, next) << "n " << n << ", grain " << grain;
        ASSERT_GE(end - begin, std::min(n, std::max<std::int64_t>(grain, 1))) << "n " << n << ", grain " << grain;
        next = end;
      }
      ASSERT_EQ(next, n);
      if (n >= thread_count() * std::max<std::int64_t>(grain, 1)) {
        EXPECT_EQ(ranges.size(), static_cast<std::size_t>(thread_count()));
      }
    }
  }
}

TEST_P(Parallel, SkipsEmptyLoops) {
  std::atomic<int> calls{0};
  const auto counted = [&](auto...) { ++calls; };
  parallel_ranges(0, 1, counted);
  parallel_ranges(-3, 1, counted);
  parallel_tasks(0, counted);
  EXPECT_EQ(calls, 0);
}

TEST(ParallelThreads, EnvironmentOverridesTheDefaultThreadCount) {
  const int before = thread_count();
  const std::vector<std::string> names{"FURLONG_POOL_THREADS", "OMP_NUM_THREADS"};
  std::vector<std::optional<std::string>> kept;
  for (const std::string& name : names) {
    const char* const value = std::getenv(name.c_str());
    kept.push_back(value ? std::optional<std::string>(value) : std::nullopt);
    unsetenv(name.c_str());
  }
  for (const std::string& name : names) {
    setenv(name.c_str(), "3", 1);
    set_thread_count(0);
    EXPECT_EQ(thread_count(), 3) << name;
    set_thread_count(2);
    EXPECT_EQ(thread_count(), 2) << name;
    for (const char* nonsense : {"", "many", "-2", "0", "99999999999"}) {
      setenv(name.c_str(), nonsense, 1);
      set_thread_count(0);
      EXPECT_GE(thread_count(), 1) << nonsense;
      EXPECT_LE(thread_count(), static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) << nonsense;
    }
    unsetenv(name.c_str());
  }
  for (std::size_t i = 0; i < names.size(); ++i)
    if (kept[i]) setenv(names[i].c_str(), kept[i]->c_str(), 1);
  set_thread_count(before);
}

TEST(ParallelThreads, PoolVariableTakesPrecedenceAndListsCountByTheirFirstNumber) {
  const auto requested = [](const std::string& pool, const std::string& openmp) {
    const auto found = requested_threads(
        [&](const char* name) { return std::optional(std::string(name) == "OMP_NUM_THREADS" ? openmp : pool); });
    return found ? found->variable + "=" + std::to_string(found->count) : "none";
  };
  EXPECT_EQ(requested("5", "7"), "FURLONG_POOL_THREADS=5");
  EXPECT_EQ(requested("", "7"), "OMP_NUM_THREADS=7");
  EXPECT_EQ(requested("0", "4,2"), "OMP_NUM_THREADS=4");
  EXPECT_EQ(requested("", " 4 "), "OMP_NUM_THREADS=4");
  for (const char* nonsense : {"many", "4x", "-2", "5000", "99999999999", " "})
    EXPECT_EQ(requested("", nonsense), "none") << nonsense;
}

}  // namespace
}  // namespace furlong
