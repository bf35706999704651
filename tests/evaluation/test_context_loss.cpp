// Loss by position in the context and by sequence length: furlong evaluate --by-position, --lengths.
#include "evaluation/context_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <numeric>

#include "evaluation/sequences/hidden_states.h"
#include "tests/evaluation/sequence_testing.h"
#include "tests/framework/engine_testing.h"

namespace furlong {
namespace {

using testing::defined_log_probability;
using testing::defined_run;
using ::testing::HasSubstr;
using testing::message_of;
using testing::sequence_model;
using testing::with;

std::vector<ContextRange> ranges_of(Model& model, const Dataset& data, std::int64_t length, std::int64_t batch_size,
                                    Split split = Split::validation) {
  ContextLosses losses(model.settings.data.stateful);
  evaluate(model, data, split, length, batch_size, 0, {}, {},
           [&](std::uint64_t, const Batch& batch, const ops::CrossEntropyResult& result) {
             losses.add(batch, doubles_of(result.row_losses));
           });
  return losses.ranges();
}

void expect_equal_ranges(const std::vector<ContextRange>& found, const std::vector<ContextRange>& expected,
                         double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].first, expected[i].first);
    EXPECT_EQ(found[i].last, expected[i].last);
    EXPECT_EQ(found[i].targets, expected[i].targets) << expected[i].first;
    EXPECT_NEAR(found[i].loss, expected[i].loss, tolerance) << expected[i].first;
  }
}

class ContextLossTest : public testing::WithTemporaryFolder {
 protected:
  /// 150 tokens of validation, in one document.
  TokenizedDataset text() const {
    return TokenizedDataset::open(testing::write_store(path("text.h5"), testing::synthetic_text(300), "0.5,0.5,0"));
  }
  /// Documents of 5 to 60 letters, all in the training split.
  TokenizedDataset documents(const Vocabulary& vocabulary = Vocabulary::bytes(false)) const {
    testing::Documents all;
    std::uint16_t id = 0;
    for (const std::size_t length : {60, 5, 33, 40, 17, 8}) {
      for (std::uint16_t& one : all.emplace_back(length)) one = static_cast<std::uint16_t>((id = (5 * id + 3) % 19));
    }
    return TokenizedDataset::open(testing::write_documents(path("documents.h5"), vocabulary, all, "1"));
  }
};

TEST_F(ContextLossTest, LossesByPositionMatchTheirDefinitionInFloat64) {
  const TokenizedDataset data = text();
  Model model = sequence_model(Vocabulary::bytes(false), {"model.attention.mechanism=softmax"});
  const std::vector<std::int32_t> tokens = data.read(Split::validation, 0, 150);
  std::map<int, std::pair<int, double>> expected;  // by the exponent of the range's end
  for (std::size_t begin = 0; begin < 149; begin += 32) {
    const std::size_t n = std::min<std::size_t>(32, 149 - begin);
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto run = defined_run(model, {first, first + static_cast<std::ptrdiff_t>(n)});
    for (std::size_t i = 0; i < n; ++i) {
      auto& [targets, loss] = expected[std::bit_width(i)];
      ++targets;
      loss -= defined_log_probability(model, run, i, tokens[begin + i + 1]);
    }
  }
  for (const std::int64_t batch_size : {1, 3}) {
    const std::vector<ContextRange> found = ranges_of(model, data, 32, batch_size);
    ASSERT_EQ(found.size(), 6u);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto& [targets, loss] = expected.at(static_cast<int>(i));
      EXPECT_EQ(found[i].last, 1 << i);
      EXPECT_EQ(found[i].first, i == 0 ? 1 : (1 << (i - 1)) + 1);
      EXPECT_EQ(found[i].targets, targets);
      EXPECT_NEAR(found[i].loss, loss / targets, 1e-10);
    }
    EXPECT_NEAR(found[1].bits(), found[1].loss / std::log(2.0), 1e-12);
  }
}

