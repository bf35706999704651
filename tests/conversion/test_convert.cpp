// furlong convert: requests for another attention, measurements, and rejected options.
#include "conversion/convert.h"

#include <gmock/gmock.h>

#include <sstream>

#include "conversion/attention_request.h"
#include "framework/core/log.h"
#include "tests/conversion/convert_testing.h"
#include "tests/trainers/training.h"
#include "trainers/train/trainer.h"

namespace furlong {
namespace {

using namespace furlong::testing;
using ::testing::HasSubstr;
using Convert = ConvertTest;

TEST(AttentionRequest, ParsesEveryForm) {
  EXPECT_EQ(attention_request("softmax").mechanism, "softmax");
  const AttentionRequest map = attention_request("taylor:2+centering");
  EXPECT_EQ(map.mechanism, "linear");
  EXPECT_EQ(map.candidate->map_options.order, 2);
  EXPECT_TRUE(map.candidate->centering);
  const AttentionRequest windowed = attention_request("windowed:64+oprf+saderf");
  EXPECT_EQ(windowed.mechanism, "windowed");
  EXPECT_EQ(windowed.size, 64);
  EXPECT_TRUE(windowed.candidate->saderf);
  EXPECT_EQ(attention_request("windowed:16").candidate->map, ops::FeatureMap::favor_positive);
  EXPECT_EQ(attention_request("linformer:32").size, 32);
  EXPECT_EQ(attention_request("linformer").size, 0);
  for (const char* name : {"performer", "linear", "favor+"})
    EXPECT_THAT(message_of<UserError>([&] { attention_request(name); }), HasSubstr("did you mean favor_positive?"));
}

TEST(AttentionRequest, RejectsInvalidText) {
  for (const char* text : {"", "sofmax", "favor_positive:2", "taylor:9x", "windowed", "windowed:0", "windowed:x",
                           "windowed:8+none", "linformer:4+relu", "hedgehog+centering", "favor_positive+", "linear"}) {
    const std::string message = message_of<UserError>([&] { attention_request(text); });
    EXPECT_THAT(message, HasSubstr("--attention")) << text;
  }
}

TEST(AttentionRequest, ParsesLayersAndHeads) {
  EXPECT_EQ(parse_selection("", 3, "--layers", "layers"), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(parse_selection("0,2-3", 5, "--layers", "layers"), (std::vector<bool>{true, false, true, true, false}));
  for (const char* text : {"5", "-1", "2-1", "a", "1,,2", "0-5", "1-2-3", "1 2"})
    EXPECT_THAT(message_of<UserError>([&] { parse_selection(text, 5, "--layers", "layers"); }), HasSubstr("--layers"))
        << text;
  layers::ModelConfig model;
  model.n_layers = 2;
  model.attention.n_heads = 4;
  EXPECT_EQ(parse_head_selection("1:0,1:2-3", model),
            (std::vector<std::vector<bool>>{{false, false, false, false}, {true, false, true, true}}));
  for (const char* text : {"1", "2:0", "0:4", "0:1:2", ":", "0:"})
    EXPECT_THAT(message_of<UserError>([&] { parse_head_selection(text, model); }), HasSubstr("--heads-keep-softmax"))
        << text;
}

TEST_F(Convert, KeepsWeightsAndListsNewParameters) {
  ConvertOptions options = from(tiny_gpt2());
  options.attention = "hedgehog";
  const ConversionResult result = convert(options);
  ASSERT_EQ(result.tensors.reinitialized.size(), 4U);  // two learned feature maps in each layer
  EXPECT_EQ(result.tensors.reinitialized[0].name, "blocks.0.attention.query_features.weight");
  const SourceModel source = open_source_model(options.source), student = open_source_model(options.destination);
  EXPECT_EQ(student.model.settings.model.attention.mechanism, "linear");
  for (const Parameter& parameter : source.model.store->parameters())
    EXPECT_EQ(parameter.master().to_vector<float>(),
              student.model.store->find(parameter.name()).master().to_vector<float>());
  // At 12 positions softmax costs less; at 65,536 it costs more.
  options.cost_at = 65536;
  const ConversionResult far = convert(options);
  EXPECT_LT(far.flops, far.source_flops / 100);
  const layers::AttentionCost cost =
      layers::mechanism_info("linear").cost(layers::attention_config(student.model.settings.model), options.cost_at);
  EXPECT_GT(cost.maps, 0);
  EXPECT_DOUBLE_EQ(far.flops, 2 * (cost.forward + cost.maps) / 65536) << "two layers";
}

TEST_F(Convert, RejectsInvalidOptions) {
  const auto message = [&](const TinyModel& model, const std::function<void(ConvertOptions&)>& change) {
    ConvertOptions options = from(model);
    change(options);
    return refused(options);
  };
  // Two query heads share each key head of the Llama.
  EXPECT_THAT(message(tiny_llama(), [](auto& o) { o.attention = "elu1", o.heads_keep_softmax = "0:1"; }),
              HasSubstr("share a key and value head"));
  EXPECT_THAT(message(tiny_albert(), [](auto& o) { o.attention = "elu1", o.layers = "0"; }),
              AllOf(HasSubstr("--layers"), HasSubstr("all 3 layers"), HasSubstr("one block")));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.attention = "linformer"; }), HasSubstr("linformer"));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.layers = "0"; }),
              HasSubstr("--layers has no effect without --attention"));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.attention = "softmax", o.features = 8; }),
              HasSubstr("--features 8"));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.attention = "auto"; }),
              AllOf(HasSubstr("--attention auto"), HasSubstr("--data")));
  EXPECT_THAT(
      message(tiny_llama(),
              [&](auto& o) { o.attention = "elu1", o.data = store(), o.overrides = {"model.query_key_norm=rmsnorm"}; }),
      HasSubstr("--data: with another model.query_key_norm the queries and keys differ"));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.fold_scaling = true; }),
              AllOf(HasSubstr("--fold-scaling"), HasSubstr("--data")));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.overrides = {"model.n_layers=1"}; }), HasSubstr("unexpected"));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.overrides = {"model.d_feedforward=24"}; }),
              HasSubstr("6 misshapen"));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.overrides = {"model.attention.n_feature=24"}; }),
              HasSubstr("n_features"));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.overrides = {"model.weights=x.h5"}; }), HasSubstr("model.weights"));
  for (const std::string key :
       {"data.batch_size=3", "optimizer.name=adamw", "trainer.max_steps=3", "objective.name=next_token", "model"})
    EXPECT_THAT(message(tiny_gpt2(), [&](auto& o) { o.overrides = {key}; }),
                AllOf(HasSubstr("--set " + key), HasSubstr("expected a key under model, or seed")));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.max_sequence_length = 4; }),
              AllOf(HasSubstr("--max-sequence-length 4"), HasSubstr("12 learned positions")));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.destination = "/nowhere/at/all.h5"; }),
              HasSubstr("directory /nowhere/at is missing"));
  ConvertOptions options = from(tiny_gpt2());
  options.overwrite = false;
  convert(options);
  EXPECT_THAT(message_of<UserError>([&] { convert(options); }), HasSubstr("--force"));
}

