#include "datasets/samplers/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "datasets/prepare/dataset_writer.h"
#include "framework/core/error.h"
#include "tests/datasets/small_datasets.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using Order = SamplerOptions::Order;

class SamplerTest : public testing::WithTemporaryFolder {
 protected:
  /// A dataset of bytes 0, 1, 2, ... in one document, all in the training split.
  TokenizedDataset counting_dataset(std::size_t size) const {
    return TokenizedDataset::open(
        testing::write_documents(path("store.h5"), Vocabulary::bytes(false), testing::counting({size}, 256)));
  }
};

TEST_F(SamplerTest, RandomWindowStartsAreUniform) {
  const TokenizedDataset dataset = counting_dataset(37);
  const Sampler sampler(dataset, Split::train,
                        {.order = Order::random, .sequence_length = 8, .seed = 5, .ignore_tokens = {}});
  ASSERT_EQ(sampler.n_windows(), 29u);  // 0 ... 28, whose last target is token 36
  std::map<std::int32_t, int> starts;
  const int draws = 29'000;
  for (int index = 0; index < draws; ++index) {
    const Batch batch = sampler.batch(static_cast<std::uint64_t>(index), 1);
    ++starts[batch.inputs[0]];
    EXPECT_EQ(batch.n_targets, 8);
    for (std::size_t i = 0; i < 8; ++i) {
      ASSERT_EQ(batch.inputs[i], batch.inputs[0] + static_cast<std::int32_t>(i));
      ASSERT_EQ(batch.targets[i], batch.inputs[i] + 1);
    }
  }
  ASSERT_EQ(starts.size(), 29u);
  double chi_squared = 0;
  for (const auto& [start, count] : starts) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_squared, 56.9);  // 28 degrees of freedom; exceeded with probability 0.001
}

TEST_F(SamplerTest, SampleDependsOnlyOnSeedAndIndex) {
  const TokenizedDataset dataset = counting_dataset(5000);
  const SamplerOptions options{.order = Order::random, .sequence_length = 16, .seed = 9, .ignore_tokens = {}};
  const Sampler one(dataset, Split::train, options);
  std::vector<std::int32_t> all;
  for (std::uint64_t step = 0; step < 6; ++step) {
    const Batch batch = one.batch(4 * step, 4);
    all.insert(all.end(), batch.inputs.begin(), batch.inputs.end());
  }
  // Other batch sizes, as with other numbers of ranks, and a sampler that resumes.
  const Sampler resumed(dataset, Split::train, options);
  EXPECT_EQ(resumed.batch(8, 16).inputs, std::vector<std::int32_t>(all.begin() + 8 * 16, all.end()));
  const Batch whole = one.batch(0, 24);
  EXPECT_EQ(whole.inputs, all);
  SamplerOptions other = options;
  other.seed = 10;
  EXPECT_NE(Sampler(dataset, Split::train, other).batch(0, 24).inputs, all);

  std::vector<Batch> from_threads(4);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] { from_threads[thread] = one.batch(0, 24); });
  }
  for (auto& thread : threads) thread.join();
  for (const Batch& batch : from_threads) EXPECT_EQ(batch.inputs, all);
}

TEST_F(SamplerTest, SequentialWindowsTargetEachTokenOnce) {
  for (const std::size_t size : {2u, 8u, 9u, 10u, 16u, 17u, 100u, 250u}) {
    const TokenizedDataset dataset = counting_dataset(size);
    const Sampler sampler(dataset, Split::train,
                          {.order = Order::sequential, .sequence_length = 8, .seed = 0, .ignore_tokens = {}});
    std::vector<int> seen(size, 0);
    std::int64_t n_targets = 0;
    for (std::uint64_t first = 0; first < sampler.n_windows(); first += 3) {
      const Batch batch = sampler.single_pass_batch(first, 3);
      EXPECT_EQ(batch.targets.size(), 24u);
      n_targets += batch.n_targets;
      for (std::size_t i = 0; i < 24; ++i) {
        if (batch.targets[i] == ignored_target) continue;
        EXPECT_EQ(batch.targets[i], batch.inputs[i] + 1);
        ++seen[static_cast<std::size_t>(batch.targets[i])];
      }
    }
    EXPECT_EQ(n_targets, static_cast<std::int64_t>(size) - 1);
    EXPECT_EQ(seen[0], 0);
    for (std::size_t i = 1; i < size; ++i) EXPECT_EQ(seen[i], 1) << i << " of " << size;
    // Training wraps around.
    EXPECT_EQ(sampler.batch(sampler.n_windows(), 1).inputs, sampler.batch(0, 1).inputs);
    EXPECT_EQ(sampler.single_pass_batch(sampler.n_windows(), 1).n_targets, 0);
  }
}