TEST(ContextLosses, ContextStartsWithTheDocumentAndContinuesInStatefulRows) {
  Batch batch{.batch = 2, .n = 4, .inputs = std::vector<std::int32_t>(8), .targets = {1, 1, -1, 1, 1, 1, 1, 1}};
  const std::vector<double> losses{1, 2, 100, 4, 5, 6, 7, 8};
  const auto found = [&](ContextLosses& sums) {
    sums.add(batch, losses);
    std::map<std::int64_t, std::pair<std::int64_t, double>> by_end;
    for (const ContextRange& range : sums.ranges()) by_end[range.last] = {range.targets, range.loss};
    return by_end;
  };
  using Ranges = std::map<std::int64_t, std::pair<std::int64_t, double>>;
  ContextLosses plain(false);
  EXPECT_EQ(found(plain), (Ranges{{1, {2, 3}}, {2, {2, 4}}, {4, {3, 19.0 / 3}}}));
  batch.documents = {0, 0, 1, 1, 0, 1, 2, 2};
  ContextLosses packed(false);
  EXPECT_EQ(found(packed), (Ranges{{1, {4, 19.0 / 4}}, {2, {3, 14.0 / 3}}}));
  batch.documents.clear();
  ContextLosses stateful(true);
  batch.fresh = {1, 1};
  found(stateful);
  batch.fresh = {0, 1};  // the first row continues: contexts 5 to 8
  EXPECT_EQ(found(stateful), (Ranges{{1, {3, 11.0 / 3}}, {2, {3, 14.0 / 3}}, {4, {5, 34.0 / 5}}, {8, {3, 7.0 / 3}}}));
}

TEST_F(ContextLossTest, StatefulSegmentsHaveTheContextOfTheirDocument) {
  const TokenizedDataset data = documents();
  const std::vector<std::string> linear{"model.attention.mechanism=linear", "model.attention.feature_map=elu1"};
  Model whole = sequence_model(data.vocabulary(), with(linear, {"data.sampler=documents"}));
  Model segments = sequence_model(data.vocabulary(), with(linear, {"data.sampler=stream", "data.stateful=true"}));
  expect_equal_ranges(ranges_of(segments, data, 8, 1, Split::train), ranges_of(whole, data, 64, 1, Split::train), 1e-9);
}

TEST_F(ContextLossTest, LossesByLengthAreThoseOfEvaluateWithThatLength) {
  const TokenizedDataset data = text();
  Model model = sequence_model(data.vocabulary(), {"model.attention.mechanism=softmax"});
  for (const std::int64_t batch_size : {1, 2}) {
    const std::vector<LengthLoss> found = losses_by_length(model, data, Split::validation, {64, 8, 16, 8}, batch_size);
    ASSERT_EQ(found.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(found[i].length, (std::array{8, 16, 64})[i]);
      const Evaluation expected = evaluate(model, data, Split::validation, found[i].length, 4);
      EXPECT_EQ(found[i].found.targets, 149);
      EXPECT_EQ(expected.targets, 149);
      EXPECT_NEAR(found[i].found.loss, expected.loss, 1e-12);
      EXPECT_DOUBLE_EQ(found[i].found.accuracy, expected.accuracy);
    }
    EXPECT_GT(std::abs(found[0].found.loss - found[2].found.loss), 1e-6) << "length has no effect";
  }
}

TEST_F(ContextLossTest, EachLengthHasTheSameTargets) {
  const TokenizedDataset data = documents(Vocabulary::protein());
  struct Case {
    std::vector<std::string> overrides;
    bool encodes;
  };
  const auto masked = with(testing::encoder, {"objective.mask_probability=0.4"});
  for (const Case& one :
       {Case{{"data.sampler=documents"}, false}, Case{{"data.packing=documents"}, false}, Case{masked, true}}) {
    Model model = sequence_model(one.encodes ? data.vocabulary().with_encoder_tokens() : data.vocabulary(),
                                 with({"model.attention.mechanism=softmax"}, one.overrides));
    // 12 does not divide 64; batches of one row and of several.
    for (const std::int64_t max_batches : {0, 1}) {
      const auto found = losses_by_length(model, data, Split::train, {12, 16, 64}, 2, max_batches);
      const Evaluation whole = evaluate(model, data, Split::train, 64, 2, max_batches);
      EXPECT_EQ(found[2].found.loss, whole.loss);
      for (const LengthLoss& length : found) {
        EXPECT_EQ(length.found.targets, whole.targets) << length.length;
        EXPECT_TRUE(std::isfinite(length.found.loss));
      }
      EXPECT_NE(found[0].found.loss, found[2].found.loss);
    }
  }
}

