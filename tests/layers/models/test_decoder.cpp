#include "layers/models/decoder.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "framework/ops/elementwise/activation.h"
#include "framework/primitives/cpu_isa.h"
#include "tests/layers/models/decoder_testing.h"
#include "tests/temporary_folder.h"

namespace furlong::layers {
namespace {

using namespace furlong::layers::testing;

class EveryDecoder : public ::testing::TestWithParam<Case> {
 protected:
  template <class Body>
  void for_each(const Body& body) const {
    for_each_variant(GetParam().attending, GetParam().position, body);
  }
};
INSTANTIATE_TEST_SUITE_P(AllNames, EveryDecoder, ::testing::ValuesIn(all_cases()), case_name);

TEST_P(EveryDecoder, GradientsMatchFiniteDifferences) {
  const double step = GetParam().attending.is_smooth() ? 1e-3 : 1e-5;
  for_each([&](ModelConfig config) {
    config.dropout = 0.1;
    TestModel model(config, DType::float64);
    // 9 tokens: two chunks and a part of one.
    const Worst worst = check_loss_gradients(model, random_tokens(2, 9, config), random_targets(2, 9, config),
                                             {.training = true}, step);
    EXPECT_LE(worst.error, 1e-6) << worst.where;
  });
}

TEST(Decoder, GradientsOfActivationsMatchFiniteDifferences) {
  for (const Activation activation : all_values<Activation>()) {
    ModelConfig config = small_config({"linear", "favor_positive"}, Position::rotary, 4, Style::gpt2);
    config.activation = activation;
    TestModel model(config, DType::float64);
    const Worst worst = check_loss_gradients(model, random_tokens(1, 7, config), random_targets(1, 7, config), {});
    EXPECT_LE(worst.error, 1e-6) << name_of(activation) << ": " << worst.where;
  }
}

TEST(Decoder, SingleTokenTrainsOnlyValues) {
  for (const Attending& attending : all_attending()) {
    for_each_variant(attending, Position::rotary, [](ModelConfig config) {
      TestModel model(config, DType::float64);
      const Tensor tokens = random_tokens(3, 1, config), targets = Tensor::from<std::int32_t>({1, 10, 4}, {3, 1});
      run_step(model, tokens, targets);
      // With one key its weight is 1 for any query and key, so only values get gradients.
      const std::vector<double> gradient =
          model.store.find("blocks.0.attention.query_key_value.weight").gradient().to_vector<double>();
      const std::int64_t query_key =
          (config.attention.n_heads + config.attention.n_kv_heads) * config.attention.d_head * config.d_model;
      double query_key_largest = 0, value_largest = 0;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        double& largest = static_cast<std::int64_t>(i) < query_key ? query_key_largest : value_largest;
        largest = std::max(largest, std::abs(gradient[i]));
      }
      EXPECT_LE(query_key_largest, 1e-14 * value_largest);
      EXPECT_GT(value_largest, 1e-5);
    });
  }
}

TEST_P(EveryDecoder, RecomputedBlocksGiveBitIdenticalGradients) {
  for_each([](ModelConfig config) {
    config.dropout = 0.2;
    const Tensor tokens = random_tokens(3, 22, config), targets = random_targets(3, 22, config);
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
      const Pass pass{.training = true, .seed = 8, .step = 5, .first_sample = 6};
      TestModel kept(config, dtype), recomputed(config, dtype, ActivationCheckpointing::blocks);
      EXPECT_EQ(run_step(kept, tokens, targets, pass), run_step(recomputed, tokens, targets, pass)) << name_of(dtype);
      EXPECT_TRUE(same_bits(kept.store.gradients(), recomputed.store.gradients())) << name_of(dtype);
      EXPECT_GT(
          furlong::reference::relative_difference(
              kept.store.gradients(), std::vector<double>(static_cast<std::size_t>(kept.store.gradients().elements()))),
          0);
    }
  });
}

