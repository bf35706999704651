#include "datasets/samplers/masking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "framework/core/error.h"
#include "framework/core/random.h"
#include "tests/datasets/small_datasets.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using Order = SamplerOptions::Order;

class MaskingTest : public testing::WithTemporaryFolder {
 protected:
  /// A DNA dataset: random bases, a document token after every 50, all in the training split.
  TokenizedDataset dna(std::size_t n_documents) const {
    testing::Documents documents(n_documents, std::vector<std::uint16_t>(50));
    const RandomKey key{3, 0, random_stream("bases")};
    std::uint64_t at = 0;
    for (auto& ids : documents) {
      for (std::uint16_t& id : ids) id = static_cast<std::uint16_t>(random_word(key, at++) % 5);  // four bases and R
    }
    return TokenizedDataset::open(testing::write_documents(path("dna.h5"), Vocabulary::dna(), documents));
  }

  static MaskedSource source(const TokenizedDataset& dataset, std::int64_t n, Order order,
                             const MaskingOptions& masking = {}) {
    SamplerOptions options;
    options.order = order;
    options.sequence_length = n;
    options.seed = 1;
    return {Sampler(dataset, Split::train, options), dataset.vocabulary().with_encoder_tokens(), masking};
  }
};

TEST_F(MaskingTest, FractionsMatchOptions) {
  const TokenizedDataset dataset = dna(400);
  const Vocabulary vocabulary = dataset.vocabulary().with_encoder_tokens();
  for (const auto& [mask_share, random_share] : {std::pair{0.8, 0.1}, std::pair{0.5, 0.5}, std::pair{1.0, 0.0}}) {
    MaskingOptions masking;
    masking.mask_token_fraction = mask_share;
    masking.random_token_fraction = random_share;
    masking.ignore_tokens = {"R"};
    const MaskedSource masked = source(dataset, 100, Order::sequential, masking);
    SamplerOptions plain;
    plain.order = Order::sequential;
    plain.sequence_length = 100;
    const Batch before = Sampler(dataset, Split::train, plain).batch(0, 200), after = masked.batch(0, 200);
    std::array<double, 4> counts{};  // eligible, masked, random symbol, unchanged
    std::array<int, 16> drawn{};
    for (std::size_t i = 0; i < before.inputs.size(); ++i) {
      const std::int32_t truth = before.inputs[i], shown = after.inputs[i], target = after.targets[i];
      if (truth == 4 || truth == *vocabulary.document_id()) {
        EXPECT_EQ(target, ignored_target);
        EXPECT_EQ(shown, truth);
        continue;
      }
      ++counts[0];
      if (target == ignored_target) {
        EXPECT_EQ(shown, truth);
        continue;
      }
      EXPECT_EQ(target, truth);
      ++counts[shown == *vocabulary.mask_id() ? 1 : shown == truth ? 3 : 2];
      if (shown != *vocabulary.mask_id() && shown != truth) ++drawn[static_cast<std::size_t>(shown)];
    }
    const double chosen = counts[1] + counts[2] + counts[3], others = 1 - mask_share - random_share;
    EXPECT_EQ(static_cast<double>(after.n_targets), chosen);
    // Tolerance: five standard deviations of a binomial fraction.
    const auto near = [](double found, double share, double trials) {
      EXPECT_NEAR(found / trials, share, 5 * std::sqrt(share * (1 - share) / trials) + 1e-12);
    };
    near(chosen, 0.15, counts[0]);
    near(counts[1], mask_share, chosen);
    // One of the fifteen data symbols is the token itself.
    near(counts[2], random_share * 14 / 15, chosen);
    near(counts[3], others + random_share / 15, chosen);
    EXPECT_EQ(drawn[15], 0);  // never <document>
    if (random_share > 0.3) {
      EXPECT_GT(*std::min_element(drawn.begin(), drawn.begin() + 15), 0);
    }
  }
}

TEST_F(MaskingTest, MaskDependsOnlyOnSample) {
  const TokenizedDataset dataset = dna(20);
  const MaskedSource masked = source(dataset, 30, Order::random);
  const Batch whole = masked.batch(7, 6);
  for (std::uint64_t row = 0; row < 6; ++row) {
    const Batch one = masked.batch(7 + row, 1);
    const auto part = [&](const std::vector<std::int32_t>& all) {
      return std::vector(all.begin() + static_cast<std::ptrdiff_t>(row * 30),
                         all.begin() + static_cast<std::ptrdiff_t>(row * 30 + 30));
    };
    EXPECT_EQ(one.inputs, part(whole.inputs));
    EXPECT_EQ(one.targets, part(whole.targets));
  }
  // The same tokens in the next epoch, or with another seed or stream, have other masks.
  const MaskedSource in_order = source(dataset, 34, Order::sequential);
  EXPECT_NE(in_order.batch(0, 4).targets, in_order.batch(in_order.n_samples(), 4).targets);
  EXPECT_EQ(in_order.batch(0, 4).targets, in_order.batch(0, 4).targets);
  MaskingOptions other;
  other.seed = 1;
  EXPECT_NE(in_order.batch(0, 4).targets, source(dataset, 34, Order::sequential, other).batch(0, 4).targets);
  other.seed = 0;
  other.stream = "masking for evaluation";
  EXPECT_NE(in_order.batch(0, 4).targets, source(dataset, 34, Order::sequential, other).batch(0, 4).targets);
}

