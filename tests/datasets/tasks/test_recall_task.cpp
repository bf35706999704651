// Recall tasks: their structure is checked by solving them from the tokens alone.
#include "datasets/tasks/recall_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "datasets/tokenizers/tokenizer.h"
#include "framework/core/enum_names.h"
#include "framework/core/error.h"
#include "tests/datasets/tokenizers/small_tokenizers.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t samples = 20;

/// Rows of inputs, and the places of their targets.
struct RecallRow {
  Ids inputs;
  std::map<std::size_t, std::int32_t> targets;
};

std::vector<RecallRow> rows_of(const Vocabulary& vocabulary, const RecallOptions& options) {
  const Batch batch = make_recall_task(vocabulary, options)->single_pass_batch(0, samples);
  EXPECT_EQ(batch.n, options.sequence_length);
  std::vector<RecallRow> rows;
  std::int64_t targets = 0;
  for (std::int64_t row = 0; row < batch.batch; ++row) {
    const auto first = static_cast<std::ptrdiff_t>(row * batch.n);
    RecallRow& made = rows.emplace_back();
    made.inputs.assign(batch.inputs.begin() + first, batch.inputs.begin() + first + batch.n);
    for (std::size_t i = 0; i < made.inputs.size(); ++i) {
      const std::int32_t target = batch.targets[static_cast<std::size_t>(first) + i];
      if (target != ignored_target) made.targets[i] = target;
    }
    targets += std::ssize(made.targets);
  }
  EXPECT_EQ(batch.n_targets, targets);
  return rows;
}

TEST(RecallTask, SplitsDifferAndTrainingIsEndless) {
  const Vocabulary vocabulary = Vocabulary::copy(8);
  std::set<Ids> inputs;
  for (const Split split : {Split::train, Split::validation, Split::test}) {
    const auto source = make_recall_task(vocabulary, {.sequence_length = 32, .pairs = 4, .split = split});
    inputs.insert(source->batch(0, 4).inputs);
    EXPECT_EQ(source->batch(0, 4).inputs, source->batch(0, 4).inputs);
    if (split == Split::train) {
      EXPECT_GT(source->n_samples(), std::uint64_t{1} << 60);
      EXPECT_GT(source->batch(std::uint64_t{1} << 40, 4).n_targets, 0);
    } else {
      EXPECT_EQ(source->n_samples(), 1024u);
    }
  }
  EXPECT_EQ(inputs.size(), 3u);
}

TEST(RecallTask, AssociativeAnswersAreTheValuesOfTheirKeys) {
  for (const std::int64_t pairs : {1, 10, 47}) {
    const Vocabulary vocabulary = Vocabulary::bytes(true);
    std::set<std::size_t> places;
    for (const RecallRow& row : rows_of(vocabulary, {.task = Recall::associative,
                                                    .sequence_length = 190,
                                                    .pairs = pairs,
                                                    .start = vocabulary.document_id()})) {
      EXPECT_EQ(row.inputs[0], *vocabulary.document_id());
      std::map<std::int32_t, std::int32_t> values;
      for (std::size_t i = 0; i < static_cast<std::size_t>(pairs); ++i)
        values[row.inputs[1 + 2 * i]] = row.inputs[2 + 2 * i];
      ASSERT_EQ(std::ssize(values), pairs) << "keys differ";
      std::set<std::int32_t> asked;
      for (const auto& [place, target] : row.targets) {
        EXPECT_GT(place, static_cast<std::size_t>(2 * pairs));
        EXPECT_EQ(target, values.at(row.inputs[place]));
        EXPECT_EQ(target, row.inputs[place + 1]);
        asked.insert(row.inputs[place]);
        places.insert(place);
      }
      EXPECT_EQ(std::ssize(asked), pairs) << "each key is asked for once";
      for (std::size_t i = 1; i < row.inputs.size(); ++i) {
        const bool is_key = (i <= static_cast<std::size_t>(2 * pairs) && i % 2 == 1) || row.targets.contains(i);
        EXPECT_EQ(values.contains(row.inputs[i]), is_key) << "a key elsewhere: " << i;
      }
    }
    if (pairs > 1) {
      EXPECT_GT(*places.rbegin() - *places.begin(), 60u) << "queries are spread";
    }
  }
}

