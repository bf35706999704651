// A macro guards this header: for `#pragma once` the compiler compares the file with the precompiled one byte by byte,
// and a compiler cache may return one that was precompiled from a version with other comments.
#ifndef FURLONG_TESTS_COUNT_ASSERTIONS_H
#define FURLONG_TESTS_COUNT_ASSERTIONS_H
// Counts the assertions that GoogleTest's macros evaluate; GoogleTest's listeners are called only for failures. The
// precompiled header includes this file into every test source, after GoogleTest.
#include <gtest/gtest.h>

#include <atomic>

// Outside the project's namespace, because tests use testing:: for GoogleTest's.
namespace furlong_assertions {

/// Assertions evaluated by this process so far.
inline std::atomic<long>& assertion_count() {
  static std::atomic<long> count{0};
  return count;
}
inline void count_assertion() { assertion_count().fetch_add(1, std::memory_order_relaxed); }

}  // namespace furlong_assertions

// Every EXPECT_ and ASSERT_ starts with this macro, which separates its `if` from a surrounding `if … else`.
#undef GTEST_AMBIGUOUS_ELSE_BLOCKER_
#define GTEST_AMBIGUOUS_ELSE_BLOCKER_                 \
  switch (::furlong_assertions::count_assertion(), 0) \
  case 0:                                             \
  default:

#endif