TEST_F(MaskingTest, PaddingIsMaskedAndNeverTarget) {
  const TokenizedDataset dataset = dna(2);  // 102 tokens: windows of 40, 40, 22
  const MaskedSource masked = source(dataset, 40, Order::sequential);
  ASSERT_EQ(masked.n_samples(), 3u);
  EXPECT_TRUE(masked.batch(0, 2).mask.empty());
  const Batch last = masked.single_pass_batch(2, 2);
  ASSERT_EQ(last.mask.size(), 80u);
  EXPECT_EQ(last.n_tokens, 22);
  for (std::size_t i = 0; i < 80; ++i) {
    EXPECT_EQ(last.mask[i], i < 22 ? 1 : 0);
    if (i < 22) continue;
    EXPECT_EQ(last.inputs[i], 0);
    EXPECT_EQ(last.targets[i], ignored_target);
  }
}

TEST_F(MaskingTest, PackedDocumentsKeepTheirIndices) {
  const TokenizedDataset dataset = dna(6);
  SamplerOptions options;
  options.order = Order::sequential;
  options.sequence_length = 120;
  options.separate_documents = true;
  const Sampler windows(dataset, Split::train, options);
  const Batch plain = windows.batch(0, 2),
              masked = MaskedSource(windows, dataset.vocabulary().with_encoder_tokens(), {}).batch(0, 2);
  ASSERT_EQ(plain.documents.size(), 240u);
  EXPECT_EQ(masked.documents, plain.documents);
  EXPECT_GT(masked.n_targets, 0);
}

TEST_F(MaskingTest, RejectsUnknownSymbols) {
  const TokenizedDataset dataset = dna(2);
  MaskingOptions masking;
  masking.ignore_tokens = {"J"};
  EXPECT_THAT(message_of<UserError>([&] { source(dataset, 10, Order::random, masking); }),
              HasSubstr("'J' is not a symbol"));
}

TEST(EncoderVocabulary, AddsTwoTokensAndKeepsTheOthers) {
  for (const Vocabulary& plain :
       {Vocabulary::bytes(false), Vocabulary::bytes(true), Vocabulary::dna(), Vocabulary::protein()}) {
    const Vocabulary vocabulary = plain.with_encoder_tokens().with_labels({"no", "yes, or so"});
    EXPECT_EQ(vocabulary.size(), plain.size() + 2);
    EXPECT_EQ(vocabulary.document_id(), plain.document_id());
    EXPECT_EQ(vocabulary.n_data_symbols(), plain.n_data_symbols());
    EXPECT_EQ(vocabulary.mask_id(), plain.size());
    EXPECT_EQ(vocabulary.class_id(), plain.size() + 1);
    EXPECT_FALSE(plain.mask_id() || plain.class_id());
    EXPECT_EQ(vocabulary.id_of("<mask>"), vocabulary.mask_id());
    EXPECT_EQ(vocabulary.decode(std::vector<std::int32_t>{*vocabulary.mask_id()}), "<mask>");
    EXPECT_TRUE(vocabulary.with_encoder_tokens() == vocabulary);
    EXPECT_FALSE(vocabulary == plain);
    EXPECT_FALSE(vocabulary == vocabulary.with_labels({"no"}));
    const Vocabulary again = Vocabulary::from_json(vocabulary.to_json(), "test");
    EXPECT_TRUE(again == vocabulary);
    EXPECT_EQ(again.labels(), vocabulary.labels());
    EXPECT_TRUE(Vocabulary::from_json(plain.with_labels({"a"}).to_json(), "test") == plain.with_labels({"a"}));
  }
  EXPECT_THAT(message_of<UserError>(
                  [] { Vocabulary::from_json(R"({"kind": "dna", "symbols": ["A", "<mask>", "<class>"]})", "f.h5"); }),
              HasSubstr("f.h5: the vocabulary is damaged"));
}

}  // namespace
}  // namespace furlong
