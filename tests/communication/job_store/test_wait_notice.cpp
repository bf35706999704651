// Which rank logs that ranks do not connect.
#include "communication/job_store/wait_notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/core/log.h"
#include "tests/communication/job_store/store_testing.h"

namespace furlong {
namespace {

using namespace store_testing;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(WaitNotice, LowestRankThatStillConnectsLogs) {
  World world(1);
  world.join_all();
  const auto notice_of = [&](int rank) {
    WaitNotice::Options options;
    options.rank = rank;
    options.size = 4;
    options.after = options.every = 0ms;
    return std::make_unique<WaitNotice>(world[0], options, [](int other) { return fmt::format("rank {}", other); });
  };
  const auto first = notice_of(0), second = notice_of(1);
  const auto log_of = [](WaitNotice& notice, int missing) {
    const LogCapture captured;
    for (int i = 0; i < 2; ++i) notice.update({1, "connecting", 0, {missing}});
    return captured.text();
  };
  EXPECT_THAT(log_of(*first, 2), HasSubstr("no connection to rank 2 yet"));
  EXPECT_EQ(log_of(*second, 3), "") << "rank 0 logs";
  first->connected();
  EXPECT_THAT(log_of(*second, 3), HasSubstr("no connection to rank 3 yet"));
  EXPECT_EQ(log_of(*first, 2), "") << "a late update";
}

}  // namespace
}  // namespace furlong