TEST_P(EveryDecoder, LaterTokensDoNotChangeEarlierStates) {
  for_each([](const ModelConfig& config) {
    constexpr std::int64_t n = 22;
    for (DType dtype : {DType::float32, DType::bfloat16}) {
      TestModel model(config, dtype);
      const Tensor tokens = random_tokens(2, n, config);
      const Tensor before = hidden_of(model, tokens);
      // Inside a chunk of 4, at its borders, and at the last token.
      for (std::int64_t changed : {1, 3, 4, 5, 14, 21}) {
        const Tensor others = tokens.clone();
        for (std::int64_t sequence = 0; sequence < 2; ++sequence) {
          for (std::int64_t t = changed; t < n; ++t) {
            std::int32_t& token = others.data<std::int32_t>()[sequence * n + t];
            token = static_cast<std::int32_t>((token + 1 + t % 3) % config.vocabulary_size);
          }
        }
        const Tensor after = hidden_of(model, others);
        for (std::int64_t sequence = 0; sequence < 2; ++sequence) {
          const auto earlier = [&](const Tensor& states) {
            return states.narrow(0, sequence, 1).narrow(1, 0, changed);
          };
          EXPECT_TRUE(same_bits(earlier(before), earlier(after))) << name_of(dtype) << ", changed from " << changed;
          const auto there = [&](const Tensor& states) { return states.narrow(0, sequence, 1).narrow(1, changed, 1); };
          EXPECT_FALSE(same_bits(there(before), there(after)));
        }
      }
    }
  });
}

TEST_P(EveryDecoder, DropoutDependsOnSeedStepAndSample) {
  for_each([](ModelConfig config) {
    config.dropout = 0.3;
    // In double, Furlong's own matrix products are used, whose bits do not depend on the number of rows.
    TestModel model(config, DType::float64);
    const Tensor tokens = random_tokens(4, 10, config), targets = random_targets(4, 10, config);
    const Pass pass{.training = true, .seed = 3, .step = 7};
    const double loss = loss_of(model, tokens, targets, pass);
    EXPECT_EQ(loss_of(model, tokens, targets, pass), loss);
    EXPECT_EQ(run_step(model, tokens, targets, pass), run_step(model, tokens, targets, pass));
    EXPECT_NEAR(run_step(model, tokens, targets, pass), loss,
                1e-13);  // activations are fused without recording
    EXPECT_NE(loss_of(model, tokens, targets, {.training = true, .seed = 3, .step = 8}), loss);
    EXPECT_NE(loss_of(model, tokens, targets, {.training = true, .seed = 4, .step = 7}), loss);
    EXPECT_NE(loss_of(model, tokens, targets, {.training = true, .seed = 3, .step = 7, .first_sample = 4}), loss);
    // Evaluation does not use dropout.
    EXPECT_EQ(loss_of(model, tokens, targets, {.seed = 3, .step = 7}),
              loss_of(model, tokens, targets, {.seed = 4, .step = 8}));

    const Tensor whole = hidden_of(model, tokens, pass);
    for (std::int64_t half = 0; half < 2; ++half) {
      Pass part = pass;
      part.first_sample = static_cast<std::uint64_t>(2 * half);
      EXPECT_TRUE(same_bits(hidden_of(model, tokens.narrow(0, 2 * half, 2), part), whole.narrow(0, 2 * half, 2)))
          << "half " << half;
    }
  });
}

// With data.padding: longest the batches of one step have rows of other lengths.
TEST(Decoder, DropoutDoesNotDependOnTheLengthsOfOtherBatches) {
  ModelConfig config = small_config({"linear", "favor_positive"}, Position::rotary, 4, Style::llama);
  config.dropout = 0.3;
  TestModel model(config, DType::float64);
  const Tensor tokens = random_tokens(2, 10, config);
  const auto hidden = [&](const Tensor& rows, std::uint64_t first_sample) {
    Tape tape(Stream{});
    ForwardContext context{tape, true, 3, 7, first_sample};
    context.longest_row = 12;
    return model.decoder.hidden(context, rows).value();
  };
  const Tensor both = hidden(tokens, 4), second = tokens.narrow(0, 1, 1);
  EXPECT_TRUE(same_bits(hidden(second, 5), both.narrow(0, 1, 1)));
  // Causal: a shorter row is the beginning of the longer one, if its elements have the same numbers.
  EXPECT_TRUE(same_bits(hidden(second.narrow(1, 0, 6).clone(), 5), both.narrow(0, 1, 1).narrow(1, 0, 6)));
}