TEST(RecallTask, CopyRepeatsTheSymbolsAfterTheSeparator) {
  for (const Vocabulary& vocabulary : {Vocabulary::bytes(false), Vocabulary::dna(), Vocabulary::copy(7)}) {
    const RecallTokens tokens = recall_tokens(vocabulary);
    for (const RecallRow& row : rows_of(vocabulary, {.task = Recall::copy, .sequence_length = 64})) {
      EXPECT_EQ(row.inputs[0], tokens.start);
      EXPECT_EQ(row.inputs[32], tokens.separator);
      EXPECT_TRUE(std::equal(row.inputs.begin() + 1, row.inputs.begin() + 32, row.inputs.begin() + 33));
      EXPECT_EQ(row.targets.size(), 31u);
      for (const auto& [place, target] : row.targets) {
        EXPECT_EQ(target, row.inputs[place - 31]);
        EXPECT_NE(std::find(tokens.symbols.begin(), tokens.symbols.end(), target), tokens.symbols.end());
      }
    }
  }
  const std::vector<RecallRow> rows = rows_of(Vocabulary::copy(7), {.task = Recall::copy, .sequence_length = 16});
  const std::string text = Vocabulary::copy(7).decode(rows[0].inputs);
  EXPECT_EQ(text.substr(0, 1) + text.substr(8, 1), "<=") << "the form that the copy task trains on";
}

/// The longest end of the inputs that occurred before, and what followed it there.
TEST(RecallTask, InductionAnswerFollowedTheSameSymbolsBefore) {
  for (const Vocabulary& vocabulary : {Vocabulary::bytes(false), Vocabulary::dna(), Vocabulary::protein()}) {
    std::set<std::size_t> distances;
    for (const RecallRow& row : rows_of(vocabulary, {.task = Recall::induction, .sequence_length = 256})) {
      ASSERT_EQ(row.targets.size(), 1u);
      const auto [place, target] = *row.targets.begin();
      EXPECT_EQ(place, 254u);
      const Ids shown(row.inputs.begin() + 1, row.inputs.begin() + 255);
      std::size_t longest = 0, found = 0, with_longest = 0;
      for (std::size_t i = 0; i + 1 < shown.size(); ++i) {
        std::size_t length = 0;
        while (length <= i && shown[i - length] == shown[shown.size() - 1 - length]) ++length;
        if (length > longest) with_longest = 0;
        if (length >= longest && length > 0) {
          longest = length;
          found = i;
          ++with_longest;
        }
      }
      EXPECT_EQ(with_longest, 1u);
      EXPECT_EQ(shown[found + 1], target);
      distances.insert(shown.size() - found);
    }
    EXPECT_GT(distances.size(), 15u) << "the place is random";
  }
}

class RecallTaskOfTokenizer : public testing::WithTemporaryFolder {};

TEST_F(RecallTaskOfTokenizer, PasskeyIsHiddenInTheTextAndAskedForAtItsEnd) {
  const Vocabulary tokenizer = Vocabulary::of_tokenizer(load_tokenizer(testing::bpe_tokenizer(folder_)));
  for (const Vocabulary& vocabulary : {Vocabulary::bytes(true), tokenizer}) {
    std::set<std::size_t> depths;
    for (const std::int64_t length : {600, 1024}) {
      for (const RecallRow& row : rows_of(
               vocabulary, {.task = Recall::passkey, .sequence_length = length, .start = vocabulary.document_id()})) {
        EXPECT_EQ(row.inputs[0], *vocabulary.document_id());
        const std::string text = vocabulary.decode(std::span(row.inputs).subspan(1));
        EXPECT_THAT(text, ::testing::StartsWith("There is important information hidden"));
        const std::size_t needle = text.find("The pass key is ");
        ASSERT_NE(needle, std::string::npos);
        const std::string key = text.substr(needle + 16, 5);
        EXPECT_EQ(key.find_first_not_of("0123456789"), std::string::npos);
        EXPECT_THAT(text, HasSubstr(". Remember it. " + key + " is the pass key. "));
        EXPECT_TRUE(text.ends_with("There and back again. What is the pass key? The pass key is " + key) ||
                    text.ends_with("is the pass key. What is the pass key? The pass key is " + key));
        Ids answer;
        std::size_t expected = row.inputs.size() - 1 - row.targets.size();
        for (const auto& [at, target] : row.targets) {
          EXPECT_EQ(at, expected++) << "the answer is the end";
          EXPECT_EQ(target, row.inputs[at + 1]);
          answer.push_back(target);
        }
        EXPECT_THAT(vocabulary.decode(answer), ::testing::EndsWith(key));
        EXPECT_LE(answer.size(), vocabulary.tokenizer() ? 6u : 5u) << "without the space, if that is a token";
        depths.insert(needle);
      }
    }
    EXPECT_GT(depths.size(), 5u) << "the depth is random";
  }
}