// Settings changed by an option come from no file, so errors must not show a line number.
TEST_F(Convert, ErrorsStartWithTheOption) {
  using ::testing::StartsWith;
  const auto message = [&](const TinyModel& model, const std::function<void(ConvertOptions&)>& change) {
    ConvertOptions options = from(model);
    change(options);
    const std::string found = refused(options);
    EXPECT_THAT(found, Not(::testing::ContainsRegex(":[0-9]+:[0-9]+:|line [0-9]")));
    return found;
  };
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.attention = "favor_positive", o.features = 70'000; }),
              StartsWith("--features 70000: model.attention.n_features: found 70000; expected 0 (2 × d_head"));
  EXPECT_THAT(message(tiny_llama(), [](auto& o) { o.attention = "elu1", o.heads_keep_softmax = "0:1"; }),
              StartsWith("--attention elu1 --heads-keep-softmax 0:1: model.attention.layers: layer 0"));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.attention = "linformer"; }), StartsWith("--attention linformer: "));
  EXPECT_THAT(
      message(tiny_gpt2(), [](auto& o) { o.attention = "elu1", o.overrides = {"model.attention.mechanism=softmax"}; }),
      StartsWith("--attention elu1: model.attention.feature_map has no effect with model.attention.mechanism: softmax "
                 "(--set "));
  EXPECT_THAT(message(tiny_gpt2(), [](auto& o) { o.overrides = {"model.attention.order=2"}; }),
              StartsWith("--set model.attention.order=2: model.attention.order has no effect with"));
  EXPECT_THAT(message(tiny_llama(), [](auto& o) { o.overrides = {"model.n_key_value_heads=3"}; }),
              HasSubstr("--set model.n_key_value_heads=3: "));
}

