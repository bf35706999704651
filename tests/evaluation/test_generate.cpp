#include "evaluation/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "framework/core/parallel.h"
#include "framework/primitives/gemm.h"
#include "tests/temporary_folder.h"
#include "tests/trainers/training.h"
#include "trainers/train/validation.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::small_settings;

std::map<std::int32_t, int> draws(const std::vector<float>& logits, const GenerateOptions& options, int count) {
  const RandomKey key{17, 0, random_stream("test of sample_token")};
  std::map<std::int32_t, int> found;
  for (int i = 0; i < count; ++i)
    ++found[sample_token(logits, options, static_cast<double>(random_uniform(key, static_cast<std::uint64_t>(i))))];
  return found;
}

// Pearson's statistic of the counts against the probabilities softmax(logits / temperature) over `tokens`.
double chi_square(const std::map<std::int32_t, int>& found, const std::vector<float>& logits, double temperature,
                  const std::set<std::int32_t>& tokens, int count) {
  double total = 0, statistic = 0;
  for (const auto token : tokens)
    total += std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)]) / temperature);
  for (const auto token : tokens) {
    const double expected =
        count * std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)]) / temperature) / total;
    EXPECT_GT(expected, 5) << "too rare for the statistic";
    const auto at = found.find(token);
    statistic += std::pow((at == found.end() ? 0 : at->second) - expected, 2) / expected;
  }
  for (const auto& [token, times] : found)
    EXPECT_TRUE(tokens.contains(token)) << "token " << token << " drawn " << times << " times";
  return statistic;
}

const std::vector<float> logits{0.5f, 2.0f, -1.0f, 1.0f, 0.0f, -2.0f};
constexpr int n_draws = 20000;
// 99.9th percentiles of chi-square with 5 and 2 degrees of freedom; the draws are fixed, so that a pass stays a pass.
constexpr double limit_5 = 20.515, limit_2 = 13.816;

TEST(SampleToken, FollowsProbabilitiesAtEachTemperature) {
  const std::set<std::int32_t> all{0, 1, 2, 3, 4, 5};
  for (const double temperature : {0.6, 1.0, 2.5}) {
    GenerateOptions options;
    options.temperature = temperature;
    const auto found = draws(logits, options, n_draws);
    EXPECT_LT(chi_square(found, logits, temperature, all, n_draws), limit_5) << temperature;
    // The test can tell temperatures apart.
    EXPECT_GT(chi_square(found, logits, temperature * 1.3, all, n_draws), limit_5) << temperature;
  }
}

TEST(SampleToken, TemperatureZeroTakesMostProbableToken) {
  GenerateOptions options;
  options.temperature = 0;
  for (const double uniform : {0.0, 0.5, 0.999999}) EXPECT_EQ(sample_token(logits, options, uniform), 1);
  EXPECT_EQ(sample_token({3, 7, 7, 1}, options, 0.9), 1) << "the first of equals";
}

TEST(SampleToken, TopKKeepsMostProbableTokens) {
  GenerateOptions options;
  options.top_k = 3;
  EXPECT_LT(chi_square(draws(logits, options, n_draws), logits, 1, {1, 3, 0}, n_draws), limit_2);
  options.top_k = 1;
  EXPECT_EQ(draws(logits, options, 100), (std::map<std::int32_t, int>{{1, 100}}));
  options.top_k = 6;
  const auto all = draws(logits, options, 1000);
  options.top_k = 1000;
  EXPECT_EQ(draws(logits, options, 1000), all) << "more than there are";
}

TEST(SampleToken, TopPKeepsSmallestSetThatReachesIt) {
  // Probabilities in order: token 1 .557, 3 .205, 0 .124, ... : .557, .762, .887 together.
  GenerateOptions options;
  options.top_p = 0.8;
  EXPECT_LT(chi_square(draws(logits, options, n_draws), logits, 1, {1, 3, 0}, n_draws), limit_2);
  options.top_p = 0.5;
  EXPECT_EQ(draws(logits, options, 100), (std::map<std::int32_t, int>{{1, 100}}));
  options.top_p = 1e-6;
  EXPECT_EQ(draws(logits, options, 100), (std::map<std::int32_t, int>{{1, 100}})) << "at least one stays";
}

