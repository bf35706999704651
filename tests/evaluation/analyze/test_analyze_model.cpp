// furlong analyze attention on models, files and the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "evaluation/analyze/analyze_model.h"
#include "evaluation/analyze/analyze_sweep.h"
#include "framework/io/atomic_file.h"
#include "framework/io/hdf5.h"
#include "tests/cli/program.h"
#include "tests/trainers/training.h"
#include "trainers/train/train.h"

namespace furlong {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Program;
using testing::small_settings;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

class AnalyzeModelTest : public testing::WithTemporaryFolder {
 protected:
  /// A run with two layers and two heads of width 8, and weights large enough for attention that is not uniform.
  std::string trained(const std::vector<std::string>& overrides) const {
    const std::string store = testing::write_store(path("store.h5"), testing::synthetic_text(4000));
    std::vector<std::string> all{"run_directory=" + path("run"), "trainer.max_steps=2", "schedule.warmup_steps=1",
                                 "checkpoint.every=2", "model.initializer_range=0.3"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    train(small_settings(store, all), {});
    return path("run");
  }
  static std::vector<LayerAnalysis> analyzed(const ModelAnalysisOptions& options, ModelAnalysis* about = nullptr) {
    std::vector<LayerAnalysis> layers;
    analyze_model(
        options,
        [&](const ModelAnalysis& analysis) {
          if (about) *about = analysis;
        },
        [&](const LayerAnalysis& layer) { layers.push_back(layer); });
    return layers;
  }
  static ModelAnalysisOptions options_for(const std::string& run) {
    ModelAnalysisOptions options;
    options.run = run;
    options.features = {16};
    options.batches = 2;
    options.batch_size = 2;
    return options;
  }
  Finished furlong(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"analyze", "attention"});
    return Program(folder_, arguments).wait();
  }
};

TEST_F(AnalyzeModelTest, ComparesSoftmaxWithFavor) {
  const std::string run = trained({"model.attention.mechanism=softmax"});
  ModelAnalysis about;
  const std::vector<LayerAnalysis> layers = analyzed(options_for(run), &about);
  EXPECT_EQ(about.sequence_length, 32);
  EXPECT_EQ(about.tokens, 4 * 32);
  EXPECT_TRUE(about.causal);
  EXPECT_EQ(about.data_changed, false);
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[1].layer, "blocks.1.attention");
  for (const LayerAnalysis& layer : layers) {
    EXPECT_EQ(layer.d, 8);
    EXPECT_EQ(layer.n, 32);
    ASSERT_EQ(layer.heads.size(), 2u);
    for (const HeadAnalysis& head : layer.heads) {
      EXPECT_GT(head.query_norm.mean, 0.1);
      EXPECT_GE(head.key_norm.largest, head.key_norm.mean);
      EXPECT_GT(head.uniform_error, 1e-3);
      ASSERT_EQ(head.attentions.size(), 2u);
      const HeadAttention &own = head.attentions[0], &favor = head.attentions[1];
      EXPECT_TRUE(own.own);
      EXPECT_EQ(own.name, "softmax");
      EXPECT_LT(own.error, 1e-5) << "float32 against float64";
      EXPECT_LT(*own.total_variation_to_softmax, 1e-5);
      EXPECT_GT(*own.total_variation_to_uniform, 1e-3);
      EXPECT_EQ(favor.name, "favor_positive");
      EXPECT_EQ(favor.random_projection, "orthogonal");
      EXPECT_EQ(favor.m, 16);
      EXPECT_GT(favor.error, 1e-3);
      EXPECT_GT(*favor.total_variation_to_softmax, 1e-3);
    }
  }
}

// Compares the model's features, in float32 and with its random projection, with the same map in float64 and with
// another projection.
TEST_F(AnalyzeModelTest, MeasuresLinearLayersUnchanged) {
  const std::string run =
      trained({"model.attention.mechanism=linear", "model.attention.feature_map=taylor", "model.attention.order=2"});
  ModelAnalysisOptions options = options_for(run);
  options.candidates = {attention_candidate("taylor:2"), attention_candidate("favor_positive")};
  options.advise = options.find_features = true;
  options.advice.target_error = 0.2;
  options.advice.max_features = 128;
  for (const LayerAnalysis& layer : analyzed(options)) {
    for (const HeadAnalysis& head : layer.heads) {
      ASSERT_EQ(head.attentions.size(), 3u);
      const HeadAttention &own = head.attentions[0], &same = head.attentions[1], &favor = head.attentions[2];
      EXPECT_EQ(own.name, "linear taylor:2");
      EXPECT_EQ(own.m, 45);
      EXPECT_NEAR(own.error, same.error, 1e-4 + 1e-3 * same.error) << "one definition, two precisions";
      EXPECT_NEAR(*own.total_variation_to_softmax, *same.total_variation_to_softmax, 1e-4);
      EXPECT_FALSE(own.required) << "its features are no random ones";
      ASSERT_TRUE(favor.required);
      if (favor.required->m) {
        EXPECT_LE(favor.required->error, 0.2);
      }
      ASSERT_TRUE(head.advice);
    }
  }
}