// null resets a key to its default, and with it the keys that only the removed attention used.
TEST_F(Convert, NullOverrideResetsKeys) {
  ConvertOptions options = from(tiny_llama());
  options.attention = "favor_positive";
  options.overrides = {"model.attention.redraw_every=100"};
  convert(options);
  EXPECT_EQ(settings_of_result().model.attention.redraw_every, 100);
  std::filesystem::rename(path("out.h5"), path("linear.h5"));
  options.source = path("linear.h5");
  options.attention.clear();
  options.overrides = {"model.attention.redraw_every=null"};
  convert(options);
  EXPECT_EQ(settings_of_result().model.attention.redraw_every, 0);
  EXPECT_EQ(settings_of_result().model.attention.feature_map, "favor_positive");
  options.overrides = {"model.attention.mechanism=softmax"};
  convert(options);
  EXPECT_EQ(settings_of_result().model.attention, settings_of_result().model.attention.plain());
}

// Another seed draws another random projection and keeps the source's weights.
TEST_F(Convert, SeedChangesRandomProjectionOnly) {
  ConvertOptions options = from(tiny_llama());
  options.attention = "favor_positive";
  const auto parameter = [&](const char* name) {
    return open_source_model(path("out.h5")).model.store->find(name).master().to_vector<float>();
  };
  convert(options);
  const auto random_projection = parameter("blocks.0.attention.directions"),
             weights = parameter("blocks.0.attention.output.weight");
  options.overrides = {"seed=9"};
  convert(options);
  EXPECT_NE(parameter("blocks.0.attention.directions"), random_projection);
  EXPECT_EQ(parameter("blocks.0.attention.output.weight"), weights);
  EXPECT_EQ(settings_of_result().seed, 9);
}

// From linear attention as from softmax: the model has the projection that its config names.
TEST_F(Convert, DrawsRandomProjectionsAgain) {
  ConvertOptions options = from(tiny_llama());
  const auto projections = [&](const std::string& attention, const std::vector<std::string>& overrides) {
    options.attention = attention;
    options.overrides = overrides;
    const ConversionResult result = convert(options);
    std::vector<float> values;
    for (const char* layer : {"blocks.0.", "blocks.1."}) {
      const std::string name = std::string(layer) + "attention.directions";
      const auto of_layer = open_source_model(path("out.h5")).model.store->find(name).master().to_vector<float>();
      values.insert(values.end(), of_layer.begin(), of_layer.end());
    }
    return std::pair{values, result};
  };
  const auto orthogonal = projections("favor_positive", {}).first;
  std::filesystem::copy(path("out.h5"), path("linear.h5"));
  const std::vector<std::string> iid{"model.attention.random_projection=iid"}, seed{"seed=9"};
  const auto direct_iid = projections("favor_positive", iid).first,
             direct_seed = projections("favor_positive", seed).first;

  options.source = path("linear.h5");
  EXPECT_EQ(projections("", {"model.norm_epsilon=1e-4"}).first, orthogonal) << "nothing of it changes";
  for (const char* attention : {"", "favor_positive"}) {
    const auto [values, result] = projections(attention, iid);
    EXPECT_EQ(values, direct_iid) << attention;
    ASSERT_EQ(result.tensors.reinitialized.size(), 2U);
    EXPECT_EQ(result.tensors.reinitialized[0].note, "drawn again: another random projection");
    for (const TensorReport::Matched& one : result.tensors.matched) EXPECT_FALSE(one.parameter.ends_with("directions"));
  }
  const auto [values, result] = projections("", seed);
  EXPECT_EQ(values, direct_seed);
  ASSERT_EQ(result.tensors.reinitialized.size(), 2U);
  EXPECT_EQ(result.tensors.reinitialized[0].note, "drawn again: another seed");
}