TEST(RecallTask, SampleDependsOnlyOnOptionsAndIndex) {
  const Vocabulary vocabulary = Vocabulary::bytes(false);
  for (const Recall task : all_values<Recall>()) {
    RecallOptions options{.task = task, .sequence_length = 512, .pairs = 4, .seed = 5};
    const auto source = make_recall_task(vocabulary, options);
    const Batch all = source->single_pass_batch(0, 6), part = source->single_pass_batch(2, 3);
    EXPECT_EQ(part.inputs, Ids(all.inputs.begin() + 2 * 512, all.inputs.begin() + 5 * 512));
    EXPECT_EQ(part.targets, Ids(all.targets.begin() + 2 * 512, all.targets.begin() + 5 * 512));
    EXPECT_NE(Ids(all.inputs.begin(), all.inputs.begin() + 512),
              Ids(all.inputs.begin() + 512, all.inputs.begin() + 1024));
    options.seed = 6;
    EXPECT_NE(make_recall_task(vocabulary, options)->single_pass_batch(0, 6).inputs, all.inputs) << name_of(task);
    EXPECT_EQ(source->single_pass_batch(source->n_samples(), 1).n_targets, 0) << "past the end";
  }
}

TEST_F(RecallTaskOfTokenizer, SymbolsAreLettersAndWords) {
  EXPECT_EQ(recall_tokens(Vocabulary::dna()).symbols, Vocabulary::dna().encode("ACGT"));
  EXPECT_EQ(recall_tokens(Vocabulary::protein()).symbols.size(), 20u);
  const RecallTokens bytes = recall_tokens(Vocabulary::bytes(true), 256);
  EXPECT_EQ(bytes.start, 256);
  EXPECT_EQ(bytes.separator, '\n');
  EXPECT_EQ(bytes.symbols.size(), 94u);
  const Vocabulary few = Vocabulary::of_tokenizer(load_tokenizer(testing::bpe_tokenizer(folder_)));
  const RecallTokens tokens = recall_tokens(few, few.document_id());
  EXPECT_EQ(tokens.separator, '\n');
  EXPECT_EQ(tokens.symbols.size(), 260u) << "all tokens, because only three are words";
}

TEST(RecallTask, ObstaclesAreNamed) {
  const auto refused = [](const Vocabulary& vocabulary, const RecallOptions& options) {
    const std::string obstacle = recall_obstacle(vocabulary, options);
    EXPECT_EQ(message_of<UserError>([&] { make_recall_task(vocabulary, options); }),
              std::string(name_of(options.task)) + ": " + obstacle);
    return obstacle;
  };
  EXPECT_THAT(refused(Vocabulary::dna(), {.task = Recall::passkey, .sequence_length = 1024}), HasSubstr("no text"));
  EXPECT_THAT(refused(Vocabulary::bytes(true), {.task = Recall::passkey, .sequence_length = 64}), HasSubstr("tokens"));
  EXPECT_THAT(refused(Vocabulary::dna(), {.task = Recall::associative, .sequence_length = 64, .pairs = 4}),
              HasSubstr("4 pairs need 8 symbols; the vocabulary has 4"));
  EXPECT_THAT(refused(Vocabulary::bytes(true), {.task = Recall::associative, .sequence_length = 64, .pairs = 16}),
              HasSubstr("16 pairs need 65 tokens"));
  EXPECT_THAT(refused(Vocabulary::bytes(true), {.task = Recall::copy, .sequence_length = 17}), HasSubstr("even"));
  EXPECT_THAT(refused(Vocabulary::bytes(true), {.task = Recall::induction, .sequence_length = 14}), HasSubstr("16"));
}

}  // namespace
}  // namespace furlong
