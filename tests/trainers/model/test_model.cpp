#include "trainers/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "tests/reference/values.h"
#include "tests/temporary_folder.h"
#include "trainers/checkpoint/checkpoint_tensors.h"
#include "trainers/model/weights.h"

namespace furlong {
namespace {

Settings settings_with(const std::string& model, const std::string& rest = "") {
  return from_yaml_text(
             "data: {dataset: tokens.h5, sequence_length: 32}\nmodel: {n_layers: 2, d_model: 16, n_heads: 2, " + model +
                 "}\n" + rest,
             "settings of the test")
      .settings;
}

std::set<std::string> names(const Model& model, bool trained) {
  std::set<std::string> result;
  for (const Parameter& parameter : model.store->parameters()) {
    if (!model.store->is_buffer(parameter) && model.store->is_trained(parameter) == trained)
      result.insert(parameter.name());
  }
  return result;
}

class LoadModel : public testing::WithTemporaryFolder {};

TEST_F(LoadModel, RejectsNonFiniteWeights) {
  const Model model = make_model(resolve(settings_with("tied_embeddings: true")), Vocabulary::protein(), Device{});
  const Parameter& parameter = model.store->parameters().back();
  const std::filesystem::path path = folder_ / "nan.h5";
  parameter.master().data<float>()[5] = std::nanf("");
  {
    CheckpointWriter file(path);
    for (const Parameter& one : model.store->parameters()) write_tensor(file, "parameters/" + one.name(), one.master());
    file.text("config", to_yaml(model.settings));
    file.text("vocabulary", model.vocabulary.to_json());
    file.finish();
  }
  EXPECT_THAT(testing::message_of<UserError>([&] { load_model(CheckpointReader::open(path), Device{}, Weights::raw); }),
              ::testing::HasSubstr(parameter.name() + " has 1 values"));
  Model start = make_empty_model(model.settings, model.vocabulary, Device{});
  EXPECT_THAT(testing::message_of<UserError>([&] { initialize_from(CheckpointReader::open(path), start); }),
              ::testing::HasSubstr(parameter.name() + " has 1 values"));
}

TEST(MakeModel, EveryModelKeyReachesTheNetwork) {
  const std::string encoder =
      "architecture: encoder, position: learned, norm_placement: post, embedding_norm: true, n_segments: 3, ";
  const Settings bert =
      settings_with(encoder + "shared_layers: true, d_embedding: 8, prediction_head: transform, output_bias: true",
                    "objective: {name: masked_tokens}\n");
  const Model model = make_model(bert, Vocabulary::protein(), Device{});
  const std::int64_t size = model.vocabulary.size();
  const auto shape = [&](const std::string& name) { return model.store->find(name).shape(); };
  EXPECT_EQ(shape("token_embedding.weight"), Shape({size, 8}));
  EXPECT_EQ(shape("segment_embedding.weight"), Shape({3, 8}));
  EXPECT_EQ(shape("embedding_norm.gain"), Shape{8});
  EXPECT_EQ(shape("embedding_projection.weight"), Shape({16, 8}));
  EXPECT_EQ(shape("prediction.transform.weight"), Shape({8, 16}));
  EXPECT_EQ(shape("output_bias"), Shape{size});
  EXPECT_FALSE(names(model, true).contains("final_norm.gain"));
  EXPECT_FALSE(names(model, true).contains("blocks.1.attention_norm.gain"));
  EXPECT_TRUE(names(model, false).empty());

  const layers::ModelConfig llama3 =
      settings_with(
          "query_key_norm: rmsnorm, rotary_scaling: llama3, rotary_scaling_factor: 8, "
          "rotary_original_length: 99, rotary_low_frequency_factor: 2, rotary_high_frequency_factor: 5")
          .model;
  EXPECT_EQ(llama3.query_key_norm, layers::QueryKeyNorm::rmsnorm);
  EXPECT_EQ(llama3.rotary_scaling.kind, ops::RotaryScalingKind::llama3);
  EXPECT_EQ(llama3.rotary_scaling.factor, 8);
  EXPECT_EQ(llama3.rotary_scaling.original_length, 99);
  EXPECT_EQ(llama3.rotary_scaling.low_frequency_factor, 2);
  EXPECT_EQ(llama3.rotary_scaling.high_frequency_factor, 5);
  const layers::ModelConfig yarn = settings_with(
                                       "rotary_scaling: yarn, rotary_scaling_factor: 4, rotary_beta_fast: 20, "
                                       "rotary_beta_slow: 2, rotary_attention_factor: 1.5")
                                       .model;
  EXPECT_EQ(yarn.rotary_scaling.kind, ops::RotaryScalingKind::yarn);
  EXPECT_EQ(yarn.rotary_scaling.original_length, 32);  // the longest sequence
  EXPECT_EQ(yarn.rotary_scaling.beta_fast, 20);
  EXPECT_EQ(yarn.rotary_scaling.beta_slow, 2);
  EXPECT_EQ(yarn.rotary_scaling.attention_factor, 1.5);
}

TEST(MakeModel, LoraFreezesAllButAdaptersAndNewHead) {
  const std::string adapters = "lora_rank: 2, attention: {mechanism: linear, feature_map: hedgehog}";
  const Model decoder =
      make_model(settings_with("tied_embeddings: false, " + adapters), Vocabulary::protein(), Device{});
  const auto is_of_adapter = [](const std::string& name) {
    return name.ends_with(".lora_a.weight") || name.ends_with(".lora_b.weight");
  };
  std::size_t adapted = 0;
  for (const std::string& name : names(decoder, true)) {
    EXPECT_TRUE(is_of_adapter(name) || name.ends_with("_features.weight")) << name;
    adapted += is_of_adapter(name);
  }
  EXPECT_EQ(adapted, 2u * 4u * 2u);  // layers, linear maps, factors
  for (const char* name :
       {"token_embedding.weight", "classifier.weight", "final_norm.gain", "blocks.1.attention.query_key_value.weight"})
    EXPECT_TRUE(names(decoder, false).contains(name)) << name;

  const Vocabulary labeled = Vocabulary::protein().with_labels({"one", "two"});
  const Model classifier =
      make_model(settings_with("architecture: encoder, " + adapters, "objective: {name: pair_classification}\n"),
                 labeled, Device{});
  for (const char* name : {"classifier.weight", "classifier.bias", "matching.weight", "matching.bias"})
    EXPECT_TRUE(names(classifier, true).contains(name)) << name;
  EXPECT_TRUE(names(classifier, false).contains("token_embedding.weight"));
}

TEST(MakeModel, FreezesSelectedParameters) {
  const Settings settings = settings_with("dropout: 0");
  const Model plain = make_model(settings, Vocabulary::protein(), Device{});
  const Model frozen =
      make_model(settings, Vocabulary::protein(), Device{}, std::nullopt,
                 [](const Parameter& parameter) { return parameter.name().find(".attention.") == std::string::npos; });
  EXPECT_EQ(
      names(frozen, true),
      (std::set<std::string>{"blocks.0.attention.query_key_value.weight", "blocks.0.attention.query_key_value.bias",
                             "blocks.0.attention.output.weight", "blocks.0.attention.output.bias",
                             "blocks.1.attention.query_key_value.weight", "blocks.1.attention.query_key_value.bias",
                             "blocks.1.attention.output.weight", "blocks.1.attention.output.bias"}));
  for (const Parameter& parameter : frozen.store->parameters())
    EXPECT_EQ(reference::doubles(parameter.master()), reference::doubles(plain.store->find(parameter.name()).master()))
        << parameter.name();
  const Model used =
      make_model(settings, Vocabulary::protein(), Device{}, std::nullopt, [](const Parameter&) { return true; });
  EXPECT_EQ(used.store->gradients().elements(), 0);
  EXPECT_EQ(used.store->total_parameter_count(), plain.store->trained_parameter_count());
}

}  // namespace
}  // namespace furlong
