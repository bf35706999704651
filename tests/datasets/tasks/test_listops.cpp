// ListOps: samples are parsed and evaluated from their tokens alone.
#include "datasets/tasks/listops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using Tokens = std::vector<std::int32_t>;

/// A parser of the grammar that evaluates what it reads, with counts of digits instead of sorted lists.
struct Evaluator {
  const Tokens& tokens;
  std::size_t at = 0;
  int depth = 0, deepest = 0;
  std::size_t fewest = 1000, most = 0;  // arguments of an operator

  int expression() {
    deepest = std::max(deepest, ++depth);
    const int found = tokens.at(at) < 10 ? tokens[at++] : operation();
    --depth;
    return found;
  }
  int operation() {
    const std::int32_t name = tokens.at(at++);
    EXPECT_GE(name, 10);
    EXPECT_LE(name, 13);
    std::array<int, 10> counts{};
    std::size_t n = 0;
    for (; tokens.at(at) != ListOps::end; ++n) ++counts.at(static_cast<std::size_t>(expression()));
    ++at;
    fewest = std::min(fewest, n);
    most = std::max(most, n);
    const auto nth = [&](std::size_t place) {  // smallest first
      int digit = 0;
      for (std::size_t seen = 0;; ++digit) {
        seen += static_cast<std::size_t>(counts.at(static_cast<std::size_t>(digit)));
        if (seen > place) return digit;
      }
    };
    if (name == ListOps::minimum) return nth(0);
    if (name == ListOps::maximum) return nth(n - 1);
    if (name == ListOps::median) return n % 2 == 1 ? nth(n / 2) : (nth(n / 2 - 1) + nth(n / 2)) >> 1;
    int sum = 0;
    for (int digit = 0; digit < 10; ++digit) sum += digit * counts[static_cast<std::size_t>(digit)];
    return sum % 10;
  }
};

int value_of(const std::string& text) {
  const Tokens tokens = ListOps({}).vocabulary().encode(text);
  Evaluator evaluator{tokens};
  const int value = evaluator.expression();
  EXPECT_EQ(evaluator.at, tokens.size());
  return value;
}

TEST(ListOps, EvaluatorAgreesWithCasesComputedByHand) {
  EXPECT_EQ(value_of("7"), 7);
  EXPECT_EQ(value_of("[MAX 2 9 [MIN 4 7 ] 0 ]"), 9);
  EXPECT_EQ(value_of("[MIN 5 [SM 3 8 ] 6 ]"), 1);
  EXPECT_EQ(value_of("[SM 9 9 9 ]"), 7);
  EXPECT_EQ(value_of("[MED 9 1 5 ]"), 5);
  EXPECT_EQ(value_of("[MED 1 2 3 4 ]"), 2);  // 2.5
  EXPECT_EQ(value_of("[MED 8 3 ]"), 5);      // 5.5
  EXPECT_EQ(value_of("[MED [MAX 1 2 ] 9 [MIN 4 4 ] 6 ]"), 5);
  EXPECT_EQ(value_of("[MAX 2 9 [MIN 4 7 ] 0 [MED 1 [SM 2 9 ] 3 ] ]"), 9);
}

void expect_valid(const ListOpsOptions& options, std::uint64_t samples) {
  const ListOps task(options);
  for (std::uint64_t i = 0; i < samples; ++i) {
    const LabeledSequence made = task.sample(Split::train, i);
    const auto length = static_cast<std::int64_t>(made.tokens.size());
    EXPECT_GT(length, options.min_length);
    EXPECT_LT(length, options.max_length);
    Evaluator evaluator{made.tokens};
    EXPECT_EQ(evaluator.expression(), made.label) << i;
    EXPECT_EQ(evaluator.at, made.tokens.size());
    EXPECT_LE(evaluator.deepest, options.max_depth);
    EXPECT_GE(evaluator.fewest, 2u);  // 1000 for a digit alone
    EXPECT_LE(evaluator.most, static_cast<std::size_t>(options.max_arguments));
  }
}