TEST(Decoder, GradientsOfSplitBatchAddUp) {
  ModelConfig config = small_config({"linear", "favor_positive"}, Position::rotary, 4, Style::llama);
  config.dropout = 0.3;
  TestModel model(config, DType::float64);
  const Tensor tokens = random_tokens(4, 10, config), targets = random_targets(4, 10, config);
  const Pass pass{.training = true};
  run_step(model, tokens, targets, pass);
  const std::vector<double> whole = model.store.gradients().to_vector<double>();
  double count = 0;
  for (std::int32_t target : targets.to_vector<std::int32_t>()) count += target >= 0;
  model.store.forget_gradients();
  for (std::int64_t half = 0; half < 2; ++half) {
    Tape tape(Stream{});
    Pass part = pass;
    part.first_sample = static_cast<std::uint64_t>(2 * half);
    ForwardContext context = part.context(tape);
    tape.backward(
        model.decoder
            .loss(context, tokens.narrow(0, 2 * half, 2), targets.narrow(0, 2 * half, 2), {.normalizer = count})
            .loss);
  }
  EXPECT_LE(furlong::reference::relative_difference(model.store.gradients(), whole), 1e-14);  // another order of sums
}

TEST(Decoder, GradientsAreBitIdenticalForAnyThreadCount) {
  // In double, where matrix products are Furlong's own; oneDNN's may sum in another order.
  for (const Attending& attending : some_attending()) {
    ModelConfig config = small_config(attending, Position::rotary, 4, Style::llama);
    config.dropout = 0.1;
    const Tensor tokens = random_tokens(3, 40, config), targets = random_targets(3, 40, config);
    const auto gradients = [&](int threads) {
      return furlong::reference::with_threads(threads, [&] {
        TestModel model(config, DType::float64);
        run_step(model, tokens, targets, {.training = true});
        return model.store.gradients().to_vector<double>();
      });
    };
    const std::vector<double> one = gradients(1);
    EXPECT_EQ(gradients(2), one) << attending.name();
    EXPECT_EQ(gradients(5), one) << attending.name();
  }
}

TEST(Decoder, ChunkSizeAndPrecisionChangeResultsByRoundingOnly) {
  for (const ops::FeatureMapInfo& map : ops::feature_maps()) {
    ModelConfig config = small_config({"linear", map.name}, Position::rotary, 4, Style::gpt2);
    const Tensor tokens = random_tokens(2, 30, config);
    TestModel model(config, DType::float64);
    const std::vector<double> expected = hidden_of(model, tokens).to_vector<double>();
    for (std::int64_t chunk : {1, 7, 30, 64}) {
      config.attention.chunk_size = chunk;
      TestModel other(config, DType::float64);
      EXPECT_LE(furlong::reference::relative_difference(hidden_of(other, tokens), expected), 1e-12)
          << map.name << ", chunk " << chunk;
      TestModel single(config, DType::float32);
      EXPECT_LE(furlong::reference::relative_difference(hidden_of(single, tokens), expected),
                ops::cpu_isa() == "sse4" ? 2e-4 : 1e-4)  // SSE4 rounds each product and each sum
          << map.name << ", chunk " << chunk;
    }
  }
}

