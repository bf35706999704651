#include "communication/operation_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

/// A backend whose operations wait until the gate opens.
struct Gate {
  std::atomic<bool> open{false}, interrupted{false};
  std::atomic<int> watched{0};
  std::atomic<bool> fault{false};

  OperationQueue::Hooks hooks() {
    return {[this](std::uint64_t, const std::string&) -> std::optional<std::string> {
              ++watched;
              if (fault) return "a watcher's reason";
              return {};
            },
            [this] { interrupted = true; },
            [](const std::exception& error) { return std::string("explained: ") + error.what(); }};
  }
  void pass() {
    while (!open) {
      if (interrupted) throw std::runtime_error("interrupted");
      std::this_thread::sleep_for(1ms);
    }
  }
};

std::string thrown(const Work& work) {
  return testing::message_of<MachineError>([&] { work.wait(); });
}

TEST(OperationQueue, RunsInOrderOfSubmission) {
  Gate gate;
  OperationQueue queue(gate.hooks());
  std::vector<int> order;
  std::vector<Work> works;
  works.push_back(queue.submit("gate", [&] { gate.pass(); }));
  for (int i = 0; i < 100; ++i) works.push_back(queue.submit("operation", [&order, i] { order.push_back(i); }));
  EXPECT_FALSE(works.back().done());
  gate.open = true;
  works.back().wait();
  for (const Work& work : works) EXPECT_TRUE(work.done());
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(OperationQueue, ReleasesCapturesBeforeCompletion) {
  Gate gate;
  OperationQueue queue(gate.hooks());
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> seen = held;
  const Work work = queue.submit("operation", [held = std::move(held)] { EXPECT_EQ(*held, 1); });
  work.wait();
  EXPECT_TRUE(seen.expired());
}

TEST(OperationQueue, AbortEndsRunningQueuedAndLaterOperations) {
  Gate gate;
  OperationQueue queue(gate.hooks());
  const Work runs = queue.submit("first", [&] { gate.pass(); }),
             waits = queue.submit("second", [] { ADD_FAILURE() << "it ran"; });
  std::thread([&] { queue.abort("rank 1 failed"); }).join();
  queue.abort("a later reason");
  EXPECT_TRUE(runs.done());
  EXPECT_EQ(thrown(runs), "first stopped: rank 1 failed");
  EXPECT_EQ(thrown(waits), "second stopped: rank 1 failed");
  EXPECT_EQ(thrown(queue.submit("third", [] { ADD_FAILURE() << "it ran"; })), "third stopped: rank 1 failed");
  EXPECT_EQ(queue.wait_for_abort(0ms), "rank 1 failed");
  EXPECT_TRUE(gate.interrupted);
}

TEST(OperationQueue, FailureEndsAllLaterOperations) {
  Gate gate;
  OperationQueue queue(gate.hooks());
  const Work fails = queue.submit("first", [] { throw std::runtime_error("no route"); });
  const Work next = queue.submit("second", [] {});
  EXPECT_EQ(thrown(fails), "first stopped: explained: no route");
  EXPECT_EQ(thrown(fails), "first stopped: explained: no route");
  EXPECT_NE(thrown(next), "");
  EXPECT_EQ(thrown(queue.submit("third", [] {})), "third stopped: explained: no route");
}

TEST(OperationQueue, WatchesOnlyLongOperations) {
  Gate gate;
  OperationQueue queue(gate.hooks());
  for (int i = 0; i < 50; ++i) queue.submit("short", [] {}).wait();
  const int before = gate.watched;
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(gate.watched, before) << "nothing was watched";
  const Work work = queue.submit("long", [&] { gate.pass(); });
  for (int i = 0; i < 10000 && gate.watched < before + 2; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_GE(gate.watched, before + 2);
  EXPECT_FALSE(work.done());
  gate.fault = true;
  EXPECT_EQ(thrown(work), "long stopped: a watcher's reason");
}

TEST(OperationQueue, DestructionAbortsUnfinishedOperations) {
  Gate gate;
  Work runs, waits;
  {
    OperationQueue queue(gate.hooks());
    runs = queue.submit("first", [&] { gate.pass(); });
    waits = queue.submit("second", [] {});
  }
  EXPECT_EQ(thrown(runs), "first stopped: the communicator was closed before the operation was done");
  EXPECT_EQ(thrown(waits), "second stopped: the communicator was closed before the operation was done");
}

TEST(OperationQueue, DestructionWithoutOperationsDoesNotInterrupt) {
  Gate gate;
  for (int i = 0; i < 200; ++i) {
    OperationQueue queue(gate.hooks());
    queue.submit("operation", [] {}).wait();
  }
  EXPECT_FALSE(gate.interrupted);
}

}  // namespace
}  // namespace furlong
