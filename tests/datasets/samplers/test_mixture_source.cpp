// Mixtures: how often each source is drawn, and that a sample depends on its index alone.
#include "datasets/samplers/mixture_source.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <set>

#include "datasets/samplers/labeled_source.h"

namespace furlong {
namespace {

using ::testing::ElementsAre;

/// Sample i is a row of i + 1 tokens, at most `longest`, with the value 1000 * number + i.
class Numbered : public BatchSource {
 public:
  Numbered(std::int32_t number, std::int64_t longest) : number_(number), longest_(longest) {}
  std::uint64_t n_samples() const override { return 5; }
  Batch batch(std::uint64_t first, std::int64_t samples) const override {
    EXPECT_EQ(samples, 1);
    const auto n = std::min(static_cast<std::int64_t>(first % 5) + 1, longest_);
    const auto width = static_cast<std::size_t>(n);
    Batch made;
    made.batch = 1;
    made.n = n;
    made.inputs.assign(width, 1000 * number_ + static_cast<std::int32_t>(first));
    made.targets = made.inputs;
    made.n_targets = made.n_tokens = n;
    return made;
  }
  Batch single_pass_batch(std::uint64_t, std::int64_t) const override {
    return Batch{.batch = 1, .n = 1, .inputs = {0}, .targets = {ignored_target}};
  }
  std::string note() const override { return "source " + std::to_string(number_); }