TEST(SampleToken, TopPAppliesAfterTopKAndTemperature) {
  // Of tokens 1 and 3 alone token 1 has .731; that reaches 0.7, while among all it would not.
  GenerateOptions options;
  options.top_k = 2;
  options.top_p = 0.7;
  EXPECT_EQ(draws(logits, options, 100), (std::map<std::int32_t, int>{{1, 100}}));
  options.top_k = 0;
  EXPECT_EQ(draws(logits, options, 1000).size(), 2u);
  options.temperature = 0.3;  // sharper: token 1 alone
  EXPECT_EQ(draws(logits, options, 100), (std::map<std::int32_t, int>{{1, 100}}));
}

TEST(SampleToken, EveryUniformNumberSelectsToken) {
  for (const double uniform : {0.0, 0x1p-24, 1 - 0x1p-24}) {
    GenerateOptions options;
    for (const float size : {1.0f, 80.0f, 1e30f}) EXPECT_LT(sample_token({0, size, -size}, options, uniform), 3);
    options.temperature = 1e-30;
    EXPECT_EQ(sample_token(logits, options, uniform), 1);
  }
  EXPECT_THROW(sample_token({}, {}, 0), ContractError);
}

TEST(SampleToken, RejectsLogitsWithoutProbabilities) {
  const std::vector<std::vector<float>> bad{
      {0, NAN, 1}, {NAN, 0, 1}, {0, 1, NAN}, {0, INFINITY}, {-INFINITY, -INFINITY}};
  for (const double temperature : {0.0, 1.0}) {
    for (const std::int64_t top_k : {0, 1}) {
      GenerateOptions options;
      options.temperature = temperature;
      options.top_k = top_k;
      for (const auto& some : bad)
        EXPECT_THAT(message_of<UserError>([&] { sample_token(some, options, 0.5); }),
                    HasSubstr("expected a finite number"));
      EXPECT_EQ(sample_token({-INFINITY, 0, -INFINITY}, options, 0.5), 1);
    }
  }
}

TEST(SampleToken, LargerUniformNumbersSelectLessProbableTokens) {
  std::vector<float> many(500);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<float>((i * 7919 % 251) * 0.02);  // with ties
  for (const std::int64_t top_k : {0, 300}) {
    GenerateOptions options;
    options.top_k = top_k;
    options.top_p = top_k > 0 ? 1 : 0.999999;  // neither: in the order of ids
    std::int32_t before = sample_token(many, options, 0);
    EXPECT_EQ(before, std::max_element(many.begin(), many.end()) - many.begin());
    std::set<std::int32_t> seen;
    for (int i = 1; i < 4000; ++i) {
      const std::int32_t token = sample_token(many, options, i / 4000.0);
      const float now = many[static_cast<std::size_t>(token)], last = many[static_cast<std::size_t>(before)];
      ASSERT_TRUE(now < last || (now == last && token >= before)) << i;
      seen.insert(before = token);
    }
    EXPECT_GT(seen.size(), top_k > 0 ? 290u : 400u);
  }
}