TEST_F(AnalyzeModelTest, SupportsMixedHeadsEncodersAndCheckpointing) {
  const std::string run =
      trained({"model.attention.heads=[softmax, linear]", "model.attention.feature_map=favor_positive",
               "model.attention.n_features=12", "trainer.activation_checkpointing=blocks"});
  const std::vector<LayerAnalysis> mixed = analyzed(options_for(run));
  ASSERT_EQ(mixed.size(), 2u);
  EXPECT_LT(mixed[0].heads[0].attentions[0].error, 1e-5);
  EXPECT_EQ(mixed[0].heads[0].attentions[0].name, "softmax");
  EXPECT_GT(mixed[0].heads[1].attentions[0].error, 1e-3);
  EXPECT_EQ(mixed[0].heads[1].attentions[0].name, "linear favor_positive");
  EXPECT_EQ(mixed[0].heads[1].attentions[0].m, 12);

  std::filesystem::remove_all(run);
  trained({"model.architecture=encoder", "objective.name=masked_tokens", "model.attention.mechanism=softmax"});
  ModelAnalysis about;
  const std::vector<LayerAnalysis> encoder = analyzed(options_for(run), &about);
  EXPECT_FALSE(about.causal);
  EXPECT_LT(encoder[1].heads[1].attentions[0].error, 1e-5) << "bidirectional, as the model is";
}

// Softmax in its own window is exact; a linear layer and the same candidate have one definition.
TEST_F(AnalyzeModelTest, SlidingWindowAppliesToReferenceAndCandidates) {
  for (const bool causal : {true, false}) {
    std::vector<std::string> windowed{"model.attention.window=4"};
    if (!causal) windowed.insert(windowed.end(), {"model.architecture=encoder", "objective.name=masked_tokens"});
    const auto with = [&](std::vector<std::string> more) {
      std::filesystem::remove_all(path("run"));
      more.insert(more.end(), windowed.begin(), windowed.end());
      return trained(more);
    };
    ModelAnalysisOptions options = options_for(with({"model.attention.mechanism=softmax"}));
    options.advise = true;
    options.advice.max_features = 64;
    for (const LayerAnalysis& layer : analyzed(options)) {
      for (const HeadAnalysis& head : layer.heads) {
        const HeadAttention& own = head.attentions[0];
        EXPECT_EQ(own.name, "softmax, window 4");
        EXPECT_LT(own.error, 1e-5) << causal;
        EXPECT_LT(*own.total_variation_to_softmax, 1e-5) << causal;
        EXPECT_GT(head.uniform_error, 1e-3);
        ASSERT_EQ(head.attentions.size(), 2u) << "compared with favor_positive by default";
        EXPECT_DOUBLE_EQ(head.advice->softmax_flops_per_token, softmax_flops_per_token(8, 32, causal, 4));
      }
    }
    options.run = with({"model.attention.mechanism=linear", "model.attention.feature_map=taylor"});
    options.candidates = {attention_candidate("taylor:2")};
    for (const LayerAnalysis& layer : analyzed(options)) {
      for (const HeadAnalysis& head : layer.heads) {
        const HeadAttention &own = head.attentions[0], &same = head.attentions[1];
        EXPECT_NEAR(own.error, same.error, 1e-4 + 1e-3 * same.error) << causal;
        EXPECT_NEAR(*own.total_variation_to_softmax, *same.total_variation_to_softmax, 1e-4) << causal;
      }
    }
    // A hybrid layer has no sliding window. Its softmax window covers all 32 tokens, so it is exact softmax.
    options.run = with({"model.attention.layers=[softmax, windowed]", "model.attention.softmax_window=32"});
    for (const LayerAnalysis& layer : analyzed(options))
      for (const HeadAnalysis& head : layer.heads) EXPECT_LT(head.attentions[0].error, 1e-4) << layer.layer << causal;
  }
}