// A window and the one document in it are the same row; only the source of documents masks padding.
TEST_F(ContextLossTest, PaddingOfCutWindowsIsMasked) {
  testing::Documents one(1);
  for (std::uint16_t i = 0; i < 63; ++i) one[0].push_back(static_cast<std::uint16_t>(i * i % 19));
  const TokenizedDataset data =
      TokenizedDataset::open(testing::write_documents(path("one.h5"), Vocabulary::protein(), one, "1"));
  std::vector<LengthLoss> found[2];
  for (const bool documents : {false, true}) {
    Model model = sequence_model(
        data.vocabulary().with_encoder_tokens(),
        with(testing::encoder,
             {documents ? "data.sampler=documents" : "data.sampler=sequential", "objective.mask_probability=0.4"}));
    found[documents] = losses_by_length(model, data, Split::train, {12, 63}, 1);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found[0][i].found.targets, found[1][i].found.targets);
    EXPECT_NEAR(found[0][i].found.loss, found[1][i].found.loss, 1e-12);
  }
}

TEST_F(ContextLossTest, RejectsModelsAndLengthsThatDoNotFit) {
  const TokenizedDataset data = text();
  const auto refused = [&](const std::vector<std::string>& overrides, std::int64_t length) {
    Model model = sequence_model(Vocabulary::bytes(false), overrides);
    return message_of<UserError>([&] { losses_by_length(model, data, Split::validation, {8, length}, 1); });
  };
  EXPECT_THAT(refused({"model.position=learned", "model.max_sequence_length=64"}, 65),
              HasSubstr("--lengths 65: the model has 64 learned positions"));
  EXPECT_THAT(refused({}, 151), HasSubstr("--lengths 151: the validation split of"));
  EXPECT_THAT(refused({"data.sampler=stream", "data.stateful=true", "model.attention.mechanism=linear",
                       "model.attention.feature_map=elu1"},
                      16),
              HasSubstr("data.stateful"));
  Model labels = sequence_model(Vocabulary::bytes(true).with_encoder_tokens().with_labels({"no", "yes"}),
                                {"model.architecture=encoder", "objective.name=classification"});
  EXPECT_THAT(message_of<UserError>([&] { losses_by_length(labels, data, Split::validation, {8}, 1); }),
              HasSubstr("applies only to models that predict tokens"));
  Model masked = sequence_model(Vocabulary::protein().with_encoder_tokens(), testing::encoder);
  EXPECT_THAT(message_of<UserError>([&] { require_causal(masked, "--by-position"); }),
              HasSubstr("--by-position: this model predicts masked tokens"));
  EXPECT_THAT(message_of<UserError>([&] { require_causal(labels, "--by-position"); }), HasSubstr("predicts labels"));
}

class ContextLossEngines : public testing::EngineTest {};
FURLONG_INSTANTIATE_GPUS(ContextLossEngines);

TEST_P(ContextLossEngines, LossesEqualThoseOfTheCpu) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("context_loss_" + std::to_string(::getpid()) + ".h5");
  const TokenizedDataset data =
      TokenizedDataset::open(testing::write_store(path, testing::synthetic_text(96), "0.5,0.5,0"));
  const Settings settings = testing::small_settings("none.h5", {"model.initializer_range=0.3"}).settings;
  Model cpu = make_model(settings, data.vocabulary(), Device{}),
        gpu = make_model(settings, data.vocabulary(), testing::device());
  expect_equal_ranges(ranges_of(gpu, data, 16, 2), ranges_of(cpu, data, 16, 2), 1e-4);
  const auto expected = losses_by_length(cpu, data, Split::validation, {8, 16}, 2),
             found = losses_by_length(gpu, data, Split::validation, {8, 16}, 2);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(found[i].found.loss, expected[i].found.loss, 1e-4);
    EXPECT_EQ(found[i].found.targets, 47);
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace furlong
