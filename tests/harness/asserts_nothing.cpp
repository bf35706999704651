// Tests for main.cpp (ctest's Harness.*): the first one must fail, the others must not.
#include <gtest/gtest.h>

namespace {

TEST(Planted, AssertsNothing) { SUCCEED(); }

TEST(Planted, AssertsInBranches) {
  for (const bool condition : {true, false})
    if (condition)
      EXPECT_TRUE(condition);
    else
      EXPECT_FALSE(condition);
}

TEST(Planted, IsSkipped) { GTEST_SKIP(); }

}  // namespace