// Training settings of the source must not restrict the converted model, because no option could change them.
TEST_F(Convert, DropsTrainingSettingsOfTheSource) {
  Settings settings;
  settings.model.n_layers = 1;
  settings.model.d_model = 8;
  settings.model.attention.n_heads = 2;
  settings.model.attention.mechanism = "linear";
  settings.model.attention.feature_map = "elu1";
  settings.data.sequence_length = 64;
  settings.data.sampler = "stream";
  settings.data.stateful = true;
  settings.model.weights = path("begun_from.h5");
  const Model trained = make_model(resolve(settings), Vocabulary::bytes(true), Device{}, DType::float32);
  write_model(trained, std::nullopt, path("trained.h5"));
  ConvertOptions options;
  options.source = path("trained.h5");
  options.destination = path("out.h5");
  options.attention = "softmax";
  options.max_sequence_length = 16;
  convert(options);
  EXPECT_FALSE(settings_of_result().data.stateful);
  EXPECT_EQ(settings_of_result().data.sequence_length, 16);
  EXPECT_EQ(settings_of_result().model.weights, "") << "the source came from a stage of furlong finetune";
}

/// Returns the log lines printed by `action`.
std::string log_output_of(const std::function<void()>& action) {
  const LogCapture said;
  action();
  return said.text();
}

// Heads of width 4 need 64 tokens: 88 are enough, 44 are not.
TEST_F(Convert, WarnsOfTooFewTokensForConstants) {
  ConvertOptions options = from(tiny_llama());
  EXPECT_EQ(tokens_for_constants(open_source_model(options.source).model.settings), 64);
  options.attention = "favor_positive+centering";
  options.data = store();
  EXPECT_THAT(log_output_of([&] { convert(options); }), Not(HasSubstr("noisy")));
  options.data->batches = 1;
  EXPECT_THAT(log_output_of([&] { convert(options); }), AllOf(HasSubstr("constants of feature maps are noisy"),
                                                              HasSubstr("44 tokens"), HasSubstr("at least 64 tokens")));
  options.attention = "favor_positive";  // without constants
  EXPECT_THAT(log_output_of([&] { convert(options); }), Not(HasSubstr("noisy")));
  options.attention.clear();
  options.fold_scaling = true;
  EXPECT_THAT(log_output_of([&] { convert(options); }),
              AllOf(HasSubstr("factors to be folded into the weights are noisy"), HasSubstr("44 tokens")));
}

// A batch reaches past the end of the split, and the last window is not full.
TEST_F(Convert, ConstantsDoNotCountPadding) {
  ConvertOptions options = from(tiny_llama());
  options.attention = "oprf+centering+saderf";
  options.data = store();
  options.data->batches = 1000;
  const auto errors = [&](std::int64_t batch_size) {
    options.data->batch_size = batch_size;
    const ConversionResult result = convert(options);
    std::vector<double> found{static_cast<double>(result.data_tokens)};
    for (const HeadApproximation& one : result.approximation) found.push_back(one.error);
    return found;
  };
  const std::vector<double> alone = errors(1), together = errors(500);
  ASSERT_EQ(alone.size(), 9U);
  EXPECT_EQ(alone[0], together[0]);
  for (std::size_t i = 1; i < alone.size(); ++i) EXPECT_NEAR(together[i], alone[i], 1e-4 * alone[i]);
}

TEST_F(Convert, KeepsTheDataThatItReads) {
  ConvertOptions options = from(tiny_llama());
  options.data = store();
  options.destination = options.data->store;
  options.attention = "taylor:2";
  const std::string before = content(options.destination.string());
  EXPECT_THAT(message_of<UserError>([&] { convert(options); }), HasSubstr("both input and output"));
  EXPECT_EQ(content(options.destination.string()), before);
}

TEST_F(Convert, AddedPositionsRepeatLearnedOnes) {
  ConvertOptions options = from(tiny_gpt2());
  options.max_sequence_length = 30;
  const ConversionResult result = convert(options);
  ASSERT_EQ(result.tensors.reinitialized.size(), 1U);
  const std::vector<float> table =
      open_source_model(options.destination).model.store->find("position_embedding.weight").master().to_vector<float>();
  ASSERT_EQ(table.size(), 30U * 8);
  const TinyModel tiny = tiny_gpt2();
  const std::vector<float>& learned = tiny["transformer.wpe.weight"];
  for (std::size_t i = 0; i < table.size(); ++i) EXPECT_EQ(table[i], learned[i % learned.size()]);
}