 private:
  std::int32_t number_;
  std::int64_t longest_;
};

MixtureSource mixture(const std::vector<double>& weights, std::uint64_t seed = 1, std::int64_t longest = 4) {
  std::vector<std::unique_ptr<BatchSource>> sources;
  for (std::size_t i = 0; i < weights.size(); ++i)
    sources.push_back(std::make_unique<Numbered>(static_cast<std::int32_t>(i), longest));
  return {std::move(sources), weights, seed};
}

std::vector<std::uint64_t> counts(const MixtureSource& source, std::size_t n_sources, std::uint64_t first,
                                  std::uint64_t end) {
  std::vector<std::uint64_t> found(n_sources, 0);
  for (std::uint64_t i = first; i < end; ++i) ++found[source.draw(i).source];
  return found;
}

TEST(MixtureSource, DrawsSourcesInProportionToTheirWeights) {
  const std::vector<double> weights{0.7, 0.2, 0.1};
  for (const std::uint64_t seed : {1, 2, 3}) {
    const MixtureSource source = mixture(weights, seed);
    // n places of a block are a sample without replacement. Its counts vary less than binomial ones, so 5 standard
    // deviations of those are exceeded with a probability below 6e-7.
    for (const std::uint64_t n : {100, 3000, 100000}) {
      const auto found = counts(source, 3, 0, n);
      for (std::size_t s = 0; s < 3; ++s) {
        const double expected = weights[s] * static_cast<double>(n);
        EXPECT_NEAR(static_cast<double>(found[s]), expected, 5 * std::sqrt(expected * (1 - weights[s])));
      }
    }
  }
}

TEST(MixtureSource, BlocksHaveExactShares) {
  constexpr std::uint64_t size = MixtureSource::block_size;
  for (const std::uint64_t block : {0, 3}) {
    const auto of = [&](const std::vector<double>& weights) {
      return counts(mixture(weights), weights.size(), block * size, (block + 1) * size);
    };
    EXPECT_THAT(of({3, 1}), ElementsAre(size / 4 * 3, size / 4));
    EXPECT_THAT(of({1, 1, 1}), ::testing::Each(::testing::AllOf(::testing::Ge(size / 3), ::testing::Le(size / 3 + 1))));
    EXPECT_THAT(of({1, 0, 1e-30}), ElementsAre(size - 1, 0, 1)) << "a small weight is not lost";
    EXPECT_THAT(of({2e300}), ElementsAre(size));
  }
}

TEST(MixtureSource, GivesEachSampleOfASourceOnce) {
  const MixtureSource source = mixture({2, 1});
  std::set<std::uint64_t> seen;
  std::uint64_t largest = 0;
  for (std::uint64_t i = 0; i < 2 * MixtureSource::block_size; ++i) {
    const auto draw = source.draw(i);
    if (draw.source != 1) continue;
    EXPECT_TRUE(seen.insert(draw.index).second);
    largest = std::max(largest, draw.index);
  }
  EXPECT_EQ(seen.size(), largest + 1) << "without gaps";
}

TEST(MixtureSource, SourcesGiveTheirSamplesInOrder) {
  constexpr std::uint64_t size = MixtureSource::block_size;
  const MixtureSource source = mixture({2, 1, 1});
  std::vector<std::uint64_t> next(3, 0);
  for (std::uint64_t i = 0; i < size + 100; ++i) {
    const auto draw = source.draw(i);
    ASSERT_EQ(draw.index, next[draw.source]++) << i;
  }
  // Asked for again, and after other blocks.
  const MixtureSource fresh = mixture({2, 1, 1});
  for (const std::uint64_t i : {size + 7, std::uint64_t{7}, 3 * size, size + 7, std::uint64_t{8}}) {
    const auto draw = source.draw(i), other = fresh.draw(i);
    EXPECT_EQ(draw.source, other.source);
    EXPECT_EQ(draw.index, other.index);
  }
}

TEST(MixtureSource, SampleDependsOnSeedAndIndexAlone) {
  const MixtureSource source = mixture({2, 1, 1}), same = mixture({2, 1, 1}), other = mixture({2, 1, 1}, 2);
  const Batch whole = source.batch(100, 8);
  ASSERT_EQ(whole.batch, 8);
  EXPECT_EQ(same.batch(100, 8).inputs, whole.inputs);
  EXPECT_NE(other.batch(100, 8).inputs, whole.inputs);
  // Two ranks with half the batch each.
  Batch joined = source.batch(100, 4);
  append(joined, source.batch(104, 4));
  EXPECT_EQ(joined.inputs, whole.inputs);
  EXPECT_EQ(joined.targets, whole.targets);
  EXPECT_EQ(joined.mask, whole.mask);
  EXPECT_EQ(joined.n_targets, whole.n_targets);
}

TEST(MixtureSource, WidensRowsAndMasksPadding) {
  const MixtureSource source = mixture({1, 1});
  const Batch batch = source.batch(0, 64);
  ASSERT_EQ(batch.n, 4);
  ASSERT_EQ(batch.mask.size(), 64u * 4);
  std::int64_t tokens = 0;
  for (std::size_t row = 0; row < 64; ++row) {
    const auto draw = source.draw(row);
    const std::size_t length = std::min<std::size_t>(draw.index % 5 + 1, 4);
    const auto value = static_cast<std::int32_t>(1000 * draw.source + draw.index);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(batch.inputs[row * 4 + i], i < length ? value : 0);
      EXPECT_EQ(batch.targets[row * 4 + i], i < length ? value : ignored_target);
      EXPECT_EQ(batch.mask[row * 4 + i], i < length);
    }
    tokens += static_cast<std::int64_t>(length);
  }
  EXPECT_EQ(batch.n_targets, tokens);
  EXPECT_EQ(batch.n_tokens, tokens);
  EXPECT_TRUE(mixture({1, 1}, 1, 1).batch(0, 8).mask.empty()) << "rows of equal length have no padding";
}

TEST(MixtureSource, SinglePassEndsAfterAllSamples) {
  const MixtureSource source = mixture({1, 1});
  EXPECT_EQ(source.n_samples(), 10u);
  const Batch last = source.single_pass_batch(8, 4);
  EXPECT_EQ(last.batch, 4);
  const auto n = static_cast<std::size_t>(last.n);
  EXPECT_NE(last.targets[n], ignored_target);
  for (std::size_t i = 2 * n; i < 4 * n; ++i) EXPECT_EQ(last.targets[i], ignored_target);
  EXPECT_EQ(source.note(), "source 0; source 1");
}

}  // namespace
}  // namespace furlong