Model small_model(const std::vector<std::string>& overrides) {
  std::vector<std::string> all{"model.initializer_range=0.3", "model.short_convolution=4"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return make_model(small_settings("none.h5", all).settings, Vocabulary::bytes(false), Device{});
}

const std::vector<std::vector<std::string>> mechanisms{
    {"model.attention.mechanism=softmax"},
    {"model.attention.mechanism=linear"},
    {"model.attention.mechanism=linear", "model.attention.feature_map=elu1", "model.position=sinusoidal"}};

TEST(Generate, SeedDeterminesTokens) {
  for (const auto& mechanism : mechanisms) {
    Model model = small_model(mechanism);
    GenerateOptions options;
    options.max_tokens = 40;
    std::vector<std::int32_t> heard;
    const Generated first =
        generate(model, {1, 2, 3}, options, {.on_token = [&](std::int32_t token) { heard.push_back(token); }});
    EXPECT_EQ(first.samples[0].size(), 40u);
    EXPECT_EQ(heard, first.samples[0]);
    EXPECT_EQ(generate(model, {1, 2, 3}, options).samples[0], first.samples[0]);
    options.seed = 2;
    EXPECT_NE(generate(model, {1, 2, 3}, options).samples[0], first.samples[0]);
    options.max_tokens = 10;
    const auto fewer = generate(model, {1, 2, 3}, options).samples[0];
    options.max_tokens = 20;
    const auto more = generate(model, {1, 2, 3}, options).samples[0];
    EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), more.begin())) << "more tokens continue fewer tokens";
  }
}

TEST(Generate, StopsBetweenTokens) {
  Model model = small_model(mechanisms[0]);
  GenerateOptions options;
  options.max_tokens = 30;
  options.samples = 3;
  options.batch_size = 2;
  const std::vector<std::vector<std::int32_t>> whole = generate(model, {1, 2, 3}, options).samples;
  int asked = 0;
  const Generated found = generate(model, {1, 2, 3}, options, {.stop_requested = [&] { return ++asked >= 5; }});
  EXPECT_THAT(found.samples[0], ::testing::ElementsAreArray(whole[0].begin(), whole[0].begin() + 5));
  EXPECT_EQ(found.samples[1].size(), 5u);
  EXPECT_THAT(found.samples[2], ::testing::IsEmpty());
}

// A sample depends neither on the number of samples nor on the batch. Windows, hybrids and mixed heads have states of
// their own.
TEST(Generate, SampleOfABatchIsTheSameAlone) {
  std::vector<std::vector<std::string>> models = mechanisms;
  models.push_back({"model.attention.mechanism=softmax", "model.attention.window=4"});
  models.push_back({"model.attention.mechanism=windowed", "model.attention.softmax_window=4"});
  models.push_back({"model.attention.heads=[softmax, linear]"});
  for (const auto& mechanism : models) {
    Model model = small_model(mechanism);
    GenerateOptions options;
    options.max_tokens = 30;
    options.samples = 5;
    options.batch_size = 2;
    std::vector<std::vector<std::int32_t>> heard;
    const Generated found =
        generate(model, {1, 2, 3}, options,
                 {.on_sample = [&](const std::vector<std::int32_t>& sample) { heard.push_back(sample); }});
    EXPECT_EQ(heard, found.samples);
    EXPECT_EQ(found.tokens(), 5 * 30);
    EXPECT_NE(found.samples[0], found.samples[1]);
    options.batch_size = 8;
    EXPECT_EQ(generate(model, {1, 2, 3}, options).samples, found.samples) << mechanism.back();
    options.samples = 1;
    EXPECT_EQ(generate(model, {1, 2, 3}, options).samples[0], found.samples[0]) << mechanism.back();

    // Samples end at different tokens, each where it would alone.
    options.samples = 5;
    options.stop = {found.samples[3][7]};
    const Generated stopped = generate(model, {1, 2, 3}, options);
    for (std::size_t i = 0; i < 5; ++i) {
      const auto& whole = found.samples[i];
      EXPECT_EQ(stopped.samples[i],
                std::vector<std::int32_t>(whole.begin(), std::find(whole.begin(), whole.end(), options.stop[0])))
          << mechanism.back() << " sample " << i;
    }
    EXPECT_LT(stopped.samples[3].size(), 8u);
  }
}

TEST(Generate, SmallModelDecodesInOneThread) {
  const int before = thread_count();
  set_thread_count(3);
  Model model = small_model(mechanisms[1]);
  GenerateOptions options;
  options.max_tokens = 5;
  std::vector<int> threads;
  generate(model, {1, 2, 3}, options, {.on_token = [&](std::int32_t) { threads.push_back(thread_count()); }});
  EXPECT_EQ(threads, std::vector<int>(5, 1));
  EXPECT_EQ(thread_count(), 3);
  EXPECT_THROW(generate(model, {1, 2, 3}, options, {.on_token = [](std::int32_t) { throw UserError("stop"); }}),
               UserError);
  EXPECT_EQ(thread_count(), 3) << "after an error";
  set_thread_count(before);
}

