// Features of mechanisms beyond the ops: constants from statistics, learned parameters, choices by layer and head, and
// rejected configs.
#include <cmath>

#include "layers/attention/linear/head_constants.h"
#include "layers/attention/recurrent_state.h"
#include "tests/framework/engine_testing.h"
#include "tests/layers/models/decoder_testing.h"
#include "tests/temporary_folder.h"

namespace furlong::layers {
namespace {

using namespace furlong::layers::testing;
using furlong::reference::doubles;
using furlong::reference::normal_tensor;
using furlong::reference::relative_difference;
using furlong::testing::message_of;

AttentionConfig attention_config(const std::string& mechanism, const std::string& feature_map = "favor_positive") {
  AttentionConfig config;
  config.mechanism = mechanism;
  config.feature_map = feature_map;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.d_head = 6;
  config.n_features = 10;
  config.chunk_size = 4;
  config.max_sequence_length = 64;
  return config;
}

/// A single mechanism and its inputs.
struct Alone {
  ParameterStore store;
  std::unique_ptr<AttentionMechanism> mechanism;
  Tensor query, key, value;

  explicit Alone(const AttentionConfig& config, DType dtype = DType::float64, std::int64_t n = 11)
      : store(dtype, Device{}), mechanism(make_attention(store, "attention", config)) {
    store.allocate(3);
    mechanism->redraw(3, 0);
    mechanism->update_constants();
    query = normal_tensor({2, n, config.n_heads * config.d_head}, dtype, "query");
    key = normal_tensor({2, n, config.n_kv_heads * config.d_head}, dtype, "key");
    value = normal_tensor({2, n, config.n_kv_heads * config.d_head}, dtype, "value");
  }
  Tensor run(bool training = false, const ops::AttentionMask& mask = {}) {
    Tape tape(Stream{});
    ForwardContext context{tape, training};
    context.attention_mask = mask;
    return mechanism->forward(context, Variable(query), Variable(key), Variable(value)).value();
  }
  std::vector<double> buffer(const std::string& name) { return doubles(store.find("attention." + name).master()); }
};

TEST(Windowed, FullWindowEqualsSoftmax) {
  for (const bool causal : {true, false}) {
    AttentionConfig softmax = attention_config("softmax");
    softmax.causal = causal;
    const std::vector<double> expected = doubles(Alone(softmax).run());
    for (const ops::FeatureMapInfo& map : ops::feature_maps()) {
      SCOPED_TRACE(fmt::format("{}, {}", map.name, causal ? "causal" : "bidirectional"));
      AttentionConfig config = attention_config("windowed", map.name);
      config.causal = causal;
      config.softmax_window = 11;
      Alone whole(config);
      EXPECT_LE(relative_difference(whole.run(), expected), 1e-13);
      config.softmax_window = 3;
      EXPECT_GT(relative_difference(Alone(config).run(), expected), 1e-3);
    }
  }
}

TEST(Windowed, WindowDoesNotAffectOtherHeads) {
  AttentionConfig config = attention_config("softmax");
  const std::vector<double> softmax = doubles(Alone(config).run());
  config.head_mechanisms = {"softmax", "softmax", "windowed", "windowed"};
  config.softmax_window = 3;
  const auto heads = [](const std::vector<double>& all, std::size_t first) {  // two of four heads of width 6
    std::vector<double> some;
    for (std::size_t row = 0; row < all.size(); row += 24)
      some.insert(some.end(), all.begin() + static_cast<std::ptrdiff_t>(row + first * 6),
                  all.begin() + static_cast<std::ptrdiff_t>(row + first * 6 + 12));
    return some;
  };
  const std::vector<double> mixed = doubles(Alone(config).run());
  EXPECT_LE(relative_difference(heads(mixed, 0), heads(softmax, 0)), 1e-14)
      << "softmax heads next to windowed heads have no window";
  EXPECT_GT(relative_difference(heads(mixed, 2), heads(softmax, 2)), 1e-3);
  config.window = 2;
  const std::vector<double> local = doubles(Alone(config).run());
  EXPECT_GT(relative_difference(heads(local, 0), heads(softmax, 0)), 1e-3);
  EXPECT_LE(relative_difference(heads(local, 2), heads(mixed, 2)), 1e-14) << "windowed heads ignore the sliding window";
}

TEST(Windowed, CenteringAndScalingKeepExactPart) {
  AttentionConfig config = attention_config("windowed");
  config.softmax_window = 11;
  config.centering = true;
  config.scaling = Scaling::saderf;
  Alone whole(config);
  whole.run(true);
  whole.mechanism->update_constants();
  EXPECT_LE(relative_difference(whole.run(), doubles(Alone(attention_config("softmax")).run())), 1e-13);
}

TEST(Windowed, BidirectionalCostIsTwoCausalWalksAndPairsOnBothSides) {
  for (const char* map : {"favor_positive", "hedgehog"}) {
    AttentionConfig config = attention_config("windowed", map), softmax = attention_config("softmax");
    config.softmax_window = softmax.window = 3;
    config.causal = softmax.causal = false;
    const auto cost = [](const AttentionConfig& of) { return mechanism_info(of.mechanism).cost(of, 64); };
    const AttentionCost both = cost(config), walk = cost(attention_config("linear", map)), pairs = cost(softmax);
    EXPECT_DOUBLE_EQ(both.forward, 2 * walk.forward + pairs.forward) << map;
    EXPECT_DOUBLE_EQ(both.with_backward, 2 * walk.with_backward + pairs.with_backward) << map;
    EXPECT_DOUBLE_EQ(both.maps, walk.maps) << "computed once, before both walks";
    config.causal = softmax.causal = true;
    EXPECT_DOUBLE_EQ(cost(config).forward, walk.forward + cost(softmax).forward) << map;
    EXPECT_GT(both.forward, 1.9 * cost(config).forward) << map;
  }
}

TEST(Linformer, CostCountsTheProjectedRows) {
  AttentionConfig config = attention_config("linformer");
  config.causal = false;
  config.max_sequence_length = 64;
  config.projected_length = 16;
  const auto cost = [&](ops::SequenceProjection projection, std::int64_t n) {
    config.projection = projection;
    return mechanism_info("linformer").cost(config, n);
  };
  // linear always has 16 rows; mean has one for each 4 tokens.
  EXPECT_DOUBLE_EQ(cost(ops::SequenceProjection::linear, 8).forward,
                   cost(ops::SequenceProjection::linear, 64).forward / 8);
  EXPECT_DOUBLE_EQ(cost(ops::SequenceProjection::mean, 8).forward,
                   cost(ops::SequenceProjection::mean, 64).forward / 64);
  EXPECT_DOUBLE_EQ(cost(ops::SequenceProjection::linear, 64).forward,
                   2 * cost(ops::SequenceProjection::mean, 64).forward);
}

TEST(HeadConstants, AreNeutralBeforeFirstStep) {
  for (const char* map : {"favor_positive", "oprf"}) {
    AttentionConfig config = attention_config("linear", map);
    config.centering = true;
    config.scaling = Scaling::saderf;
    Alone with(config);
    // Initially oprf has A = 0, which makes it favor_positive.
    const std::vector<double> plain = doubles(Alone(attention_config("linear", "favor_positive")).run());
    EXPECT_LE(relative_difference(with.run(true), plain), 1e-14) << map;
    EXPECT_LE(relative_difference(with.run(true), plain), 1e-14) << map << ": statistics affected their own step";
    with.mechanism->update_constants();
    EXPECT_GT(relative_difference(with.run(), plain), 1e-3) << map;
  }
}

TEST(HeadConstants, MatchFormulas) {
  AttentionConfig config = attention_config("linear", "oprf");
  config.centering = true;
  config.scaling = Scaling::saderf;
  Alone attention(config);
  attention.run(true);
  attention.mechanism->update_constants();
  const std::int64_t d = 6, tokens = 22;
  const std::vector<double> q = doubles(attention.query), k = doubles(attention.key);
  for (std::int64_t head = 0; head < 4; ++head) {
    double phi = 0;
    for (std::int64_t i = 0; i < d; ++i) {
      const auto moments = [&](const std::vector<double>& x, std::int64_t width, std::int64_t column) {
        double mean = 0, square = 0;
        for (std::int64_t t = 0; t < tokens; ++t) {
          const double value = x[static_cast<std::size_t>(t * width + column)];
          mean += value / static_cast<double>(tokens);
          square += value * value / static_cast<double>(tokens);
        }
        return std::pair(mean, square - mean * mean);
      };
      const auto [q_mean, q_variance] = moments(q, 4 * d, head * d + i);
      const auto [k_mean, k_variance] = moments(k, 2 * d, head / 2 * d + i);
      const std::size_t at = static_cast<std::size_t>(head * d + i);
      const double psi = std::pow(k_variance / q_variance, 0.25);
      EXPECT_NEAR(attention.buffer("query_center")[at], q_mean, 1e-12);
      EXPECT_NEAR(attention.buffer("key_center")[at], k_mean, 1e-12);
      EXPECT_NEAR(attention.buffer("scaling")[at], psi, 1e-12);
      phi += (psi * psi * q_variance + k_variance / (psi * psi)) / std::sqrt(6.0) / 6.0;
    }
    const double a = (1 - 2 * phi - std::sqrt((2 * phi + 1) * (2 * phi + 1) + 8 * phi)) / 16;
    EXPECT_NEAR(attention.buffer("oprf_a")[static_cast<std::size_t>(head)], a, 1e-12);
    EXPECT_LT(a, -0.01);
  }
  // Older statistics lose weight with each step, but means do not change.
  const std::vector<double> before = attention.buffer("query_center");
  EXPECT_NEAR(attention.buffer("statistics")[0], 22 * statistics_decay, 1e-12);
  attention.mechanism->update_constants();
  EXPECT_LE(relative_difference(attention.buffer("query_center"), before), 1e-14);
}

// A layer that a step did not run keeps its statistics and constants, however many such steps follow.
TEST(HeadConstants, DecayOnlyInStepsOfTheirLayer) {
  ModelConfig config = small_config({"linear", "favor_positive", "constants"}, Position::none, 0, Style::gpt2);
  TestModel model(config, DType::float32);
  ASSERT_TRUE(model.invent_statistics());
  const auto buffer = [&](int layer, const char* name) {
    return model.store.find(fmt::format("blocks.{}.attention.{}", layer, name)).master().to_vector<float>();
  };
  model.decoder.redraw(5, 1);
  const auto statistics = buffer(0, "statistics"), centers = buffer(0, "query_center"),
             others = buffer(1, "statistics");
  EXPECT_NE(centers, std::vector<float>(centers.size()));
  // With a decay of 0.99 in each step, float32 statistics would be zero by now, and constants neutral.
  for (std::int64_t step = 2; step < 20000; ++step) model.decoder.redraw(5, step, 1);
  EXPECT_EQ(buffer(0, "statistics"), statistics);
  EXPECT_EQ(buffer(0, "query_center"), centers);
  EXPECT_NE(buffer(1, "statistics"), others);
}

TEST(HeadConstants, OprfConstantMatchesPairwiseDefinition) {
  // φ by its definition, over all pairs, without centering or scaling.
  Alone attention(attention_config("linear", "oprf"));
  attention.run(true);
  attention.mechanism->update_constants();
  const std::vector<double> q = doubles(attention.query), k = doubles(attention.key);
  double phi = 0;
  for (std::size_t i = 0; i < 22; ++i) {
    for (std::size_t j = 0; j < 22; ++j) {
      for (std::size_t c = 0; c < 6; ++c)
        phi += std::pow((q[i * 24 + c] + k[j * 12 + c]) / std::pow(6.0, 0.25), 2) / 6 / 484;
    }
  }
  EXPECT_NEAR(attention.buffer("oprf_a")[0], (1 - 2 * phi - std::sqrt((2 * phi + 1) * (2 * phi + 1) + 8 * phi)) / 16,
              1e-12);
}

TEST(HeadConstants, DegenerateMomentsGiveFiniteConstants) {
  const HeadMoments moments{{0, 1, 0, 0}, {0, 0, 0, 0}, {0, 1, 1e-30, 1e30}, {1, 0, 1e30, 1e-30}};
  EXPECT_EQ(saderf_scaling(moments, false), (std::vector<double>{1, 1, 64, 1.0 / 64}));
  EXPECT_EQ(oprf_constant({{0}, {0}, {0}, {0}}, false, nullptr), 0);
}

TEST(HeadConstants, IgnoreEvaluationAndPadding) {
  AttentionConfig config = attention_config("linear");
  config.centering = true;
  Alone attention(config);
  attention.run(false);
  EXPECT_EQ(attention.buffer("statistics"), std::vector<double>(4 * 25));
  std::vector<std::int32_t> kept(22, 1);
  for (std::size_t i = 8; i < 11; ++i) kept[i] = kept[11 + i] = 0;
  attention.run(true, {Tensor::from(kept, {2, 11}), {}});
  EXPECT_EQ(attention.buffer("statistics")[0], 16);
}

TEST(Hedgehog, StartsAsSoftmaxOfPlusAndMinusX) {
  const AttentionConfig config = attention_config("linear", "hedgehog");
  Alone attention(config);
  EXPECT_EQ(attention.store.find("attention.query_features.weight").shape(), Shape({4, 6, 6}));
  EXPECT_EQ(attention.store.find("attention.key_features.weight").shape(), Shape({2, 6, 6}));
  ops::LinearAttentionInputs inputs;
  inputs.query = Variable(attention.query);
  inputs.key = Variable(attention.key);
  inputs.value = Variable(attention.value);
  ops::LinearAttentionOptions options;
  options.n_heads = 4;
  options.n_kv_heads = 2;
  options.feature_map = ops::FeatureMap::hedgehog;
  options.chunk_size = config.chunk_size;
  Tape tape(Stream{});
  const std::vector<double> expected = doubles(ops::linear_attention(tape, inputs, options).value());
  EXPECT_LE(relative_difference(attention.run(), expected), 1e-14);
  // Both weights are used: each changes the output.
  for (const char* name : {"attention.query_features.weight", "attention.key_features.weight"}) {
    double& weight = attention.store.find(name).master().data<double>()[0];
    weight += 0.5;
    EXPECT_GT(relative_difference(attention.run(), expected), 1e-3) << name;
    weight -= 0.5;
  }
}

TEST(Hedgehog, BothWeightsGetGradients) {
  Alone attention(attention_config("linear", "hedgehog"), DType::float64, 7);
  const Tensor direction = normal_tensor({2, 7, 24}, DType::float64, "direction");
  Tape tape(Stream{});
  ForwardContext context{tape, true};
  const Variable output = attention.mechanism->forward(context, Variable(attention.query), Variable(attention.key),
                                                       Variable(attention.value));
  tape.backward({output}, {direction});
  const auto along_direction = [&] {
    const std::vector<double> out = doubles(attention.run()), by = doubles(direction);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * by[i];
    return sum;
  };
  for (const char* name : {"attention.query_features.weight", "attention.key_features.weight"}) {
    const Parameter& parameter = attention.store.find(name);
    double* weights = parameter.master().data<double>();
    std::vector<double> numeric;
    for (std::int64_t i = 0; i < parameter.shape().elements(); ++i) {
      const double before = weights[i], h = 1e-3;
      const auto at = [&](double weight) {
        weights[i] = weight;
        return along_direction();
      };
      numeric.push_back((8 * (at(before + h) - at(before - h)) - (at(before + 2 * h) - at(before - 2 * h))) / (12 * h));
      weights[i] = before;
    }
    EXPECT_LE(relative_difference(parameter.gradient(), numeric), 1e-9) << name;
    for (double each : doubles(parameter.gradient())) EXPECT_NE(each, 0) << name;
  }
}

TEST(Unnormalized, HeadsHaveUnitMeanSquareTimesGain) {
  AttentionConfig config = attention_config("linear", "elu1");
  config.normalizer = ops::Normalizer::rms;
  Alone attention(config);
  const Tensor gain = attention.store.find("attention.output_norm.weight").master();
  for (std::int64_t i = 0; i < 24; ++i) gain.data<double>()[i] = i < 6 ? 3 : 1;
  const std::vector<double> output = doubles(attention.run());
  for (std::size_t head = 0; head < output.size() / 6; ++head) {
    double square = 0;
    for (std::size_t i = 0; i < 6; ++i) square += output[head * 6 + i] * output[head * 6 + i] / 6;
    EXPECT_NEAR(std::sqrt(square), head % 4 == 0 ? 3 : 1, 1e-4);
  }
}

TEST(MixedHeads, RunsAreSeparateMechanisms) {
  AttentionConfig config = attention_config("softmax", "elu1");
  config.head_mechanisms = {"linear", "linear", "softmax", "softmax"};
  Alone mixed(config);
  config.head_mechanisms.clear();
  const Tensor softmax = Alone(config).run();
  config.mechanism = "linear";
  const Tensor linear = Alone(config).run(), both = mixed.run();
  EXPECT_EQ(doubles(both.narrow(2, 0, 12)), doubles(linear.narrow(2, 0, 12)));
  EXPECT_LE(relative_difference(both.narrow(2, 12, 12), doubles(softmax.narrow(2, 12, 12))), 1e-14);
}

TEST(MixedHeads, UniformHeadsEqualOneMechanism) {
  AttentionConfig config = attention_config("softmax", "elu1");
  config.head_mechanisms.assign(4, "linear");
  Alone mixed(config);
  config.head_mechanisms.clear();
  config.mechanism = "linear";
  EXPECT_EQ(doubles(mixed.run()), doubles(Alone(config).run()));
}

TEST(MixedHeads, NamesContainHeadRange) {
  AttentionConfig config = attention_config("softmax");
  config.n_kv_heads = 4;
  config.head_mechanisms = {"linear", "softmax", "linear", "linear"};
  Alone mixed(config);
  EXPECT_EQ(mixed.store.find("attention.heads_0_0.directions").shape(), Shape({10, 6}));
  EXPECT_NE(mixed.buffer("heads_0_0.directions"), mixed.buffer("heads_2_3.directions"));
}

TEST(MixedHeads, RejectsMixedKeyValueGroups) {
  AttentionConfig config = attention_config("softmax");
  config.head_mechanisms = {"linear", "softmax", "softmax", "softmax"};
  const std::string message = message_of<UserError>([&] { Alone{config}; });
  EXPECT_NE(message.find("heads 0 and 1"), std::string::npos) << message;
  EXPECT_NE(message.find("key-value head 0"), std::string::npos) << message;
  config.head_mechanisms = {"linear", "linear"};
  EXPECT_NE(message_of<UserError>([&] { Alone{config}; }).find("2 mechanisms for 4 heads"), std::string::npos);
}

TEST(Denominators, AreCountedOnce) {
  const Attending attending{"linear", "favor_trig"};
  const ModelConfig config = small_config(attending, Position::rotary, 0, Style::gpt2);
  for (const ActivationCheckpointing recompute :
       {ActivationCheckpointing::elementwise, ActivationCheckpointing::blocks}) {
    TestModel model(config, DType::float32, recompute);
    ops::DenominatorReport report;
    run_step(model, random_tokens(3, 9, config), random_targets(3, 9, config),
             {.training = true, .denominators = &report});
    EXPECT_EQ(report.rows, 2 * 3 * 9 * 2) << name_of(recompute);  // layers, batch, tokens, heads
    EXPECT_LT(report.least, 1);
  }
}

TEST(Statistics, AreCountedOnceUnderRecomputation) {
  const Attending attending{"linear", "oprf", "constants"};
  const auto statistics = [&](ActivationCheckpointing recompute) {
    const ModelConfig config = small_config(attending, Position::rotary, 4, Style::llama);
    TestModel model(config, DType::float64, recompute);
    run_step(model, random_tokens(3, 9, config), random_targets(3, 9, config), {.training = true});
    return doubles(model.store.find("blocks.1.attention.statistics").master());
  };
  const std::vector<double> kept = statistics(ActivationCheckpointing::elementwise);
  EXPECT_NEAR(kept[0], 10 * statistics_decay + 27, 1e-12);
  EXPECT_EQ(statistics(ActivationCheckpointing::blocks), kept);
}

/// Copies all parameters and buffers of one model to another, as a checkpoint does.
void copy_model(const TestModel& from, TestModel& to) {
  for (const Parameter& parameter : from.store.parameters())
    to.store.find(parameter.name()).master().copy_from(parameter.master());
  to.store.refresh_compute_values(Stream{});
}

TEST(Statistics, ResumeFromCheckpointIsExact) {
  const ModelConfig config = small_config({"linear", "oprf", "constants"}, Position::rotary, 4, Style::llama);
  const Tensor tokens = random_tokens(2, 9, config), targets = random_targets(2, 9, config);
  TestModel model(config, DType::float32), resumed(config, DType::float32);
  const auto step = [&](TestModel& of, std::int64_t number) {
    of.decoder.redraw(5, number);
    return run_step(of, tokens, targets, {.training = true});
  };
  for (std::int64_t number = 0; number < 3; ++number) step(model, number);
  copy_model(model, resumed);
  EXPECT_EQ(loss_of(model, tokens, targets), loss_of(resumed, tokens, targets));
  for (std::int64_t number = 3; number < 5; ++number) EXPECT_EQ(step(model, number), step(resumed, number));
  for (const Parameter& parameter : model.store.parameters())
    EXPECT_TRUE(same_bits(parameter.master(), resumed.store.find(parameter.name()).master())) << parameter.name();
}

TEST(Registry, CollectsMechanismsOfLayersAndHeads) {
  AttentionConfig config;
  config.layer_mechanisms = {"linear", "softmax linear linear softmax"};
  const auto used = mechanisms_of(config);
  ASSERT_EQ(used.size(), 2u);
  EXPECT_STREQ(used[0]->name, "linear");
  EXPECT_STREQ(used[1]->name, "softmax");
  EXPECT_EQ(first_mechanism(config, &MechanismInfo::is_softmax), used[1]);
  EXPECT_EQ(first_mechanism(config, &MechanismInfo::is_softmax, false), used[0]);
  EXPECT_FALSE(uses(config, &MechanismInfo::is_hybrid));
  EXPECT_EQ(head_mechanisms_of(config, 0), std::vector<std::string>{"linear"});
  EXPECT_EQ(head_mechanisms_of(config, 1).size(), 4u);
}

TEST(Registry, RejectsUnknownNames) {
  EXPECT_EQ(find_mechanism("lineer"), nullptr);
  EXPECT_EQ(message_of<UserError>([] { mechanism_info("lineer"); }),
            "attention mechanism 'lineer' is unknown; expected one of softmax, linear, windowed, linformer");
  AttentionConfig config;
  config.head_mechanisms = {"softmax", "lineer"};
  EXPECT_NE(message_of<UserError>([&] { mechanisms_of(config); }).find("'lineer'"), std::string::npos);
}

TEST(Mechanisms, RejectInvalidConfigs) {
  const auto refuses = [](const std::string& words, const auto& change) {
    AttentionConfig config = attention_config("linear");
    change(config);
    const std::string message = message_of<UserError>([&] {
      Alone attention(config);
      attention.mechanism->new_state(1, 8, DType::float64, Device{});
    });
    EXPECT_NE(message.find(words), std::string::npos) << "'" << message << "' for " << words;
  };
  refuses("estimate softmax", [](AttentionConfig& c) { c.feature_map = "elu1", c.centering = true; });
  refuses("estimate softmax", [](AttentionConfig& c) { c.feature_map = "hedgehog", c.scaling = Scaling::saderf; });
  refuses("positive multiple", [](AttentionConfig& c) { c.feature_map = "favor_hyperbolic", c.n_features = 9; });
  refuses("more than max_features", [](AttentionConfig& c) {
    c.feature_map = "taylor", c.map_options.order = 3, c.map_options.max_features = 50;
  });
  refuses("nearest tokens", [](AttentionConfig& c) { c.mechanism = "windowed"; });
  refuses("expected sum", [](AttentionConfig& c) {
    c.mechanism = "windowed", c.softmax_window = 4, c.normalizer = ops::Normalizer::rms;
  });
  refuses("no recurrent form", [](AttentionConfig& c) { c.causal = false; });
  refuses("'lineer'", [](AttentionConfig& c) { c.head_mechanisms = {"softmax", "softmax", "lineer", "lineer"}; });
}

}  // namespace
}  // namespace furlong::layers