TEST(ListOps, LabelIsTheValueOfTheExpression) {
  expect_valid({.min_length = 0, .max_length = 20, .max_depth = 3, .max_arguments = 3}, 500);
  expect_valid({.min_length = 3, .max_length = 100, .max_depth = 5, .max_arguments = 4, .seed = 2}, 500);
  expect_valid({.min_length = 3, .max_length = 5, .max_depth = 2, .max_arguments = 2}, 50);  // of 4 tokens
  expect_valid({}, 40);
}

TEST(ListOps, UsesAllLengthsDepthsAndArguments) {
  const ListOps task({.min_length = 0, .max_length = 200, .max_depth = 4, .max_arguments = 5});
  int deepest = 0;
  std::size_t most = 0;
  std::map<std::int32_t, int> tokens, labels;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const LabeledSequence made = task.sample(Split::test, i);
    ++labels[made.label];
    for (const std::int32_t token : made.tokens) ++tokens[token];
    Evaluator evaluator{made.tokens};
    evaluator.expression();
    deepest = std::max(deepest, evaluator.deepest);
    most = std::max(most, evaluator.most);
  }
  EXPECT_EQ(deepest, 4);
  EXPECT_EQ(most, 5u);
  EXPECT_EQ(labels.size(), 10u);
  const auto expect_uniform = [&](std::int32_t first, std::int32_t end, double limit) {
    double sum = 0, squares = 0;
    for (std::int32_t token = first; token < end; ++token) sum += tokens[token];
    const double mean = sum / (end - first);
    for (std::int32_t token = first; token < end; ++token)
      squares += (tokens[token] - mean) * (tokens[token] - mean) / mean;
    EXPECT_LT(squares, limit) << first;
  };
  expect_uniform(0, 10, 27.9);   // chi squared, 9 degrees of freedom: exceeded with probability 0.001
  expect_uniform(10, 14, 16.3);  // 3 degrees of freedom
}

TEST(ListOps, SampleDependsOnSeedSplitAndIndexAlone) {
  const ListOps task({}), other({.seed = 2});
  const Tokens third = task.sample(Split::train, 3).tokens;
  task.sample(Split::train, 900);
  EXPECT_EQ(task.sample(Split::train, 3).tokens, third);
  EXPECT_NE(other.sample(Split::train, 3).tokens, third);
  std::set<Tokens> all;
  for (const Split split : all_splits) {
    for (std::uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(all.insert(task.sample(split, i).tokens).second);
  }
}

TEST(ListOps, VocabularyKeepsBrackets) {
  const Vocabulary vocabulary = ListOps({}).vocabulary();
  EXPECT_EQ(vocabulary.size(), 16);
  const Tokens ids{11, 2, 9, 10, 4, 7, 14, 12, 0, 13, 1, 14, 14, 14};
  EXPECT_EQ(vocabulary.encode("[MAX 2 9 [MIN 4 7 ] [MED 0 [SM 1 ] ] ]"), ids);
  EXPECT_EQ(vocabulary.decode(ids), "[MAX 2 9 [MIN 4 7 ] [MED 0 [SM 1 ] ] ]");
  EXPECT_EQ(vocabulary.encode("12"), (Tokens{15}));  // unknown
  EXPECT_FALSE(vocabulary.document_id());
  EXPECT_TRUE(Vocabulary::from_json(vocabulary.to_json(), "x") == vocabulary);
}

TEST(ListOps, RejectsLengthsThatNoExpressionHas) {
  const auto refusal = [](const ListOpsOptions& options) {
    return message_of<UserError>([&] { ListOps(options).sample(Split::train, 0); });
  };
  EXPECT_THAT(refusal({.min_length = 10, .max_length = 11}), HasSubstr("--max-length 11: expected at least 12"));
  // An expression of depth 3 with 3 arguments has at most 2 + 3 * (2 + 3) tokens.
  EXPECT_THAT(refusal({.min_length = 17, .max_depth = 3, .max_arguments = 3}), HasSubstr("at most 17 tokens"));
  EXPECT_EQ(ListOps({.min_length = 16, .max_length = 18, .max_depth = 3, .max_arguments = 3})
                .sample(Split::train, 0)
                .tokens.size(),
            17u);
  // Only a digit has fewer than 4 tokens.
  EXPECT_THAT(refusal({.min_length = 1, .max_length = 4}), HasSubstr("none of 100000 random expressions"));
}

}  // namespace
}  // namespace furlong