TEST_F(SamplerTest, TargetsDoNotCrossRanges) {
  DatasetWriterOptions options;
  options.shares = parse_split_shares("0.5,0.25,0.25");
  options.split_by = DatasetWriterOptions::SplitBy::document;
  DatasetWriter writer(path("store.h5"), Vocabulary::protein(), options);
  for (std::uint16_t document = 0; document < 200; ++document) {
    const std::vector<std::uint16_t> ids(5 + document % 7, static_cast<std::uint16_t>(document % 20));
    writer.append(ids);
    writer.end_document();
  }
  writer.finish("{}");
  const TokenizedDataset dataset = TokenizedDataset::open(path("store.h5"));
  for (const Split split : all_splits) {
    const Sampler sampler(dataset, split,
                          {.order = Order::sequential, .sequence_length = 16, .seed = 0, .ignore_tokens = {}});
    std::vector<std::int32_t> inputs, targets;
    for (std::uint64_t window = 0; window < sampler.n_windows(); ++window) {
      const Batch batch = sampler.batch(window, 1);
      inputs.insert(inputs.end(), batch.inputs.begin(), batch.inputs.end());
      targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
    }
    const auto tokens = dataset.read(split, 0, dataset.size(split));
    std::size_t position = 0, n_breaks = 0;
    for (const auto& range : dataset.ranges(split)) {
      for (std::uint64_t token = range.begin; token < range.end; ++token, ++position) {
        if (position + 1 == dataset.size(split)) break;  // the last token has no successor
        EXPECT_EQ(inputs[position], tokens[position]);
        if (token + 1 == range.end) {
          EXPECT_EQ(targets[position], ignored_target) << position;
          EXPECT_EQ(inputs[position], 28);  // the document token
          ++n_breaks;
        } else {
          EXPECT_EQ(targets[position], tokens[position + 1]) << position;
        }
      }
    }
    EXPECT_GT(n_breaks, 20u);
  }
}

TEST_F(SamplerTest, IgnoredSymbolsAreInputsButNeverTargets) {
  DatasetWriterOptions options;
  options.shares = parse_split_shares("1");
  DatasetWriter writer(path("store.h5"), Vocabulary::dna(), options);
  const auto encoded = Vocabulary::dna().encode("ACGTNNACRTACGT");
  writer.append(std::vector<std::uint16_t>(encoded.begin(), encoded.end()));
  writer.end_document();
  writer.finish("{}");
  const TokenizedDataset dataset = TokenizedDataset::open(path("store.h5"));
  const Sampler sampler(dataset, Split::train,
                        {.order = Order::sequential, .sequence_length = 14, .seed = 0, .ignore_tokens = {"N", "r"}});
  const Batch batch = sampler.batch(0, 1);
  EXPECT_EQ(batch.inputs, encoded);
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{1, 2, 3, -1, -1, 0, 1, -1, 3, 0, 1, 2, 3, 15}));
  EXPECT_EQ(batch.n_targets, 11);
  EXPECT_THAT(message_of<UserError>([&] {
                Sampler(dataset, Split::train,
                        {.order = Order::random, .sequence_length = 4, .seed = 0, .ignore_tokens = {"J"}});
              }),
              HasSubstr("'J' is not a symbol"));
}

TEST_F(SamplerTest, RejectsTooShortSplits) {
  const TokenizedDataset dataset = counting_dataset(10);
  const auto make = [&](Split split, Order order, std::int64_t length) {
    return Sampler(dataset, split, {.order = order, .sequence_length = length, .seed = 0, .ignore_tokens = {}});
  };
  EXPECT_EQ(make(Split::train, Order::random, 9).n_windows(), 1u);
  EXPECT_THAT(message_of<UserError>([&] { make(Split::train, Order::random, 10); }),
              HasSubstr("the train split has 10 tokens, but a sequence length of 10 needs at least 11"));
  EXPECT_EQ(make(Split::train, Order::sequential, 1000).n_windows(), 1u);
  EXPECT_THAT(message_of<UserError>([&] { make(Split::test, Order::sequential, 4); }),
              HasSubstr("the test split has 0 tokens"));
}

}  // namespace
}  // namespace furlong