// Greedy generation from the state, token by token, against a forward pass over everything so far.
TEST(Generate, GreedyTokensMatchParallelForward) {
  for (const auto& mechanism : mechanisms) {
    Model model = small_model(mechanism);
    GenerateOptions options;
    options.max_tokens = 24;
    options.temperature = 0;
    std::vector<std::int32_t> tokens{9, 200, 31};
    const auto generated = generate(model, tokens, options).samples[0];
    tokens.insert(tokens.end(), generated.begin(), generated.end());
    Tape tape(Stream{});
    const Tape::NoGradient guard(tape);
    layers::ForwardContext context{tape};
    const Tensor hidden = model.decoder->hidden(context, token_tensor(tokens, 1, Device{})).value();
    const auto all =
        model.decoder->logits(Stream{}, hidden.reshape({hidden.extent(1), hidden.extent(2)})).to_vector<float>();
    for (std::size_t i = 0; i < generated.size(); ++i) {
      const auto row = all.begin() + static_cast<std::ptrdiff_t>((i + 2) * 256);
      const float best = *std::max_element(row, row + 256);
      // A tie within rounding may go either way.
      EXPECT_GE(row[generated[i]], best - 1e-4f * std::abs(best)) << mechanism[0] << " token " << i;
    }
  }
}

// Sequences of a batch do not affect each other, and pieces of a long prompt continue each other.
TEST(Generate, LogitsOfABatchAreThoseOfItsRows) {
  for (const auto& mechanism : mechanisms) {
    Model model = small_model(testing::with(mechanism, {"model.max_sequence_length=8192"}));
    for (const std::int64_t n : {5, 4099}) {
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(2 * n));
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * i % 251);
      const auto logits_of = [&](std::span<const std::int32_t> prompt, std::int64_t batch) {
        Tape tape(Stream{});
        const Tape::NoGradient guard(tape);
        layers::ForwardContext context{tape};
        layers::GenerationState state = model.decoder->new_state(batch, n);
        return extended_logits(model, context, prompt, batch, state).to_vector<float>();
      };
      const std::vector<float> both = logits_of(tokens, 2);
      ASSERT_EQ(both.size(), 2u * 256);
      for (std::size_t row = 0; row < 2; ++row) {
        const auto alone =
            logits_of(std::span(tokens).subspan(row * static_cast<std::size_t>(n), static_cast<std::size_t>(n)), 1);
        for (std::size_t i = 0; i < 256; ++i)
          ASSERT_NEAR(both[row * 256 + i], alone[i], 1e-3) << mechanism[0] << " n " << n << " row " << row;
      }
    }
  }
}

TEST(Generate, StopsBeforeStopToken) {
  Model model = small_model(mechanisms[1]);
  GenerateOptions options;
  options.max_tokens = 40;
  const auto all = generate(model, {1, 2, 3}, options).samples[0];
  const auto at = std::find(all.begin() + 10, all.end(), all[10]);
  ASSERT_EQ(std::find(all.begin(), at, all[10]), at) << "the test wants a token that did not come before";
  options.stop = {all[10], 300};
  std::vector<std::int32_t> heard;
  EXPECT_EQ(
      generate(model, {1, 2, 3}, options, {.on_token = [&](std::int32_t token) { heard.push_back(token); }}).samples[0],
      std::vector<std::int32_t>(all.begin(), at));
  EXPECT_EQ(heard.size(), 10u);
}