TEST_F(AnalyzeModelTest, RejectsInvalidOptions) {
  const std::string run = trained({"model.attention.mechanism=softmax", "model.position=learned"});
  const auto refused = [&](const std::function<void(ModelAnalysisOptions&)>& change) {
    ModelAnalysisOptions options = options_for(run);
    change(options);
    return message_of<UserError>([&] { analyzed(options); });
  };
  EXPECT_THAT(refused([](auto& options) { options.sequence_length = 33; }),
              HasSubstr("--sequence-length 33: the model has 32 learned positions"));
  EXPECT_THAT(refused([](auto& options) { options.run = "/nowhere"; }),
              HasSubstr("/nowhere: does not exist; expected a run directory"));
  EXPECT_THAT(refused([](auto& options) {
                options.candidates = {attention_candidate("taylor:3")};
                options.candidates[0].map_options.max_features = 100;
              }),
              HasSubstr("165 features"));
}

std::string write_qkv(const std::string& place) {
  AtomicFile file(place);
  hdf5::File out = hdf5::File::create(file);
  for (const char* name : {"query", "key", "value"}) {
    std::vector<float> values(2 * 40 * 8);
    // The second head's queries and keys are five times the first's.
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(random_normal({1, 0, random_stream(name)}, i) * (name[0] == 'v' ? 1.0
                                                                                      : i < 320      ? 0.3
                                                                                                     : 1.5));
    out.write(name, hdf5::Type::f32, {1, 2, 40, 8}, values.data());
  }
  out.close();
  file.commit();
  return place;
}

TEST_F(AnalyzeModelTest, AnalyzesGivenTensorsPerHead) {
  SweepOptions options;
  options.input = write_qkv(path("qkv.h5"));
  options.norm_scales = {0.5, 1};
  options.features = {16, 256};
  options.candidates = {attention_candidate("favor_positive"), attention_candidate("taylor:1")};
  options.kernel_draws = 4;
  std::vector<SweepSetting> settings;
  sweep_attention(options, [&](const SweepSetting& setting) { settings.push_back(setting); });
  ASSERT_EQ(settings.size(), 2u);
  EXPECT_NEAR(settings[1].query_norm / settings[0].query_norm, 2, 1e-9);
  for (const SweepSetting& setting : settings) {
    ASSERT_EQ(setting.results.size(), 3u) << "two m of favor_positive; taylor has one";
    for (const SweepResult& result : setting.results) {
      ASSERT_EQ(result.error_of_heads.size(), 2u);
      EXPECT_LT(result.error_of_heads[0], result.error_of_heads[1]) << "smaller norms, smaller error";
      EXPECT_NEAR(result.error, (result.error_of_heads[0] + result.error_of_heads[1]) / 2, 1e-12);
      ASSERT_TRUE(result.kernel);
    }
    EXPECT_LT(setting.results[1].error, setting.results[0].error) << "more features, less error";
    EXPECT_EQ(setting.results[2].m, 9);
  }
  EXPECT_LT(settings[0].results[2].error, settings[1].results[2].error);
}

TEST_F(AnalyzeModelTest, SearchLimitBoundsThePolynomialsOfAdvice) {
  const auto advice = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"--std",          "0.5", "--lengths", "128", "--head-dim", "64",
                                 "--target-error", "0.3", "--advise"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished done = furlong(all);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out.substr(done.out.find("advice: "));
  };
  EXPECT_THAT(advice({}), StartsWith("advice: taylor:1, m = 65"));
  EXPECT_THAT(advice({"--search-limit", "16"}), Not(StartsWith("advice: taylor")));
}

