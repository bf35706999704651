// What ctest proves main.cpp with (Harness.*): the first test has to fail, the others not to.
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
