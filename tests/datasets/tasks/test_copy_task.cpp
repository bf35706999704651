#include "datasets/tasks/copy_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

CopyTaskOptions options(std::int64_t sequence_length, std::int64_t min_copy_symbols = 0, Split split = Split::train) {
  return {.n_symbols = 10,
          .sequence_length = sequence_length,
          .min_copy_symbols = min_copy_symbols,
          .seed = 7,
          .split = split};
}

TEST(CopyTask, SampleIsMarkerSymbolsSeparatorSymbols) {
  const CopyTask task(options(16));
  const Batch batch = task.batch(3, 2);
  EXPECT_EQ(batch.batch, 2);
  EXPECT_EQ(batch.n, 16);
  EXPECT_EQ(batch.n_targets, 14);
  EXPECT_EQ(batch.n_tokens, 14);
  for (std::size_t row = 0; row < 2; ++row) {
    const std::int32_t *inputs = batch.inputs.data() + row * 16, *targets = batch.targets.data() + row * 16;
    EXPECT_EQ(inputs[0], 10);
    EXPECT_EQ(inputs[8], 11);
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_GE(inputs[1 + i], 0);
      EXPECT_LT(inputs[1 + i], 10);
      EXPECT_EQ(inputs[9 + i], inputs[1 + i]);
      EXPECT_EQ(targets[i], ignored_target);
      EXPECT_EQ(targets[8 + i], inputs[1 + i]);  // the target is at the preceding token
    }
    EXPECT_EQ(targets[7], ignored_target);   // the position of the separator is known, so it is no target
    EXPECT_EQ(targets[15], ignored_target);  // nothing follows
  }
  const std::string text = Vocabulary::copy(10).decode(std::span(batch.inputs).first(16));
  EXPECT_EQ(text.substr(0, 1) + text.substr(8, 1), "<=");
  EXPECT_EQ(text.substr(1, 7), text.substr(9));
}

TEST(CopyTask, MaskedTokensCountAllTokensButPadding) {
  CopyTaskOptions masked = options(16, 2);
  masked.hidden_as = 12;
  const Batch batch = CopyTask(masked).batch(0, 6);
  EXPECT_EQ(batch.n_tokens, std::accumulate(batch.lengths.begin(), batch.lengths.end(), 0));
  EXPECT_EQ(batch.n_tokens, 2 * batch.n_targets + 2 * 6);
  EXPECT_LT(batch.n_tokens, 6 * 16);
}

TEST(CopyTask, SampleDependsOnlyOnSeedSplitAndIndex) {
  const CopyTask task(options(32));
  const Batch all = task.batch(0, 12), part = task.batch(5, 4);
  EXPECT_EQ(part.inputs, std::vector<std::int32_t>(all.inputs.begin() + 5 * 32, all.inputs.begin() + 9 * 32));
  CopyTaskOptions other = options(32);
  other.seed = 8;
  EXPECT_NE(CopyTask(other).batch(0, 1).inputs, task.batch(0, 1).inputs);

  // No sequence occurs in two splits, or twice in one.
  std::set<std::vector<std::int32_t>> seen;
  for (const Split split : all_splits) {
    const CopyTask of_split(options(32, 0, split));
    for (std::uint64_t sample = 0; sample < 200; ++sample)
      EXPECT_TRUE(seen.insert(of_split.batch(sample, 1).inputs).second);
  }
}

TEST(CopyTask, SymbolsAreUniform) {
  const CopyTask task(options(1002));
  std::map<std::int32_t, int> counts;
  const Batch batch = task.batch(0, 20);
  for (std::size_t row = 0; row < 20; ++row) {
    for (std::size_t i = 0; i < 500; ++i) ++counts[batch.inputs[row * 1002 + 1 + i]];
  }
  ASSERT_EQ(counts.size(), 10u);
  double chi_squared = 0;
  for (const auto& [symbol, count] : counts) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_squared, 27.9);  // 9 degrees of freedom; exceeded with probability 0.001
}