TEST_F(AnalyzeModelTest, CommandPrintsTableAndWritesJsonAndPlot) {
  const Finished done = furlong({"--std",
                                 "0.3,0.6",
                                 "--lengths",
                                 "64",
                                 "--head-dim",
                                 "8",
                                 "--features",
                                 "16",
                                 "--feature-maps",
                                 "favor_positive,taylor:1,elu1",
                                 "--random-projection",
                                 "iid,orthogonal",
                                 "--draws",
                                 "3",
                                 "--target-error",
                                 "0.2",
                                 "--search-limit",
                                 "64",
                                 "--advise",
                                 "--cost-at",
                                 "4096",
                                 "--json-file",
                                 path("out.json"),
                                 "--plot",
                                 path("out.svg")});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(StartsWith("Gaussian queries, keys and values, bidirectional; errors relative to exact "
                                         "softmax, medians over 3 draws"),
                              HasSubstr("n 64, d 8, entries of q and k with standard deviation 0.3"),
                              HasSubstr("\n  uniform "), HasSubstr("favor_positive                 iid "),
                              HasSubstr("m for error 0.2"), HasSubstr("advice: ")));
  const Json report = Json::parse(content(path("out.json")));
  ASSERT_EQ(report["settings"].size(), 2u);
  const Json& setting = report["settings"][0];
  EXPECT_EQ(setting["std"], 0.3);
  ASSERT_EQ(setting["attention"].size(), 4u);
  EXPECT_EQ(setting["attention"][1]["random_projection"], "orthogonal");
  EXPECT_TRUE(setting["attention"][0]["kernel_relative_variance"].is_number());
  EXPECT_TRUE(setting["attention"][3]["kernel_relative_variance"].is_null()) << "elu1 estimates no softmax";
  EXPECT_EQ(setting["advice"][0]["n"], 4096);
  EXPECT_EQ(report["target_error"], 0.2);
  EXPECT_THAT(content(path("out.svg")), AllOf(StartsWith("<svg "), HasSubstr(">uniform<"),
                                              HasSubstr(">favor_positive iid<"), HasSubstr(">0.6<")));
}

TEST_F(AnalyzeModelTest, CommandAnalyzesRun) {
  const std::string run = trained({"model.attention.mechanism=softmax"});
  const Finished done =
      furlong({run, "--features", "8,16", "--json-file", path("out.json"), "--plot", path("out.svg")});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("best.h5 (step 2) on the validation split of "),
                              HasSubstr("blocks.0.attention (d 8, n 32)"), HasSubstr("head 1: |q| "),
                              HasSubstr("model: softmax")));
  const Json report = Json::parse(content(path("out.json")));
  EXPECT_EQ(report["layers"].size(), 2u);
  EXPECT_EQ(report["layers"][0]["heads"][1]["attention"].size(), 3u);
  EXPECT_EQ(report["layers"][0]["heads"][1]["attention"][2]["m"], 16);
  EXPECT_THAT(content(path("out.svg")), AllOf(HasSubstr(">model: softmax<"), HasSubstr(">1.1<")));
}

TEST_F(AnalyzeModelTest, RejectsCandidateOptionsWithoutCandidates) {
  const std::string run = trained({"model.attention.mechanism=linear", "model.attention.feature_map=elu1"});
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--features", "8"}, {"--random-projection", "iid"}, {"--draws", "2"}}) {
    std::vector<std::string> all{run};
    all.insert(all.end(), more.begin(), more.end());
    const Finished found = furlong(all);
    EXPECT_EQ(found.status, 2);
    EXPECT_EQ(found.out, "");
    EXPECT_THAT(found.err, HasSubstr(more[0] + " has no effect"));
    all.insert(all.end(), {"--feature-maps", "favor_positive"});
    EXPECT_EQ(furlong(all).status, 0) << more[0];
  }
}

TEST_F(AnalyzeModelTest, RejectsOptionsOfRandomFeaturesWithoutThem) {
  const std::string run = trained({"model.attention.mechanism=softmax"}), input = write_qkv(path("qkv.h5"));
  const auto status = [&](std::vector<std::string> source, const std::string& option, const std::string& value,
                          const std::string& maps) {
    source.insert(source.end(), {"--feature-maps", maps, option, value});
    const Finished found = furlong(source);
    if (found.status != 0) {
      EXPECT_THAT(found.err, HasSubstr(option + " applies only to --feature-maps favor_positive"));
    }
    return found.status;
  };
  const std::vector<std::string> of_run{run}, from_file{"--input", input},
      gaussian{"--lengths", "16", "--head-dim", "4", "--std", "1"};
  for (const std::vector<std::string>& source : {of_run, from_file, gaussian}) {
    for (const std::string option : {"--features", "--random-projection"}) {
      const std::string value = option == "--features" ? "8" : "iid";
      EXPECT_EQ(status(source, option, value, "elu1,taylor:1"), 2) << option;
      EXPECT_EQ(status(source, option, value, "elu1,favor_positive"), 0) << option;
    }
    EXPECT_EQ(status(source, "--draws", "2", "elu1"), source == gaussian ? 0 : 2) << "Gaussian queries are drawn";
  }
}