TEST(Generate, FirstTokensAreNotInTheRate) {
  Model model = small_model({"model.attention.mechanism=linear"});
  GenerateOptions options;
  options.samples = 3;
  options.max_tokens = 5;
  const Generated many = generate(model, {1}, options);
  EXPECT_EQ(many.tokens(), 15);
  EXPECT_NEAR(many.tokens_per_second() * many.seconds, 12, 1e-9);
  options.max_tokens = 1;
  EXPECT_EQ(generate(model, {1}, options).tokens_per_second(), 0);
}

TEST(Generate, OnlyKeyValueCacheGrowsWithLength) {
  GenerateOptions few, many;
  few.max_tokens = 5;
  many.max_tokens = 50;
  for (const auto& mechanism : mechanisms) {
    Model model = small_model(mechanism);
    const auto small = generate(model, {1}, few).state_bytes, large = generate(model, {1}, many).state_bytes;
    EXPECT_GT(small, 0);
    if (mechanism[0] == "model.attention.mechanism=softmax") {
      EXPECT_GT(large, small);
    } else {
      EXPECT_EQ(large, small) << mechanism[0];
    }
  }
}

TEST(Generate, LongPromptMatchesPieces) {
  Model model = small_model({"model.attention.mechanism=linear"});
  std::vector<std::int32_t> prompt(4096 + 7);
  for (std::size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<std::int32_t>(random_word({3, 0, 0}, i) % 256);
  GenerateOptions options;
  options.max_tokens = 1;
  options.temperature = 0;
  const auto token = generate(model, prompt, options).samples[0][0];
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  layers::ForwardContext context{tape};
  const Tensor hidden = model.decoder->hidden(context, token_tensor(prompt, 1, Device{})).value();
  const auto row =
      model.decoder->logits(Stream{}, hidden.narrow(1, hidden.extent(1) - 1, 1).reshape({1, hidden.extent(2)}))
          .to_vector<float>();
  const float best = *std::max_element(row.begin(), row.end());
  EXPECT_GE(row[static_cast<std::size_t>(token)], best - 1e-4f * std::abs(best));
}

TEST(Generate, RejectsTooManyTokensAndEmptyPrompt) {
  Model model = small_model({"model.position=learned"});
  GenerateOptions options;
  options.max_tokens = 33;
  EXPECT_THAT(message_of<UserError>([&] { generate(model, {1}, options); }), HasSubstr("33 positions"));
  options.max_tokens = 32;  // the model does not read the last one
  EXPECT_EQ(generate(model, {1}, options).samples[0].size(), 32u);
  EXPECT_THAT(message_of<UserError>([&] { generate(model, {}, options); }), HasSubstr("prompt is empty"));
  EXPECT_EQ(prompt_warning(model, "", {}), "") << "an error";
  model.vocabulary = Vocabulary::bytes(true);
  EXPECT_EQ(prompt_warning(model, "", {}), "");
  model.settings.data.sampler = "documents";
  EXPECT_THAT(prompt_warning(model, "", {}), HasSubstr("has not read in training"));
  EXPECT_EQ(prompt_warning(model, "a", std::vector<std::int32_t>{97}), "");
}

TEST(Generate, EmptyPromptStartsFromDocumentToken) {
  Model model =
      make_model(small_settings("none.h5", {"model.initializer_range=0.3"}).settings, Vocabulary::dna(), Device{});
  GenerateOptions options;
  options.max_tokens = 12;
  const auto tokens = generate(model, {}, options).samples[0];
  EXPECT_EQ(tokens, generate(model, {*model.vocabulary.document_id()}, options).samples[0]);
}

// A model may have room for more tokens than its vocabulary holds; those are never drawn.
TEST(Generate, SamplesOnlyTokensOfVocabulary) {
  Model model =
      make_model(small_settings("none.h5", {"model.vocabulary_size=64"}).settings, Vocabulary::dna(), Device{});
  GenerateOptions options;
  options.max_tokens = 200;
  const Generated generated = generate(model, {0}, options);
  EXPECT_EQ(generated.tokens(), 200);
  for (const auto token : generated.samples[0]) EXPECT_LT(token, 16);
}

}  // namespace
}  // namespace furlong
