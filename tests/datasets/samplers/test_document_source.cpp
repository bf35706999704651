#include "datasets/samplers/document_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "datasets/samplers/masking.h"
#include "datasets/samplers/sampler.h"
#include "framework/core/error.h"
#include "tests/datasets/small_datasets.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

class DocumentSourceTest : public testing::WithTemporaryFolder {
 protected:
  /// Document i has lengths[i] letters and <document>; token k of the dataset is the letter k % 200.
  TokenizedDataset dataset_of(const std::vector<std::size_t>& lengths, const std::string& shares = "1") const {
    return TokenizedDataset::open(testing::write_documents(path("documents.h5"), Vocabulary::bytes(true),
                                                           testing::counting(lengths, 200, true), shares));
  }
  static DocumentOptions options(std::int64_t n, bool next_tokens = true) {
    DocumentOptions made;
    made.sequence_length = n;
    made.next_tokens = next_tokens;
    made.shuffled = false;
    return made;
  }
};

TEST_F(DocumentSourceTest, RowsAreDocumentsOrParts) {
  const TokenizedDataset dataset = dataset_of({3, 1, 5});
  const DocumentSource source(dataset, Split::train, options(4));
  EXPECT_EQ(source.n_samples(), 4u);  // 0 1 2 <d>; 4 <d>; 6 7 8 9 10 <d>: five inputs, in two rows
  const Batch batch = source.single_pass_batch(0, 4);
  EXPECT_EQ(batch.n, 4);
  EXPECT_THAT(batch.inputs, ElementsAre(0, 1, 2, 0, 4, 0, 0, 0, 6, 7, 8, 9, 10, 0, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 256, -1, 256, -1, -1, -1, 7, 8, 9, 10, 256, -1, -1, -1));
  EXPECT_THAT(batch.mask, ElementsAre(1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0));
  EXPECT_EQ(batch.n_targets, 9);
  EXPECT_EQ(batch.n_tokens, 9);
  EXPECT_THAT(
      source.note(),
      HasSubstr(
          "1 of the 3 documents of the train split are longer than 4 tokens (data.sequence_length) and are split"));
  EXPECT_TRUE(source.batch(2, 1).mask.empty());  // no padding
  const Batch end = source.single_pass_batch(3, 3);
  EXPECT_EQ(end.n_targets, 1);
  EXPECT_THAT(end.mask, ElementsAre(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));

  // For masked language modeling each token is an input, and there are no targets yet.
  const DocumentSource all(dataset, Split::train, options(4, false));
  EXPECT_EQ(all.n_samples(), 4u);
  const Batch inputs = all.batch(0, 4);
  EXPECT_THAT(inputs.inputs, ElementsAre(0, 1, 2, 256, 4, 256, 0, 0, 6, 7, 8, 9, 10, 256, 0, 0));
  EXPECT_THAT(inputs.targets, ::testing::Each(ignored_target));
  EXPECT_EQ(inputs.n_tokens, 12);
}

TEST_F(DocumentSourceTest, PadsRowsToTheLongest) {
  const TokenizedDataset dataset = dataset_of({70, 2, 300});
  EXPECT_EQ(DocumentSource(dataset, Split::train, options(1000)).batch(0, 2).n, 128);
  EXPECT_EQ(DocumentSource(dataset, Split::train, options(1000)).batch(1, 1).n, 64);
  EXPECT_EQ(DocumentSource(dataset, Split::train, options(100)).batch(2, 1).n, 100);
  DocumentOptions fixed = options(1000);
  fixed.pad_to_longest = false;
  EXPECT_EQ(DocumentSource(dataset, Split::train, fixed).batch(1, 1).n, 1000);
}