// Padding at a document's end, and empty rows after the split's last row, do not affect the results.
TEST_F(AnalyzeModelTest, IgnoresPadding) {
  const std::string run = trained({"model.attention.mechanism=linear", "model.attention.feature_map=elu1"});
  ModelAnalysisOptions options = options_for(run);
  options.batches = 1000;
  options.batch_size = 1;
  const std::vector<LayerAnalysis> one = analyzed(options);
  options.batches = 1;
  options.batch_size = 64;  // more than the split has
  const std::vector<LayerAnalysis> padded = analyzed(options);
  for (std::size_t layer = 0; layer < one.size(); ++layer) {
    for (std::size_t head = 0; head < 2; ++head) {
      const HeadAnalysis &a = one[layer].heads[head], &b = padded[layer].heads[head];
      EXPECT_NEAR(a.uniform_error / b.uniform_error, 1, 1e-5);
      EXPECT_NEAR(a.attentions[0].error / b.attentions[0].error, 1, 1e-5);
      EXPECT_NEAR(a.query_norm.mean / b.query_norm.mean, 1, 1e-5);
      EXPECT_NEAR(a.key_norm.mean / b.key_norm.mean, 1, 1e-5);
    }
  }
}

TEST_F(AnalyzeModelTest, SignedWeightsHaveNoTotalVariation) {
  const std::string run = trained({"model.architecture=encoder", "objective.name=masked_tokens",
                                   "model.attention.mechanism=linformer", "model.attention.projected_length=8"});
  ModelAnalysisOptions options = options_for(run);
  options.candidates = {attention_candidate("taylor:1"), attention_candidate("taylor:2")};
  for (const LayerAnalysis& layer : analyzed(options)) {
    for (const HeadAnalysis& head : layer.heads) {
      EXPECT_FALSE(head.attentions[0].total_variation_to_softmax) << head.attentions[0].name;
      EXPECT_FALSE(head.attentions[1].total_variation_to_uniform) << "taylor:1";
      EXPECT_TRUE(head.attentions[2].total_variation_to_softmax) << "taylor:2";
    }
  }
}

TEST_F(AnalyzeModelTest, CommandRejectsIncompatibleOptions) {
  const std::string input = write_qkv(path("qkv.h5"));
  const auto refused = [&](const std::vector<std::string>& arguments) {
    const Finished found = furlong(arguments);
    EXPECT_EQ(found.status, 2);
    EXPECT_EQ(found.out, "");
    EXPECT_EQ(std::count(found.err.begin(), found.err.end(), '\n'), 1) << found.err;
    return found.err;
  };
  EXPECT_THAT(refused({"--input", input, "--lengths", "64"}),
              HasSubstr("--lengths applies only to Gaussian queries and keys"));
  EXPECT_THAT(refused({path("run"), "--input", input}), HasSubstr("remove one of the two"));
  EXPECT_THAT(refused({path("run"), "--causal"}), HasSubstr("--causal applies only to queries and keys without RUN"));
  EXPECT_THAT(refused({"--split", "test"}), HasSubstr("--split applies only to RUN|CHECKPOINT"));
  EXPECT_THAT(refused({"--advise"}), HasSubstr("add --target-error E"));
  EXPECT_THAT(refused({"--search-limit", "9"}), HasSubstr("--search-limit applies only to --target-error"));
  EXPECT_THAT(refused({"--cost-at", "9"}), HasSubstr("--cost-at applies only to --advise"));
  EXPECT_THAT(refused({"--feature-maps", "favour_positive"}), HasSubstr("did you mean favor_positive?"));
  EXPECT_THAT(refused({"--feature-maps", "favor_trig", "--features", "9"}), HasSubstr("--features 9: "));
  EXPECT_THAT(refused({"--feature-maps", "taylor:9", "--head-dim", "8"}), HasSubstr("--feature-maps taylor:9: "));
  EXPECT_THAT(refused({"--feature-maps", "taylor,taylor:2"}), HasSubstr("taylor:2 is listed twice"));
  EXPECT_THAT(refused({"--features", "8,16,8"}), HasSubstr("--features 8,16,8: 8 is listed twice"));
  EXPECT_THAT(refused({"--plot", path("out.png")}), HasSubstr("expected a file name that ends in .svg"));
  EXPECT_THAT(refused({"--json-file", path("no/such/out.json")}), HasSubstr("no/such"));
  EXPECT_THAT(refused({path("run")}), HasSubstr("run: does not exist; expected a run directory"));
}

}  // namespace
}  // namespace furlong
