#include "framework/core/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace furlong {
namespace {

using Words = std::array<std::uint32_t, 4>;

/// Converts counter and key from the paper's form to ours. The counter's words are the block (low half first), the
/// stream and the step; the key's words are the seed, low half first.
constexpr Words philox_of(const Words& counter, std::uint32_t key0, std::uint32_t key1) {
  return philox({key0 | std::uint64_t{key1} << 32, counter[3], counter[2]},
                counter[0] | std::uint64_t{counter[1]} << 32);
}

// Known answers of the Random123 distribution for philox4x32, 10 rounds.
static_assert(philox_of({0, 0, 0, 0}, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox_of({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff) ==
              Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox_of({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
              Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

TEST(Random, PhiloxMatchesKnownAnswersAtRunTime) {
  const volatile std::uint32_t zero = 0;
  EXPECT_EQ(philox_of({zero, 0, 0, 0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox_of({zero + 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, WordsFollowTheOrderOfBlocks) {
  const RandomKey key{123456789012345, 7, random_stream("test")};
  for (std::uint64_t index : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{6}, (std::uint64_t{1} << 34) - 1,
                              (std::uint64_t{1} << 34) + 2}) {
    EXPECT_EQ(random_word(key, index), philox(key, index / 4)[index % 4]);
    EXPECT_EQ(random_uniform(key, index), static_cast<float>(random_word(key, index) >> 8) / 16777216.0f);
  }
}

TEST(Random, DependsOnEveryPartOfTheKey) {
  const RandomKey key{1, 2, 3};
  std::set<std::uint32_t> words{random_word(key, 0)};
  for (const RandomKey& other :
       {RandomKey{2, 2, 3}, RandomKey{1 + (std::uint64_t{1} << 32), 2, 3}, RandomKey{1, 3, 3}, RandomKey{1, 2, 4}}) {
    words.insert(random_word(other, 0));
  }
  words.insert(random_word(key, 1));
  words.insert(random_word(key, std::uint64_t{4} << 32));  // the block's upper half
  EXPECT_EQ(words.size(), 7u);
}

TEST(Random, StreamNumbersAreFnv1aOfNames) {
  // Test values of the FNV-1a (32 bits) definition.
  EXPECT_EQ(random_stream(""), 0x811c9dc5u);
  EXPECT_EQ(random_stream("a"), 0xe40c292cu);
  EXPECT_EQ(random_stream("foobar"), 0xbf9cf968u);
}

TEST(Random, UniformNumbersAreUniform) {
  constexpr int n = 1 << 20, bins = 256;
  const RandomKey key{42, 0, random_stream("uniform")};
  std::vector<int> count(bins);
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    const float u = random_uniform(key, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    ++count[static_cast<std::size_t>(u * bins)];
    sum += static_cast<double>(u);
  }
  EXPECT_NEAR(sum / n, 0.5, 4 * std::sqrt(1.0 / 12 / n));
  double chi_squared = 0;
  for (int c : count) chi_squared += (c - double{n} / bins) * (c - double{n} / bins) / (double{n} / bins);
  EXPECT_NEAR(chi_squared, bins - 1, 4 * std::sqrt(2.0 * (bins - 1)));
}

TEST(Random, NormalNumbersHaveNormalMoments) {
  constexpr int n = 1 << 20;
  const RandomKey key{43, 0, random_stream("normal")};
  std::vector<double> x(n);
  double moment[5] = {}, neighbors = 0;
  for (int i = 0; i < n; ++i) {
    x[static_cast<std::size_t>(i)] = random_normal(key, static_cast<std::uint64_t>(i));
    double power = 1;
    for (int k = 1; k <= 4; ++k) moment[k] += (power *= x[static_cast<std::size_t>(i)]) / n;
    if (i > 0) neighbors += x[static_cast<std::size_t>(i)] * x[static_cast<std::size_t>(i - 1)] / n;
  }
  // Tolerance of four standard errors each: the variance of x^k is E x^2k - (E x^k)^2, that is 1, 2, 15 and 96.
  EXPECT_NEAR(moment[1], 0, 4 * std::sqrt(1.0 / n));
  EXPECT_NEAR(moment[2], 1, 4 * std::sqrt(2.0 / n));
  EXPECT_NEAR(moment[3], 0, 4 * std::sqrt(15.0 / n));
  EXPECT_NEAR(moment[4], 3, 4 * std::sqrt(96.0 / n));
  EXPECT_NEAR(neighbors, 0, 4 * std::sqrt(1.0 / n));

  // Kolmogorov distance to the distribution function: it exceeds 1.95 / sqrt(n) once in a thousand.
  std::sort(x.begin(), x.end());
  double distance = 0;
  for (int i = 0; i < n; ++i) {
    const double expected = 0.5 * std::erfc(-x[static_cast<std::size_t>(i)] * std::sqrt(0.5));
    distance = std::max({distance, std::abs(expected - double(i) / n), std::abs(expected - double(i + 1) / n)});
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(n));
  EXPECT_GT(x.back(), 4.2);  // a million draws reach far into the tails: on average 14 exceed 4.2
  EXPECT_LT(x.front(), -4.2);
}

}  // namespace
}  // namespace furlong