TEST_F(Convert, MeasuresErrorOfEachHead) {
  ConvertOptions options = from(tiny_llama());
  options.data = store();
  options.attention = "taylor:2";
  options.layers = "1";
  const ConversionResult polynomial = convert(options);
  ASSERT_EQ(polynomial.approximation.size(), 4U);
  EXPECT_EQ(polynomial.data_tokens, 2 * 4 * 11);  // windows; the last target of each is in the next
  for (const HeadApproximation& one : polynomial.approximation) {
    EXPECT_EQ(one.layer, 1);
    EXPECT_GT(one.uniform_error, 0.01);
    EXPECT_LT(one.error, one.uniform_error);
  }
  // The window covers all 11 tokens, so the attention is exact.
  options.attention = "windowed:16";
  options.layers.clear();
  const ConversionResult exact = convert(options);
  ASSERT_EQ(exact.approximation.size(), 8U);
  for (const HeadApproximation& one : exact.approximation) EXPECT_LT(one.error, 1e-5) << one.layer << " " << one.head;
}

// FAVOR++'s constant comes from the data: it is at most 0, and negative for nonzero queries and keys.
TEST_F(Convert, CalibratesConstantsOnData) {
  ConvertOptions options = from(tiny_llama());
  options.attention = "oprf";
  convert(options);
  const auto constants = [&] {
    return open_source_model(path("out.h5")).model.store->find("blocks.1.attention.oprf_a").master().to_vector<float>();
  };
  EXPECT_EQ(constants(), std::vector<float>(4, 0));
  options.data = store();
  convert(options);
  for (const float a : constants()) EXPECT_LT(a, -1e-3F);
}

// The measurements do not use predictions.
TEST_F(Convert, MeasuresModelsWithoutOutputLayer) {
  ConvertOptions options = from(tiny_bert(false));
  options.data = store();
  options.fold_scaling = true;
  options.attention = "oprf";
  const ConversionResult result = convert(options);
  EXPECT_EQ(result.approximation.size(), 4U);
  EXPECT_GT(result.fold->largest_logit, 0.1);
  options.attention = "auto";
  options.target_error = 0.5;
  options.cost_at = 1 << 20;
  EXPECT_TRUE(convert(options).automatic->map);
}

// Rows are padded to the longest of a batch, which depends on the first documents.
TEST_F(Convert, AutoComparesCostsAtTheLengthOfSequences) {
  const std::string texts =
      write_texts(path("texts.h5"), std::vector<std::string>(40, "a short text"), "0.5,0.25,0.25");
  const TokenizedDataset data = TokenizedDataset::open(texts);
  const Settings settings = small_settings(texts, {"model.architecture=encoder", "objective.name=masked_tokens",
                                                   "data.sampler=documents", "data.sequence_length=200"})
                                .settings;
  Trainer(settings, data, Device{}).save(path("encoder.h5"));
  ConvertOptions options;
  options.source = path("encoder.h5");
  options.destination = path("out.h5");
  options.data = ObservedBatches{.store = texts};
  options.attention = "auto";
  options.target_error = 0.5;
  const ConversionResult result = convert(options);
  EXPECT_EQ(result.automatic->length, 200);
  EXPECT_EQ(result.cost_length, 200);
}

TEST_F(Convert, AutoKeepsErrorsWithinTarget) {
  ConvertOptions options = from(tiny_llama());
  options.data = store();
  options.attention = "auto";
  options.target_error = 0.2;
  options.max_features = 64;
  options.cost_at = 1 << 20;  // here linear attention costs less than softmax with any map
  const ConversionResult result = convert(options);
  ASSERT_TRUE(result.automatic);
  ASSERT_EQ(result.automatic->heads.size(), 8U);
  const HeadMechanisms mechanisms = head_mechanisms(settings_of_result().model);
  std::size_t linear = 0;
  for (const HeadChoice& one : result.automatic->heads) {
    EXPECT_EQ(mechanisms[static_cast<std::size_t>(one.layer)][static_cast<std::size_t>(one.head)],
              one.linear ? "linear" : "softmax");
    if (one.linear) {
      EXPECT_LE(one.error, options.target_error);
    }
    if (!one.linear) {
      EXPECT_FALSE(one.why_softmax.empty());
    }
    linear += one.linear;
  }
  EXPECT_GT(linear, 0U) << result.text();
  EXPECT_LT(result.automatic->flops, result.automatic->softmax_flops);
  EXPECT_LE(result.automatic->ideal_flops, result.automatic->flops * (1 + 1e-12));
  EXPECT_NEAR(result.flops, result.automatic->flops, 1e-6 * result.flops);
  // The written model draws its own random projections; maps without random features match the measurement.
  const double slack = result.automatic->map->candidate.is_random() ? 2 : 1.01;
  for (const HeadApproximation& one : result.approximation) {
    if (one.mechanism != "linear") continue;
    EXPECT_LE(one.error, options.target_error * slack) << one.layer << ":" << one.head;
    --linear;
  }
  EXPECT_EQ(linear, 0U) << "heads without a measured error";
}