TEST(CopyTask, CopyLengthsAreUniform) {
  const CopyTask task(options(20, 3));
  std::map<std::int64_t, int> counts;
  for (std::uint64_t sample = 0; sample < 7000; ++sample) {
    const Batch batch = task.batch(sample, 1);
    const std::int64_t k = batch.n_targets;
    ++counts[k];
    EXPECT_EQ(batch.lengths, (std::vector<std::int32_t>{static_cast<std::int32_t>(2 * k + 2)}));
    EXPECT_EQ(batch.inputs[static_cast<std::size_t>(k + 1)], 11);
    for (std::size_t i = static_cast<std::size_t>(2 * k + 2); i < 20; ++i) {
      EXPECT_EQ(batch.inputs[i], 10);  // padding
      EXPECT_EQ(batch.targets[i], ignored_target);
    }
  }
  ASSERT_EQ(counts.begin()->first, 3);
  ASSERT_EQ(counts.rbegin()->first, 9);
  for (const auto& [k, count] : counts) EXPECT_NEAR(count, 1000, 110) << k;  // 3.7 standard deviations
}

TEST(CopyTask, EvaluationHasOnePassAndTrainingIsEndless) {
  const CopyTask validation(options(8, 0, Split::validation));
  EXPECT_EQ(validation.n_samples(), CopyTask::held_out_samples);
  const Batch last = validation.single_pass_batch(CopyTask::held_out_samples - 1, 3);
  EXPECT_EQ(last.n_targets, 3);  // of one row
  EXPECT_EQ(last.lengths, (std::vector<std::int32_t>{8, 0, 0}));
  EXPECT_EQ(std::vector<std::int32_t>(last.targets.begin() + 8, last.targets.end()),
            std::vector<std::int32_t>(16, ignored_target));
  const CopyTask training(options(8));
  EXPECT_GT(training.n_samples(), std::uint64_t{1} << 60);
  EXPECT_EQ(training.batch(std::uint64_t{1} << 40, 2).n_targets, 6);
}

TEST(CopyTask, RejectsInvalidLengths) {
  EXPECT_THAT(message_of<UserError>([&] { CopyTask(options(15)); }), HasSubstr("data.sequence_length: found 15"));
  EXPECT_THAT(message_of<UserError>([&] { CopyTask(options(2)); }), HasSubstr("use 4"));
  EXPECT_THAT(message_of<UserError>([&] { CopyTask(options(16, 8)); }), HasSubstr("fits copies of 1 to 7 symbols"));
}

TEST(CopyVocabulary, RoundTripsOneLetterPerToken) {
  const Vocabulary vocabulary = Vocabulary::copy(40);
  EXPECT_EQ(vocabulary.size(), 42);
  EXPECT_EQ(vocabulary.kind_name(), "copy");
  const std::string text = "<09AZad=09AZad";
  EXPECT_EQ(vocabulary.encode(text), (std::vector<std::int32_t>{40, 0, 9, 10, 35, 36, 39, 41, 0, 9, 10, 35, 36, 39}));
  EXPECT_EQ(vocabulary.decode(vocabulary.encode(text)), text);
  EXPECT_FALSE(vocabulary.document_id());
  EXPECT_FALSE(vocabulary.unknown_id());
  EXPECT_TRUE(Vocabulary::from_json(vocabulary.to_json(), "x") == vocabulary);
  EXPECT_FALSE(Vocabulary::copy(41) == vocabulary);
  EXPECT_THAT(message_of<UserError>([&] { vocabulary.encode("<e"); }), HasSubstr("'e' at position 2"));
  EXPECT_THAT(message_of<UserError>(
                  [&] { Vocabulary::from_json(R"({"kind": "copy", "symbols": ["0", "2", "<", "="]})", "run.h5"); }),
              HasSubstr("run.h5: the vocabulary is damaged"));
}

}  // namespace
}  // namespace furlong