TEST(Decoder, RedrawFollowsSchedule) {
  ModelConfig config = small_config({"linear", "favor_positive"}, Position::none, 0, Style::gpt2);
  config.attention.redraw_every = 3;
  TestModel model(config, DType::float32);
  const auto drawn = [&](const TestModel& of, int layer) {
    return const_cast<TestModel&>(of)
        .store.find(fmt::format("blocks.{}.attention.directions", layer))
        .master()
        .to_vector<float>();
  };
  const std::vector<float> first = drawn(model, 0);
  EXPECT_NE(first, std::vector<float>(first.size()));
  EXPECT_NE(first, drawn(model, 1));
  for (std::int64_t step : {1, 2}) {
    model.decoder.redraw(5, step);
    EXPECT_EQ(drawn(model, 0), first);
  }
  model.decoder.redraw(5, 3);
  const std::vector<float> third = drawn(model, 0);
  EXPECT_NE(third, first);
  model.decoder.redraw(5, 4);
  EXPECT_EQ(drawn(model, 0), third);

  // A new model, as after a resume, draws the same values at step 3.
  TestModel resumed(config, DType::float32);
  resumed.decoder.redraw(5, 3);
  EXPECT_EQ(drawn(resumed, 0), third);
  // The same values in double.
  TestModel in_double(config, DType::float64);
  const auto wide = in_double.store.find("blocks.0.attention.directions").master().to_vector<double>();
  for (std::size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(wide[i], static_cast<double>(first[i]));

  config.attention.redraw_every = 0;
  TestModel never(config, DType::float32);
  for (std::int64_t step = 1; step < 10; ++step) never.decoder.redraw(5, step);
  EXPECT_EQ(drawn(never, 0), first);
}

TEST(Decoder, ParameterNamesShowTheirPlace) {
  const auto names = [](const ModelConfig& config) {
    TestModel model(config, DType::float32);
    std::set<std::string> found;
    for (const Parameter& parameter : model.store.parameters()) {
      EXPECT_EQ(parameter.decays(), parameter.shape().rank() == 2 && !model.store.is_buffer(parameter) &&
                                        parameter.name().find("short_convolution") == std::string::npos)
          << parameter.name();
      if (parameter.name().find("blocks.1.") == std::string::npos) found.insert(parameter.name());
    }
    return found;
  };
  EXPECT_EQ(
      names(small_config({"softmax", ""}, Position::learned, 0, Style::gpt2)),
      (std::set<std::string>{"token_embedding.weight", "position_embedding.weight", "blocks.0.attention_norm.gain",
                             "blocks.0.attention_norm.bias", "blocks.0.attention.query_key_value.weight",
                             "blocks.0.attention.query_key_value.bias", "blocks.0.attention.output.weight",
                             "blocks.0.attention.output.bias", "blocks.0.feedforward_norm.gain",
                             "blocks.0.feedforward_norm.bias", "blocks.0.feedforward.input.weight",
                             "blocks.0.feedforward.input.bias", "blocks.0.feedforward.output.weight",
                             "blocks.0.feedforward.output.bias", "final_norm.gain", "final_norm.bias"}));
  EXPECT_EQ(names(small_config({"linear", "favor_positive"}, Position::rotary, 4, Style::llama)),
            (std::set<std::string>{
                "token_embedding.weight", "classifier.weight", "blocks.0.attention_norm.gain",
                "blocks.0.attention.query_key_value.weight", "blocks.0.attention.short_convolution.weight",
                "blocks.0.attention.directions", "blocks.0.attention.output.weight", "blocks.0.feedforward_norm.gain",
                "blocks.0.feedforward.input.weight", "blocks.0.feedforward.output.weight", "final_norm.gain"}));
}

TEST(Decoder, Gpt2AndLlamaHavePublishedSizes) {
  // Parameter counts of the published models, on the shape-only device.
  const auto count = [](const ModelConfig& config) {
    const TestModel model(config, DType::bfloat16, Device{DeviceType::shape_only, 0});
    return model.store.trained_parameter_count();
  };
  ModelConfig gpt2 = small_config({"softmax", ""}, Position::learned, 0, Style::gpt2);
  gpt2.vocabulary_size = 50257;
  gpt2.n_layers = 12;
  gpt2.d_model = 768;
  gpt2.d_feedforward = 3072;
  gpt2.max_sequence_length = 1024;
  gpt2.attention.n_heads = gpt2.attention.n_kv_heads = 12;
  gpt2.attention.d_head = 64;
  EXPECT_EQ(count(gpt2), 124439808);

  ModelConfig llama = small_config({"softmax", ""}, Position::rotary, 0, Style::llama);
  llama.vocabulary_size = 32000;
  llama.n_layers = 32;
  llama.d_model = 4096;
  llama.d_feedforward = 11008;
  llama.max_sequence_length = 2048;
  llama.attention.n_heads = llama.attention.n_kv_heads = 32;
  llama.attention.d_head = 128;
  EXPECT_EQ(count(llama), 6738415616);  // Llama 7B

  llama.n_layers = 22;
  llama.d_model = 2048;
  llama.d_feedforward = 5632;
  llama.attention.n_kv_heads = 4;
  llama.attention.d_head = 64;
  EXPECT_EQ(count(llama), 1100048384);  // TinyLlama 1.1B: grouped heads
}

TEST(Decoder, InitialLossIsNearUniform) {
  ModelConfig config = small_config({"linear", "favor_positive"}, Position::rotary, 4, Style::gpt2);
  config.initializer_range = 0.02;
  ParameterStore store(DType::float32, Device{});
  Decoder decoder(store, config);
  store.allocate(1);
  decoder.redraw(1, 0);
  Tape tape(Stream{});
  const Tape::NoGradient guard(tape);
  ForwardContext context{tape};
  const double loss =
      scalar(decoder.loss(context, random_tokens(4, 40, config), random_targets(4, 40, config)).loss.value());
  EXPECT_NEAR(loss, std::log(11.0), 0.05);  // logits have standard deviation 0.02 √10, which adds half its square
}

TEST(Decoder, TokensAreAsLargeAsSinusoidsUnlessTheyAreOutputWeights) {
  const auto deviation = [](Position position, bool tied, PredictionHead head) {
    ModelConfig config = small_config({"linear", "favor_positive"}, position, 0, Style::gpt2);
    config.vocabulary_size = 1000;
    config.initializer_range = 0.02;
    config.tied_embeddings = tied;
    config.prediction_head = head;
    ParameterStore store(DType::float64, Device{});
    const Decoder decoder(store, config);
    store.allocate(1);
    const std::vector<double> weights = reference::doubles(store.find("token_embedding.weight").master());
    double squares = 0;
    for (const double weight : weights) squares += weight * weight;
    return std::sqrt(squares / static_cast<double>(weights.size()));
  };
  const auto linear = PredictionHead::linear, none = PredictionHead::none;
  EXPECT_NEAR(deviation(Position::sinusoidal, false, linear), 1, 0.05);
  EXPECT_NEAR(deviation(Position::sinusoidal, true, none), 1, 0.05) << "no output layer to be tied to";
  EXPECT_NEAR(deviation(Position::sinusoidal, true, linear), 0.02, 0.001);
  EXPECT_NEAR(deviation(Position::learned, false, linear), 0.02, 0.001);
}

TEST(Decoder, RejectsUnknownNames) {
  const auto refuse = [](const auto& change, const std::string& found, const std::string& hint) {
    ModelConfig config = small_config({"linear", "favor_positive"}, Position::rotary, 0, Style::gpt2);
    change(config);
    const std::string message = furlong::testing::message_of<UserError>([&] { TestModel(config, DType::float32); });
    EXPECT_NE(message.find("'" + found + "'"), std::string::npos) << message;
    EXPECT_NE(message.find(hint), std::string::npos) << message;
  };
  refuse([](ModelConfig& config) { config.attention.mechanism = "liner"; }, "liner", "linear");
  refuse([](ModelConfig& config) { config.attention.feature_map = "elu"; }, "elu", "elu1");
}

TEST(Decoder, RejectsNumeratorPositionsWithoutLinearAttention) {
  for (const Attending& attending : std::vector<Attending>{{"softmax", ""},
                                                           {"windowed", "favor_positive"},
                                                           {"linear", "favor_positive", "layers"},
                                                           {"linear", "favor_positive", "heads"}}) {
    ModelConfig config = small_config(attending, Position::rotary, 0, Style::gpt2);
    config.rotary_placement = RotaryPlacement::numerator;
    EXPECT_THROW(TestModel(config, DType::float32), ContractError) << attending.name();
  }
}

}  // namespace
}  // namespace furlong::layers