TEST_F(Convert, AutoCanLimitPolynomialFeatures) {
  ConvertOptions options = from(tiny_llama());
  options.data = store();
  options.attention = "auto";
  options.target_error = 0.6;
  options.max_features = 8;
  options.cost_at = 1 << 20;
  const ConversionResult loose = convert(options);
  ASSERT_TRUE(loose.automatic->map);
  EXPECT_GT(loose.automatic->map->m, 8) << "the test needs a polynomial choice";
  options.limits_polynomials = true;
  const ConversionResult bound = convert(options);
  ASSERT_TRUE(bound.automatic->map) << bound.text();
  EXPECT_LE(bound.automatic->map->m, 8);
  for (const HeadChoice& one : bound.automatic->heads) EXPECT_THAT(one.why_softmax, Not(HasSubstr("random features")));
}

TEST_F(Convert, AutoUsesWindowOfSource) {
  TinyModel mistral = tiny_llama();
  mistral.config["model_type"] = "mistral";
  mistral.config["sliding_window"] = 4;
  ConvertOptions options = from(mistral);
  options.data = store();
  options.attention = "auto";
  options.target_error = 0.9;
  options.cost_at = 128;
  const ConversionResult result = convert(options);
  EXPECT_NEAR(result.automatic->softmax_flops, result.source_flops, 1e-9 * result.source_flops);
  EXPECT_NEAR(result.automatic->flops, result.flops, 1e-9 * result.flops);
  EXPECT_LE(result.flops, result.source_flops);
  EXPECT_EQ(settings_of_result().model.attention.window, 4);
  EXPECT_THAT(result.text(), HasSubstr("costs as much or more at every n")) << "a window bounds the cost of softmax";
  options.overrides = {"model.attention.window=0"};
  EXPECT_THAT(message_of<UserError>([&] { convert(options); }), HasSubstr("with the window of the source; remove it"));
  // The hybrid has no sliding window. Softmax over all 11 tokens is not exact for this source.
  options.overrides.clear();
  options.attention = "windowed:16";
  for (const HeadApproximation& one : convert(options).approximation) EXPECT_GT(one.error, 1e-3);
}

TEST_F(Convert, AutoKeepsSoftmaxIfNoMapReachesTarget) {
  ConvertOptions options = from(tiny_gpt2());
  options.data = store();
  options.attention = "auto";
  options.target_error = 1e-9;
  options.max_features = 32;
  const ConversionResult result = convert(options);
  EXPECT_FALSE(result.automatic->map);
  EXPECT_EQ(settings_of_result().model.attention, settings_of_result().model.attention.plain());
  EXPECT_THAT(result.text(), HasSubstr("softmax in all 4 heads"));
}

TEST_F(Convert, FoldedScalingKeepsLogits) {
  for (const TinyModel& model : {tiny_gpt2(), tiny_llama(), tiny_bert(), tiny_albert()}) {
    ConvertOptions options = from(model);
    options.data = store();
    options.fold_scaling = true;
    const ConversionResult result = convert(options);
    ASSERT_TRUE(result.fold);
    EXPECT_GT(result.fold->largest_scaling, 1.05);  // the model needed scaling
    EXPECT_GT(result.fold->largest_logit, 1);
    EXPECT_LT(result.fold->largest_logit_change, 2e-5 * result.fold->largest_logit);
    // Scaling equalizes the mean squares of each dimension, which minimizes their sum.
    EXPECT_LT(result.fold->query_norm_after * result.fold->key_norm_after,
              1.05 * result.fold->query_norm * result.fold->key_norm);
    EXPECT_FALSE(open_source_model(options.source)
                     .model.store->find("blocks.0.attention.query_key_value.weight")
                     .master()
                     .to_vector<float>() == open_source_model(options.destination)
                                                .model.store->find("blocks.0.attention.query_key_value.weight")
                                                .master()
                                                .to_vector<float>());
  }
}

}  // namespace
}  // namespace furlong
