#include <algorithm>

#include "framework/core/arena.h"
#include "tests/layers/models/decoder_testing.h"

namespace furlong::layers {
namespace {

using namespace furlong::layers::testing;
using furlong::reference::doubles;
using furlong::reference::relative_difference;

class EveryGenerator : public ::testing::TestWithParam<Case> {
 protected:
  template <class Body>
  void for_each(const Body& body) const {
    for_each_variant(GetParam().attending, GetParam().position, body);
  }
};
INSTANTIATE_TEST_SUITE_P(AllNames, EveryGenerator, ::testing::ValuesIn(all_cases()), case_name);

TEST_P(EveryGenerator, PromptAndSingleTokensMatchParallelForward) {
  for_each([](const ModelConfig& config) {
    TestModel model(config, DType::float32);
    const Tensor tokens = random_tokens(2, 22, config);
    const Tensor hidden = hidden_of(model, tokens);
    const std::vector<double> expected = doubles(hidden),
                              expected_logits =
                                  doubles(model.decoder.logits(Stream{}, hidden.reshape({44, config.d_model})));
    // Signed features (favor_trig) can sum to denominators near zero. Single tokens and many tokens use different
    // kernels, each with its own error. If the parallel result alone is far from float64, the two cannot be closer.
    const bool is_signed = config.attention.feature_map == "favor_trig";
    TestModel wide(config, DType::float64);
    const double own_error = relative_difference(expected, doubles(hidden_of(wide, tokens))),
                 bound = is_signed ? std::max(1e-4, 3 * own_error) : 1e-4;
    EXPECT_LE(own_error, 2e-4);
    // No prompt, one token, part of a chunk, one chunk, two and a part, all but one, all; and prompts in pieces.
    for (const std::vector<std::int64_t>& pieces :
         std::vector<std::vector<std::int64_t>>{{}, {1}, {3}, {4}, {9}, {21}, {22}, {5, 1, 8}, {2, 2, 13}}) {
      GenerationState state = model.decoder.new_state(2, 22);
      const std::vector<double> found = extended(model, tokens, pieces, state);
      EXPECT_EQ(state.position, 22);
      EXPECT_LE(relative_difference(found, expected), bound) << "prompt of " << (pieces.empty() ? 0 : pieces[0]);
      const Tensor rows = furlong::reference::tensor_of(found, {44, config.d_model}, DType::float32);
      EXPECT_LE(relative_difference(model.decoder.logits(Stream{}, rows), expected_logits), bound);
    }
  });
}

TEST_P(EveryGenerator, MatchesParallelForwardInDouble) {
  for_each([](const ModelConfig& config) {
    TestModel model(config, DType::float64);
    const Tensor tokens = random_tokens(1, 22, config);
    const std::vector<double> expected = doubles(hidden_of(model, tokens));
    GenerationState state = model.decoder.new_state(1, 22);
    EXPECT_LE(relative_difference(extended(model, tokens, {6}, state), expected), 1e-12);
  });
}

TEST(Generation, MatchesForwardBeyondInitialCacheAndChunk) {
  for (const Attending& attending : some_attending()) {
    ModelConfig config = small_config(attending, Position::rotary, 4, Style::llama);
    config.attention.chunk_size = 64;
    config.attention.d_head = 16;
    config.attention.n_features = 0;
    TestModel model(config, DType::float32);
    const std::int64_t n = 400;  // the key-value cache initially fits 256
    const Tensor tokens = random_tokens(2, n, config);
    const std::vector<double> expected = doubles(hidden_of(model, tokens));
    for (const std::vector<std::int64_t>& pieces : std::vector<std::vector<std::int64_t>>{{}, {250}, {300, 70}}) {
      GenerationState state = model.decoder.new_state(2, n);
      const auto found = furlong::reference::with_threads(1, [&] { return extended(model, tokens, pieces, state); });
      EXPECT_LE(relative_difference(found, expected), 1e-4) << attending.name();
    }
  }
}

TEST(Generation, MatchesForwardWithLargeNorms) {
  // Weights so large that attention nearly selects one key; features with an epsilon would fail here.
  for (const Attending& attending : all_attending()) {
    ModelConfig config = small_config(attending, Position::none, 0, Style::llama);
    if (attending.option == "layers") continue;  // the model has one layer
    config.n_layers = 1;
    config.initializer_range = 2;
    TestModel model(config, DType::float32);
    const Tensor tokens = random_tokens(2, 22, config);
    const std::vector<double> expected = doubles(hidden_of(model, tokens));
    GenerationState state = model.decoder.new_state(2, 22);
    EXPECT_LE(relative_difference(extended(model, tokens, {7}, state), expected), 1e-4) << attending.name();
  }
}

TEST(Generation, OnlyCachesGrow) {
  const OneThread one_thread;
  for (const Attending& attending : all_attending()) {
    for (std::int64_t short_convolution : {0, 4}) {
      const ModelConfig config = small_config(attending, Position::rotary, short_convolution, Style::llama);
      TestModel model(config, DType::float32);
      const std::int64_t n = 1000;
      GenerationState state = model.decoder.new_state(1, n);
      const std::int64_t at_first = state.bytes(),
                         convolution = config.n_layers * (short_convolution ? 3 * 8 * 6 * 4 : 0);
      extended(model, random_tokens(1, 200, config), {198}, state);
      const std::int64_t after_200 = state.bytes();
      Tape tape(Stream{});
      const Tape::NoGradient guard(tape);
      ForwardContext context = Pass{}.context(tape);
      model.decoder.extend(context, random_tokens(1, 800, config), state);
      const std::int64_t after_1000 = state.bytes();
      if (attending.mechanism == "softmax") {
        // Keys and values of two heads of 6, in both layers. Exact once full: the cache never holds more than
        // announced.
        EXPECT_EQ(after_1000, convolution + config.n_layers * n * 2 * 2 * 6 * 4);
        EXPECT_THROW(model.decoder.extend(context, random_tokens(1, 1, config), state), ContractError);
      }
      if (!attending.is_recurrent()) {
        EXPECT_GT(after_1000, after_200) << attending.name();
        continue;
      }
      EXPECT_EQ(after_1000, after_200) << attending.name();
      if (config.attention.window > 0 || config.attention.softmax_window > 0) continue;  // their windows fill first
      const ops::FeatureMapInfo& map = ops::feature_map_info(attending.feature_map);
      const std::int64_t features =
          ops::feature_count(map.map, config.attention.map_options, 6,
                             map.needs_random_projection ? ops::projection_count(map.map, 10) : 0);
      // Four heads: sum, normalizer, maximum, and the magnitude of signed features.
      EXPECT_EQ(after_1000, convolution + config.n_layers * 4 * (features * (6 + 2) + 1) * 4) << attending.name();
      EXPECT_EQ(after_1000, at_first) << attending.name();
    }
  }
}

TEST(Generation, LinearAttentionTokenAllocatesNothing) {
  ModelConfig config = small_config({"linear", "favor_positive"}, Position::rotary, 4, Style::llama);
  TestModel model(config, DType::float32);
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context = Pass{}.context(tape);
  GenerationState state = model.decoder.new_state(1, 400);
  const Tensor token = random_tokens(1, 1, config);
  Arena& cpu = arena(Device{});
  for (int i = 0; i < 300; ++i) model.decoder.extend(context, token, state);  // the rotary table doubles, last at 257
  const ArenaCounters before = cpu.counters();
  cpu.reset_peak();
  for (int i = 0; i < 100; ++i) model.decoder.extend(context, token, state);
  EXPECT_EQ(cpu.counters().system_requests, before.system_requests);
  EXPECT_EQ(cpu.counters().bytes_in_use, before.bytes_in_use);
}

TEST(Generation, StatesAreIndependentOfEachOther) {
  for (const Attending& attending : all_attending()) {
    const ModelConfig config = small_config(attending, Position::rotary, 4, Style::gpt2);
    TestModel model(config, DType::float32);
    const Tensor one = random_tokens(1, 15, config, "one"), other = random_tokens(1, 15, config, "other");
    GenerationState alone = model.decoder.new_state(1, 15);
    const std::vector<double> expected = extended(model, one, {4}, alone);
    // Another sequence is generated between its tokens.
    GenerationState first = model.decoder.new_state(1, 15), second = model.decoder.new_state(1, 15);
    Tape tape(Stream{});
    const Tape::NoGradient guard(tape);
    ForwardContext context = Pass{}.context(tape);
    std::vector<double> found;
    for (std::int64_t start = 0; start < 15;) {
      const std::int64_t length = start == 0 ? 4 : 1;
      const auto part = [&](const Tensor& tokens) { return tokens.narrow(1, start, length); };
      for (double value : doubles(model.decoder.extend(context, part(one), first).value())) found.push_back(value);
      model.decoder.extend(context, part(other), second);
      start += length;
    }
    EXPECT_EQ(found, expected) << attending.name();
  }
}

TEST(Generation, NumeratorPositionsDistinguishTokenOrder) {
  // One layer without convolution computes sums over its past; without positions the order of tokens is lost.
  ModelConfig config = small_config({"linear", "elu1"}, Position::rotary, 0, Style::gpt2);
  config.n_layers = 1;
  config.attention.d_head = 5;  // features are rotated instead of queries, so the width may be odd
  const Tensor tokens = random_tokens(1, 20, config);
  std::vector<std::int32_t> reversed = tokens.to_vector<std::int32_t>();
  std::reverse(reversed.begin(), reversed.end() - 1);
  const auto change = [&] {
    TestModel model(config, DType::float64);
    const std::vector<double> one = doubles(hidden_of(model, tokens)),
                              other = doubles(hidden_of(model, Tensor::from(reversed, {1, 20})));
    return relative_difference({other.end() - config.d_model, other.end()}, {one.end() - config.d_model, one.end()});
  };
  config.position = Position::none;
  EXPECT_LT(change(), 1e-12);
  config.position = Position::rotary;
  config.rotary_placement = RotaryPlacement::numerator;
  EXPECT_GT(change(), 1e-2);
  TestModel model(config, DType::float64);
  GenerationState state = model.decoder.new_state(1, 20);
  EXPECT_LE(relative_difference(extended(model, tokens, {6}, state), doubles(hidden_of(model, tokens))), 1e-12);
}

TEST(Generation, RejectsRecordingTape) {
  ModelConfig config = small_config({"linear", "elu1"}, Position::learned, 0, Style::gpt2);
  TestModel model(config, DType::float32);
  Tape tape(Stream{});
  ForwardContext context = Pass{}.context(tape);
  GenerationState state = model.decoder.new_state(1, 60);
  EXPECT_THROW(model.decoder.extend(context, random_tokens(1, 2, config), state), ContractError);
  const Tape::NoGradient guard(tape);
  GenerationState again = model.decoder.new_state(1, 60);
  // Learned positions end at max_sequence_length, 48.
  model.decoder.extend(context, random_tokens(1, 48, config), again);
  EXPECT_THROW(model.decoder.extend(context, random_tokens(1, 1, config), again), ContractError);
}

}  // namespace
}  // namespace furlong::layers
