// Tests for main.cpp (ctest's Harness.*): the first one must fail, the others must not.
#include <gtest/gtest.h>

namespace {

TEST(Planted, asserts_nothing) { SUCCEED(); }

TEST(Planted, asserts_in_branches) {
  for (const bool condition : {true, false})
    if (condition)
      EXPECT_TRUE(condition);
    else
      EXPECT_FALSE(condition);
}

TEST(Planted, skipped) { GTEST_SKIP(); }

}  // namespace
