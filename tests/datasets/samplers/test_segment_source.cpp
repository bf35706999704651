#include "datasets/samplers/segment_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "datasets/samplers/sampler.h"
#include "framework/core/error.h"
#include "tests/datasets/small_datasets.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

class DocumentsTest : public testing::WithTemporaryFolder {
 protected:
  /// A dataset of bytes 0, 1, 2, ... in documents of these lengths, all in the training split.
  TokenizedDataset dataset_of(const std::vector<std::size_t>& lengths) const {
    return TokenizedDataset::open(
        testing::write_documents(path("store.h5"), Vocabulary::bytes(false), testing::counting(lengths, 256)));
  }
};

using SegmentSourceTest = DocumentsTest;
using PackedSamplerTest = DocumentsTest;

TEST_F(SegmentSourceTest, RowContinuesThroughDocumentSegments) {
  const TokenizedDataset dataset = dataset_of({6, 9, 4});
  const SegmentSource source(dataset, Split::train, {.sequence_length = 4, .rows = 1});
  // 6 tokens: 4 + 1 targets; 9: 4 + 4; 4: 3.
  ASSERT_EQ(source.n_samples(), 5u);
  const Batch first = source.batch(0, 1), second = source.batch(1, 1), third = source.batch(2, 1),
              fourth = source.batch(3, 1), fifth = source.batch(4, 1);
  EXPECT_THAT(first.inputs, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(first.targets, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(second.inputs, ElementsAre(4, 5, 0, 0));
  EXPECT_THAT(second.targets, ElementsAre(5, -1, -1, -1));
  EXPECT_THAT(third.inputs, ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(fourth.inputs, ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(fourth.targets, ElementsAre(11, 12, 13, 14));
  EXPECT_THAT(fifth.inputs, ElementsAre(15, 16, 17, 18));
  EXPECT_THAT(fifth.targets, ElementsAre(16, 17, 18, -1));
  EXPECT_THAT((std::vector{first.fresh[0], second.fresh[0], third.fresh[0], fourth.fresh[0], fifth.fresh[0]}),
              ElementsAre(1, 0, 1, 0, 1));
  EXPECT_EQ(second.n_targets, 1);
  // Then the stream starts again.
  EXPECT_EQ(source.batch(5, 1).inputs, first.inputs);
  EXPECT_THAT(source.batch(5, 1).fresh, ElementsAre(1));
  EXPECT_EQ(source.single_pass_batch(5, 1).n_targets, 0);
}

TEST_F(SegmentSourceTest, RowsHaveSeparateStreamsThatRestart) {
  const TokenizedDataset dataset = dataset_of({41});  // 10 segments of 4
  const SegmentSource source(dataset, Split::train, {.sequence_length = 4, .rows = 4});
  ASSERT_EQ(source.n_samples(), 12u);
  // Streams [0, 2), [2, 5), [5, 7), [7, 10).
  const auto starts = [&](std::uint64_t round) {
    const Batch batch = source.batch(4 * round, 4);
    return std::vector{batch.inputs[0] / 4, batch.inputs[4] / 4, batch.inputs[8] / 4, batch.inputs[12] / 4};
  };
  EXPECT_THAT(starts(0), ElementsAre(0, 2, 5, 7));
  EXPECT_THAT(starts(1), ElementsAre(1, 3, 6, 8));
  EXPECT_THAT(starts(2), ElementsAre(0, 4, 5, 9));
  EXPECT_THAT(starts(3), ElementsAre(1, 2, 6, 7));
  EXPECT_THAT(source.batch(0, 4).fresh, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(source.batch(8, 4).fresh, ElementsAre(1, 0, 1, 0));
  EXPECT_THAT(source.batch(12, 4).fresh, ElementsAre(0, 1, 0, 1));
  // Half of the rows at a time, as with gradient accumulation.
  const Batch whole = source.batch(4, 4), half = source.batch(6, 2);
  EXPECT_EQ(half.inputs, std::vector<std::int32_t>(whole.inputs.begin() + 8, whole.inputs.end()));

  std::vector<int> seen(41, 0);
  for (std::uint64_t first = 0; first < source.n_samples(); first += 4) {
    for (const std::int32_t target : source.single_pass_batch(first, 4).targets) {
      if (target != ignored_target) ++seen[static_cast<std::size_t>(target)];
    }
  }
  EXPECT_EQ(seen[0], 0);
  for (std::size_t token = 1; token < seen.size(); ++token) EXPECT_EQ(seen[token], 1) << token;
}

TEST_F(SegmentSourceTest, StreamsStartWithDocuments) {
  const auto stream_starts = [&](const std::vector<std::size_t>& lengths, std::int64_t rows) {
    const TokenizedDataset dataset = dataset_of(lengths);
    const SegmentSource source(dataset, Split::train,
                               {.sequence_length = 4, .rows = rows, .ignore_tokens = {}, .whole_documents = true});
    const Batch batch = source.batch(0, rows);
    std::vector<std::int32_t> tokens;
    for (std::int64_t row = 0; row < rows; ++row) tokens.push_back(batch.inputs[static_cast<std::size_t>(4 * row)]);
    std::uint64_t tokens_twice = 0, targets = 0;
    std::vector<int> seen(256, 0);
    for (std::uint64_t first = 0; first < source.n_samples(); first += static_cast<std::uint64_t>(rows)) {
      const Batch round = source.single_pass_batch(first, rows);
      for (const std::int32_t target : round.targets)
        if (target != ignored_target) tokens_twice += ++seen[static_cast<std::size_t>(target)] > 1, ++targets;
    }
    std::uint64_t expected = 0;
    for (const std::size_t length : lengths) expected += length - 1;
    EXPECT_EQ(targets, expected);
    EXPECT_EQ(tokens_twice, 0u);
    return tokens;
  };
  // Segments 2, 3, 1, 4: documents start at 0, 2, 5, 6 of 10.
  EXPECT_THAT(stream_starts({9, 13, 5, 17}, 2), ElementsAre(0, 22));     // 5 of 10
  EXPECT_THAT(stream_starts({9, 13, 5, 17}, 3), ElementsAre(0, 9, 27));  // 3.3 and 6.7 of 10
  EXPECT_THAT(stream_starts({9, 13, 5, 17}, 4), ElementsAre(0, 9, 22, 27));
  // Too few documents, or one much longer than the others: streams start inside documents.
  EXPECT_THAT(stream_starts({9, 25}, 4), ElementsAre(0, 9, 17, 25));
  EXPECT_THAT(stream_starts({5, 65, 5, 5, 5}, 4), ElementsAre(0, 21, 41, 61));
}

TEST_F(SegmentSourceTest, RejectsMoreRowsThanSegments) {
  const TokenizedDataset dataset = dataset_of({9, 1, 5});
  EXPECT_THAT(message_of<UserError>([&] { SegmentSource(dataset, Split::train, {.sequence_length = 4, .rows = 4}); }),
              HasSubstr("the train split has 3 segments of at most 4 tokens, too few for 4 rows"));
}

TEST_F(PackedSamplerTest, DocumentsAreNumberedAndTargetsStayInside) {
  const TokenizedDataset dataset = dataset_of({3, 0, 1, 6, 2});
  const Sampler sampler(dataset, Split::train,
                        {.order = SamplerOptions::Order::sequential,
                         .sequence_length = 8,
                         .seed = 0,
                         .ignore_tokens = {},
                         .separate_documents = true});
  const Batch batch = sampler.single_pass_batch(0, 3);
  EXPECT_EQ(batch.documents, (std::vector<std::int32_t>{0, 0, 0, 1, 2, 2, 2, 2,        //
                                                        0, 0, 1, 1, 2, 2, 2, 2,        // padding counts as a document
                                                        0, 0, 0, 0, 0, 0, 0, 0}));     // no window
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{1,  2,  -1, -1, 5,  6,  7,  8,   //
                                                      9,  -1, 11, -1, -1, -1, -1, -1,  //
                                                      -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(batch.n_targets, 8);
}

TEST_F(PackedSamplerTest, RandomWindowsMayStartInsideDocuments) {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < 40; ++i) lengths.push_back(1 + i % 6);
  const TokenizedDataset dataset = dataset_of(lengths);
  std::vector<std::int32_t> document_of;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    document_of.insert(document_of.end(), lengths[i], static_cast<std::int32_t>(i));
  const Sampler sampler(dataset, Split::train,
                        {.order = SamplerOptions::Order::random,
                         .sequence_length = 16,
                         .seed = 3,
                         .ignore_tokens = {},
                         .separate_documents = true});
  for (std::uint64_t index = 0; index < 100; ++index) {
    const Batch batch = sampler.batch(index, 1);
    const auto start = static_cast<std::size_t>(batch.inputs[0]);
    for (std::size_t t = 0; t < 16; ++t) {
      EXPECT_EQ(batch.documents[t], document_of[start + t] - document_of[start]);
      const bool same = start + t + 1 < document_of.size() && document_of[start + t + 1] == document_of[start + t];
      EXPECT_EQ(batch.targets[t] != ignored_target, same) << start << " " << t;
    }
  }
}

}  // namespace
}  // namespace furlong
