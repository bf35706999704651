// Models with settings beyond GPT-2's and Llama's: post-norm, embedding norms, narrow embeddings, segments, shared
// layers, a transform before the output, norms and biases of queries and keys, scaled rotary positions, token dropout,
// adapters.
#include <set>

#include "layers/models/encoder.h"
#include "tests/layers/models/decoder_testing.h"
#include "tests/reference/transformer.h"

namespace furlong::layers {
namespace {

using namespace furlong::layers::testing;
using furlong::reference::doubles;
using furlong::reference::relative_difference;

struct NamedConfig {
  std::string name;
  ModelConfig config;
};
void PrintTo(const NamedConfig& architecture, std::ostream* stream) { *stream << architecture.name; }

void norms_after(ModelConfig& config) {
  config.norm_placement = NormPlacement::post;
  config.embedding_norm = true;
}

ModelConfig bert(const Attending& attending) {
  ModelConfig config = small_config(attending, Position::learned, 0, Style::gpt2);
  norms_after(config);
  config.activation = Activation::gelu;
  config.n_segments = 3;
  config.prediction_head = PredictionHead::transform;
  config.output_bias = true;
  config.architecture = Architecture::encoder;
  return config;
}

/// With softmax attention, and with linear attention where it makes a difference.
std::vector<NamedConfig> architectures() {
  std::vector<NamedConfig> all;
  for (const Attending& attending : std::vector<Attending>{{"softmax", ""}, {"linear", "favor_positive"}}) {
    const auto add = [&](const std::string& name, ModelConfig config, const auto& change) {
      change(config);
      all.push_back({name + "_" + attending.mechanism, config});
    };
    const ModelConfig gpt2 = small_config(attending, Position::learned, 0, Style::gpt2),
                      llama = small_config(attending, Position::rotary, 0, Style::llama);
    add("bert", bert(attending), [](ModelConfig&) {});
    add("albert", bert(attending), [](ModelConfig& config) {
      config.shared_layers = true;
      config.n_layers = 3;
      config.d_embedding = 7;
      config.activation = Activation::gelu_tanh;
    });
    add("gpt2_with_output_bias", gpt2, [](ModelConfig& config) { config.output_bias = true; });
    add("causal_with_norms_after", gpt2, [](ModelConfig& config) {
      norms_after(config);
      config.shared_layers = true;
      config.output_bias = true;
    });
    add("narrow_embeddings", llama, [](ModelConfig& config) {
      config.d_embedding = 6;
      config.n_segments = 2;
      config.bias = true;
    });
    add("query_key_norm", llama, [](ModelConfig& config) {
      config.query_key_norm = QueryKeyNorm::rmsnorm;
      config.rotary_scaling = {.kind = ops::RotaryScalingKind::llama3, .factor = 4, .original_length = 12};
    });
    add("query_key_value_bias", llama, [](ModelConfig& config) { config.query_key_value_bias = true; });
    add("token_dropout", bert(attending), [](ModelConfig& config) {
      config.norm_placement = NormPlacement::pre;
      config.position = Position::rotary;
      config.token_dropout = true;
      config.mask_token = 3;
    });
    add("yarn", llama, [](ModelConfig& config) {
      config.rotary_base = 100;
      config.rotary_scaling = {
          .kind = ops::RotaryScalingKind::yarn, .factor = 3, .original_length = 40, .beta_fast = 4};
    });
    add("adapters", llama, [](ModelConfig& config) {
      config.adapter = {3, 5};
      config.query_key_norm = QueryKeyNorm::rmsnorm;
      config.short_convolution = 4;
    });
  }
  return all;
}

/// Sets the second factor of adapters to nonzero values, so that they have an effect.
void fill_adapters(TestModel& model) {
  for (const Parameter& parameter : model.store.parameters()) {
    if (!parameter.name().ends_with(".lora_b.weight")) continue;
    const DType dtype = parameter.master().dtype();
    parameter.master().copy_from(furlong::reference::normal_tensor(parameter.shape(), dtype, parameter.name(), 0.3));
  }
  model.store.refresh_compute_values(Stream{});
}

struct FilledModel : TestModel {
  FilledModel(const ModelConfig& config, DType dtype,
              ActivationCheckpointing recompute = ActivationCheckpointing::elementwise)
      : TestModel(config, dtype, recompute) {
    fill_adapters(*this);
  }
};

template <class Wanted>
std::vector<NamedConfig> architectures_that(const Wanted& wanted) {
  std::vector<NamedConfig> found;
  for (const NamedConfig& architecture : architectures()) {
    if (wanted(architecture.config)) found.push_back(architecture);
  }
  return found;
}

class EveryArchitecture : public ::testing::TestWithParam<NamedConfig> {
 protected:
  const OneThread one_thread_;  // models of this size are too small for several threads
};
class SoftmaxArchitecture : public EveryArchitecture {};
class CausalArchitecture : public EveryArchitecture {};
std::string architecture_name(const ::testing::TestParamInfo<NamedConfig>& instance) { return instance.param.name; }
INSTANTIATE_TEST_SUITE_P(Named, EveryArchitecture, ::testing::ValuesIn(architectures()), architecture_name);
INSTANTIATE_TEST_SUITE_P(Named, SoftmaxArchitecture,
                         ::testing::ValuesIn(architectures_that([](const ModelConfig& config) {
                           return config.attention.mechanism == "softmax";
                         })),
                         architecture_name);
INSTANTIATE_TEST_SUITE_P(Named, CausalArchitecture,
                         ::testing::ValuesIn(architectures_that([](const ModelConfig& config) {
                           return config.architecture == Architecture::decoder;
                         })),
                         architecture_name);

TEST_P(SoftmaxArchitecture, MatchesReference) {
  ModelConfig config = GetParam().config;
  config.short_convolution = 0;
  for (const DType dtype : {DType::float64, DType::float32}) {
    FilledModel model(config, dtype);
    const furlong::reference::Transformer definition(config, model.store);
    constexpr std::int64_t batch = 2, n = 13;
    const Tensor tokens = random_tokens(batch, n, config);
    const Tensor segments =
        furlong::reference::integer_tensor({batch, n}, 0, std::max<std::int64_t>(config.n_segments, 1), "segments");
    for (const bool with_segments : {false, true}) {
      if (with_segments && config.n_segments == 0) continue;
      const auto expected =
          definition.run(tokens.to_vector<std::int32_t>(),
                         with_segments ? segments.to_vector<std::int32_t>() : std::vector<std::int32_t>{}, batch, n);
      Tape tape(Stream{});
      const Tape::NoGradient guard(tape);
      ForwardContext context{tape};
      if (with_segments) context.segments = segments;
      std::size_t layer = 0;
      // Sums of about ten terms, about twelve deep.
      const double tolerance = dtype == DType::float64 ? 1e-13 : 2e-5;
      context.observe_attention = [&](const ObservedAttention& seen) {
        EXPECT_EQ(seen.layer, fmt::format("blocks.{}.attention", layer));
        EXPECT_LE(relative_difference(seen.input.value(), expected.attention_inputs[layer]), tolerance) << seen.layer;
        EXPECT_LE(relative_difference(seen.projected.value(), expected.attention_outputs[layer]), tolerance)
            << seen.layer;
        EXPECT_EQ(seen.output.shape(), Shape({batch, n, config.attention.n_heads * config.attention.d_head}));
        ++layer;
      };
      const Variable hidden = model.decoder.hidden(context, tokens);
      EXPECT_EQ(layer, static_cast<std::size_t>(config.n_layers));
      EXPECT_LE(relative_difference(hidden.value(), expected.hidden), tolerance);
      const Tensor logits = model.decoder.logits(Stream{}, hidden.value().reshape({batch * n, config.d_model}));
      EXPECT_LE(relative_difference(logits, expected.logits), tolerance);
      const Tensor targets = random_targets(batch, n, config);
      context.observe_attention = nullptr;
      const auto loss = model.decoder.loss(context, tokens, targets, {.keep_row_losses = true});
      for (std::int64_t row = 0; row < batch * n; ++row) {
        const std::int32_t target = targets.to_vector<std::int32_t>()[static_cast<std::size_t>(row)];
        if (target < 0) continue;
        double sum = 0;
        const double* logit = expected.logits.data() + row * config.vocabulary_size;
        for (std::int64_t i = 0; i < config.vocabulary_size; ++i) sum += std::exp(logit[i]);
        EXPECT_NEAR(doubles(loss.row_losses)[static_cast<std::size_t>(row)], std::log(sum) - logit[target],
                    20 * tolerance);
      }
    }
    EXPECT_EQ(definition.unused(), std::set<std::string>{});
  }
}

TEST_P(EveryArchitecture, GradientsMatchFiniteDifferences) {
  ModelConfig config = GetParam().config;
  config.dropout = 0.1;
  FilledModel model(config, DType::float64);
  const Worst worst =
      check_loss_gradients(model, random_tokens(2, 9, config), random_targets(2, 9, config), {.training = true});
  EXPECT_LE(worst.error, 1e-6) << worst.where;
}

TEST_P(EveryArchitecture, RecomputationIsBitIdentical) {
  ModelConfig config = GetParam().config;
  config.dropout = 0.1;
  const Tensor tokens = random_tokens(2, 9, config), targets = random_targets(2, 9, config);
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    FilledModel kept(config, dtype, ActivationCheckpointing::none);
    const double loss = run_step(kept, tokens, targets, {.training = true});
    FilledModel elementwise(config, dtype, ActivationCheckpointing::elementwise);
    EXPECT_EQ(run_step(elementwise, tokens, targets, {.training = true}), loss);
    EXPECT_TRUE(same_bits(elementwise.store.gradients(), kept.store.gradients()));
    FilledModel blocks(config, dtype, ActivationCheckpointing::blocks);
    EXPECT_EQ(run_step(blocks, tokens, targets, {.training = true}), loss);
    EXPECT_TRUE(same_bits(blocks.store.gradients(), kept.store.gradients()));
  }
}

TEST_P(CausalArchitecture, GenerationMatchesParallelForward) {
  const ModelConfig& config = GetParam().config;
  for (const DType dtype : {DType::float64, DType::float32}) {
    FilledModel model(config, dtype);
    const Tensor tokens = random_tokens(2, 22, config);
    const Tensor hidden = hidden_of(model, tokens);
    for (const std::vector<std::int64_t>& pieces : std::vector<std::vector<std::int64_t>>{{}, {9}, {5, 1, 8}}) {
      GenerationState state = model.decoder.new_state(2, 22);
      const auto found = extended(model, tokens, pieces, state);
      const double tolerance = dtype == DType::float64 ? 1e-12 : 1e-4;
      EXPECT_LE(relative_difference(found, doubles(hidden)), tolerance);
      const auto logits = [&](const Tensor& states) {
        return model.decoder.logits(Stream{}, states.reshape({44, config.d_model}));
      };
      EXPECT_LE(relative_difference(logits(furlong::reference::tensor_of(found, {44, config.d_model}, dtype)),
                                    doubles(logits(hidden))),
                tolerance);
    }
  }
}

TEST_P(EveryArchitecture, AttentionOutputRunsOneLayerOnGivenInput) {
  ModelConfig config = GetParam().config;
  FilledModel model(config, DType::float64);
  const Tensor tokens = random_tokens(2, 9, config);
  Tape tape(Stream{});
  ForwardContext context{tape};
  struct Seen {
    Tensor input, projected;
  };
  std::vector<Seen> seen;
  context.observe_attention = [&](const ObservedAttention& one) {
    seen.push_back({one.input.value(), one.projected.value()});
  };
  {
    const Tape::NoGradient guard(tape);
    model.decoder.hidden(context, tokens);
  }
  context.observe_attention = nullptr;
  for (std::size_t layer = 0; layer < seen.size(); ++layer) {
    // Only the parameters of this layer get gradients.
    model.store.forget_gradients();
    const Variable output = model.decoder.attention_output(context, layer, Variable(seen[layer].input));
    EXPECT_TRUE(same_bits(output.value(), seen[layer].projected)) << "layer " << layer;
    tape.backward({output}, {furlong::reference::normal_tensor(output.shape(), DType::float64, "d_output")});
    model.store.complete_gradients(Stream{});
    const std::string prefix = fmt::format("blocks.{}.attention.", config.shared_layers ? 0 : layer);
    for (const Parameter& parameter : model.store.parameters()) {
      if (!model.store.is_trained(parameter)) continue;
      const auto gradient = doubles(parameter.gradient());
      const bool any = std::any_of(gradient.begin(), gradient.end(), [](double value) { return value != 0; });
      EXPECT_EQ(any, parameter.name().starts_with(prefix)) << parameter.name();
    }
  }
}

class ArchitectureOnEngines : public furlong::testing::EngineTest {};
FURLONG_INSTANTIATE_ENGINES(ArchitectureOnEngines);

struct LossAndGradients {
  double loss;
  std::vector<double> gradients;
};
LossAndGradients one_step(const ModelConfig& config, const Device& device) {
  const furlong::testing::OnDevice here(device);
  ParameterStore store(DType::float32, device);
  Decoder decoder(store, config);
  store.allocate(5);
  decoder.redraw(5, 0);
  for (const Parameter& parameter : store.parameters()) {
    if (parameter.name().ends_with(".lora_b.weight"))
      parameter.master().copy_from(
          furlong::reference::normal_tensor(parameter.shape(), DType::float32, parameter.name(), 0.3));
  }
  store.refresh_compute_values(Stream{device});
  store.forget_gradients();
  Tape tape(Stream{device});
  ForwardContext context = Pass{.training = true}.context(tape);
  if (config.n_segments > 0)
    context.segments = furlong::reference::integer_tensor({2, 9}, 0, config.n_segments, "segments");
  const auto result = decoder.loss(context, random_tokens(2, 9, config), random_targets(2, 9, config));
  const double loss = scalar(result.loss.value());
  tape.backward(result.loss);
  store.complete_gradients(Stream{device});
  return {loss, doubles(store.gradients())};
}

TEST_P(ArchitectureOnEngines, LossAndGradientsMatchCpu) {
  for (const NamedConfig& architecture : architectures()) {
    ModelConfig config = architecture.config;
    config.dropout = 0.1;
    const LossAndGradients expected = one_step(config, Device{}), found = one_step(config, furlong::testing::device());
    EXPECT_NEAR(found.loss, expected.loss, 1e-5) << architecture.name;
    EXPECT_LE(relative_difference(found.gradients, expected.gradients), 1e-4) << architecture.name;
  }
}

TEST(SharedLayers, EqualLayersWithEqualParameters) {
  const OneThread one_thread;
  for (const char* mechanism : {"softmax", "linear"}) {
    ModelConfig config =
        small_config({mechanism, mechanism == std::string("linear") ? "elu1" : ""}, Position::rotary, 4, Style::gpt2);
    config.n_layers = 3;
    config.dropout = 0.5;
    TestModel apart(config, DType::float64);
    config.shared_layers = true;
    TestModel shared(config, DType::float64);
    for (const Parameter& parameter : apart.store.parameters()) {
      std::string name = parameter.name();
      if (name.starts_with("blocks.")) name[7] = '0';
      parameter.master().copy_from(shared.store.find(name).master());
    }
    // Bit for bit with dropout, which is keyed by the layer's own name, not by the name of its parameters.
    const Tensor tokens = random_tokens(2, 20, config), targets = random_targets(2, 20, config);
    const Pass pass{.training = true};
    EXPECT_EQ(run_step(shared, tokens, targets, pass), run_step(apart, tokens, targets, pass));
    const std::string name = "feedforward.output.weight";
    std::vector<double> sum(static_cast<std::size_t>(config.d_feedforward * config.d_model));
    for (int layer = 0; layer < 3; ++layer) {
      const auto part = doubles(apart.store.find(fmt::format("blocks.{}.{}", layer, name)).gradient());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    EXPECT_LE(relative_difference(shared.store.find("blocks.0." + name).gradient(), sum), 1e-14);
  }
}

TEST(SharedLayers, ShareParametersButNotStates) {
  ModelConfig config = small_config({"linear", "favor_positive", "constants"}, Position::rotary, 4, Style::gpt2);
  config.shared_layers = true;
  config.n_layers = 3;
  TestModel model(config, DType::float64);
  for (const Parameter& parameter : model.store.parameters())
    EXPECT_TRUE(!parameter.name().starts_with("blocks.") || parameter.name().starts_with("blocks.0."))
        << parameter.name();
  EXPECT_EQ(model.decoder.new_state(1, 9).layers.size(), 3u);
  // Constants decay by one factor per step, not per layer.
  ASSERT_TRUE(model.invent_statistics());
  const auto statistics = [&] { return doubles(model.store.find("blocks.0.attention.statistics").master()); };
  const auto before = statistics();
  model.decoder.redraw(5, 1);
  const auto after = statistics();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_DOUBLE_EQ(after[i], before[i] * 0.99);

  ModelConfig mixed = small_config({"linear", "favor_positive", "layers"}, Position::rotary, 0, Style::gpt2);
  mixed.shared_layers = true;
  EXPECT_THROW(TestModel(mixed, DType::float32), ContractError);
}

TEST(Architectures, ParameterNamesShowTheirPlace) {
  ModelConfig config = bert({"softmax", ""});
  config.d_embedding = 7;
  config.shared_layers = true;
  config.query_key_norm = QueryKeyNorm::rmsnorm;
  TestModel model(config, DType::float32);
  std::map<std::string, Shape> shapes;
  for (const Parameter& parameter : model.store.parameters()) {
    if (!parameter.name().starts_with("blocks.")) shapes.emplace(parameter.name(), parameter.shape());
    EXPECT_EQ(parameter.decays(), parameter.shape().rank() == 2) << parameter.name();
  }
  const std::map<std::string, Shape> expected{
      {"token_embedding.weight", {11, 7}},  {"position_embedding.weight", {48, 7}},
      {"segment_embedding.weight", {3, 7}}, {"embedding_norm.gain", {7}},
      {"embedding_norm.bias", {7}},         {"embedding_projection.weight", {10, 7}},
      {"embedding_projection.bias", {10}},  {"prediction.transform.weight", {7, 10}},
      {"prediction.transform.bias", {7}},   {"prediction.norm.gain", {7}},
      {"prediction.norm.bias", {7}},        {"output_bias", {11}}};
  EXPECT_TRUE(shapes == expected);
  EXPECT_EQ(model.store.find("blocks.0.attention.query_norm.gain").shape(), Shape{6});
  EXPECT_EQ(model.store.find("blocks.0.attention.key_norm.gain").shape(), Shape{6});
  EXPECT_EQ(&model.decoder.output_weight(), &model.store.find("token_embedding.weight"));
  EXPECT_EQ(model.decoder.output_bias(), &model.store.find("output_bias"));
}

TEST(Architectures, BertAndAlbertHavePublishedSizes) {
  const auto count = [](const ModelConfig& config) {
    const TestModel model(config, DType::bfloat16, Device{DeviceType::shape_only, 0});
    return model.store.trained_parameter_count();
  };
  ModelConfig config = bert({"softmax", ""});
  config.vocabulary_size = 30522;
  config.n_layers = 12;
  config.d_model = 768;
  config.d_feedforward = 3072;
  config.max_sequence_length = 512;
  config.n_segments = 2;
  config.attention.n_heads = config.attention.n_kv_heads = 12;
  config.attention.d_head = 64;
  EXPECT_EQ(count(config), 109514298);  // BertForMaskedLM, bert-base-uncased
  config.vocabulary_size = 30000;
  config.shared_layers = true;
  config.d_embedding = 128;
  EXPECT_EQ(count(config), 11221680);  // AlbertForMaskedLM, albert-base-v2
}

TEST(Architectures, RejectsTiedEmbeddingsOfOtherWidth) {
  ModelConfig config = small_config({"softmax", ""}, Position::learned, 0, Style::gpt2);
  config.d_embedding = 7;
  EXPECT_THROW(TestModel(config, DType::float32), ContractError);
}

TEST(Architectures, LabelEncoderHasNoTokenOutputLayer) {
  ModelConfig config = bert({"softmax", ""});
  config.tied_embeddings = false;
  ParameterStore store(DType::float32, Device{});
  Encoder encoder(store, config, LabelHeadConfig{.n_classes = 3});
  store.allocate(1);
  for (const Parameter& parameter : store.parameters())
    EXPECT_TRUE(!parameter.name().starts_with("prediction.") && parameter.name() != "output_bias") << parameter.name();
  EXPECT_EQ(store.find("classifier.weight").shape(), Shape({3, 10}));
  EXPECT_EQ(encoder.output_bias(), nullptr);
  EXPECT_THROW(encoder.output_weight(), ContractError);
}

TEST(Architectures, RejectsSegmentsWithoutSegmentEmbedding) {
  ModelConfig config = small_config({"softmax", ""}, Position::learned, 0, Style::gpt2);
  TestModel model(config, DType::float32);
  Tape tape(Stream{});
  ForwardContext context{tape};
  context.segments = Tensor::zeros({1, 4}, DType::int32, Device{});
  EXPECT_THROW(model.decoder.hidden(context, random_tokens(1, 4, config)), ContractError);
}

}  // namespace
}  // namespace furlong::layers