/// For any row length and batch size, and if a split cuts documents: each token except the first of each document (or
/// part) is a target once, at the preceding token.
TEST_F(DocumentSourceTest, OnePassCoversEachTargetOnce) {
  const TokenizedDataset dataset = dataset_of({40, 7, 1, 90, 13, 64, 63, 65, 5, 30}, "0.6,0.3,0.1");
  for (const Split split : all_splits) {
    const std::vector<std::uint64_t> starts = document_starts(dataset, split);
    for (const std::int64_t n : {1, 7, 64, 1000}) {
      const DocumentSource source(dataset, split, options(n));
      std::multiset<std::pair<std::int32_t, std::int32_t>> seen, expected;
      for (std::uint64_t first = 0; first < source.n_samples(); first += 3) {
        const Batch batch = source.single_pass_batch(first, 3);
        for (std::size_t i = 0; i < batch.targets.size(); ++i) {
          if (batch.targets[i] == ignored_target) continue;
          seen.emplace(batch.inputs[i], batch.targets[i]);
          EXPECT_TRUE(batch.mask.empty() || batch.mask[i] == 1);
        }
      }
      const std::vector<std::int32_t> tokens = dataset.read(split, 0, dataset.size(split));
      for (std::size_t i = 1; i < tokens.size(); ++i) {
        if (!std::binary_search(starts.begin(), starts.end(), i)) expected.emplace(tokens[i - 1], tokens[i]);
      }
      EXPECT_EQ(seen, expected) << name_of(split) << " " << n;
    }
  }
}

TEST_F(DocumentSourceTest, EachEpochPermutesAllRows) {
  const TokenizedDataset dataset = dataset_of(std::vector<std::size_t>(30, 5));
  DocumentOptions shuffled = options(16);
  shuffled.shuffled = true;
  shuffled.seed = 6;
  const DocumentSource source(dataset, Split::train, shuffled);
  ASSERT_EQ(source.n_samples(), 30u);
  std::set<std::vector<std::int32_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<std::int32_t> order;
    for (std::uint64_t i = 0; i < 30; ++i) {
      // A sample does not depend on its batch.
      order.push_back(source.batch(30 * epoch + i, 1).inputs[0]);
      const Batch five = source.batch(30 * epoch + i / 5 * 5, 5);
      EXPECT_EQ(five.inputs[i % 5 * static_cast<std::size_t>(five.n)], order.back());
    }
    EXPECT_EQ(std::set<std::int32_t>(order.begin(), order.end()).size(), 30u);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 4u);
}

TEST_F(DocumentSourceTest, MasksDoNotDependOnPadding) {
  const TokenizedDataset dataset = dataset_of({20, 100, 30, 7});
  const auto rows = std::make_shared<DocumentSource>(dataset, Split::train, options(200, false));
  const MaskedSource masked(rows, dataset.vocabulary().with_encoder_tokens(), {});
  const Batch whole = masked.batch(0, 4);
  EXPECT_EQ(whole.n, 128);
  EXPECT_EQ(whole.n_tokens, 161);
  for (std::uint64_t row = 0; row < 4; ++row) {
    const Batch one = masked.batch(row, 1);
    const auto n = static_cast<std::size_t>(rows->tokens_in(row));
    for (std::size_t i = 0; i < static_cast<std::size_t>(whole.n); ++i) {
      const std::size_t place = row * 128 + i;
      EXPECT_EQ(whole.mask[place], i < n ? 1 : 0);
      if (i >= n) {
        EXPECT_EQ(whole.targets[place], ignored_target);
        continue;
      }
      EXPECT_EQ(one.inputs[i], whole.inputs[place]);
      EXPECT_EQ(one.targets[i], whole.targets[place]);
    }
  }
  EXPECT_GT(whole.n_targets, 5);
}

TEST_F(DocumentSourceTest, IgnoresSymbolsAndRejectsEmptySplits) {
  const TokenizedDataset dataset = dataset_of({3, 4});
  DocumentOptions ignoring = options(8);
  ignoring.ignore_tokens = {"<document>", "0x01"};
  EXPECT_EQ(DocumentSource(dataset, Split::train, ignoring).batch(0, 2).n_targets, 4);
  EXPECT_THAT(message_of<UserError>([&] { DocumentSource(dataset, Split::test, options(8)); }),
              HasSubstr("the test split has no document"));
  ignoring.ignore_tokens = {"nothing"};
  EXPECT_THAT(message_of<UserError>([&] { DocumentSource(dataset, Split::train, ignoring); }),
              HasSubstr("'nothing' is not a symbol"));
}

}  // namespace
}  // namespace furlong
