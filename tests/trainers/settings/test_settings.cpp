#include "trainers/settings/settings.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <string_view>

#include "framework/core/error.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::message_of;

const std::string minimal = "data:\n  dataset: tokens.h5\n";

Settings from(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return from_yaml_text(minimal + text, "text", overrides).settings;
}

std::string slurp(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

// One line of expected.txt: a file, the place that its error starts with ("line:column" in that file, or another one),
// and what the message must name: keys, values, lines. After "=" the whole message.
struct BrokenConfig {
  std::string name, place;
  std::vector<std::string> named;
};

std::vector<BrokenConfig> broken_configs() {
  std::vector<BrokenConfig> configs;
  std::ifstream stream("expected.txt");
  for (std::string line; std::getline(stream, line);) {
    std::vector<std::string> parts;
    std::size_t begin = 0;
    for (std::size_t bar; (bar = line.find(" | ", begin)) != std::string::npos; begin = bar + 3)
      parts.push_back(line.substr(begin, bar - begin));
    parts.push_back(line.substr(begin));
    if (parts.size() < 3) throw std::runtime_error("expected.txt: " + line);
    const bool same_file =
        std::isdigit(static_cast<unsigned char>(parts[1][0])) && parts[1].find('.') == std::string::npos;
    configs.push_back(
        {parts[0] + ".yaml", (same_file ? parts[0] + ".yaml:" : "") + parts[1], {parts.begin() + 2, parts.end()}});
  }
  return configs;
}

TEST(BrokenConfigs, ErrorsNamePlaceKeyAndValue) {
  const fs::path before = fs::current_path();
  fs::current_path(testing::source_directory() / "tests/trainers/settings/broken_configs");
  const auto configs = broken_configs();
  EXPECT_GE(configs.size(), 180u);
  std::set<fs::path> tested;
  for (const BrokenConfig& config : configs) {
    tested.insert(config.name);
    const std::string found = message_of<UserError>([&] { load_settings(config.name); });
    EXPECT_TRUE(found.starts_with(config.place + ": ")) << config.name << ": " << found;
    for (const std::string& name : config.named) {
      if (name.starts_with("= "))
        EXPECT_EQ(found, config.place + ": " + name.substr(2));
      else
        EXPECT_THAT(found, HasSubstr(name)) << config.name;
    }
  }
  for (const auto& entry : fs::directory_iterator(".")) {
    if (entry.path().extension() != ".yaml") continue;
    EXPECT_TRUE(tested.contains(entry.path().filename())) << entry.path() << " is not in expected.txt";
  }
  fs::current_path(before);
}

std::vector<std::string> warnings_of(const std::string& file_text, const std::vector<std::string>& overrides = {}) {
  const fs::path file = fs::path(::testing::TempDir()) / fmt::format("furlong_warnings_{}.yaml", ::getpid());
  std::ofstream(file) << minimal << file_text;
  auto warnings = load_settings(file, overrides).warnings;
  fs::remove(file);
  return warnings;
}

TEST(ShortRuns, ScheduleFitsMaxSteps) {
  struct Case {
    std::string text;
    std::int64_t max_steps, warmup, decay;
  };
  for (const Case& c :
       {Case{"schedule: {warmup_steps: 60}\n", 10, 1, 9}, Case{"schedule: {warmup_steps: 10}\n", 10, 10, 0},
        Case{"schedule: {name: inverse_square_root, warmup_steps: 60}\n", 5, 1, 0},
        Case{"schedule: {name: warmup_stable_decay, decay_steps: 950}\n", 1000, 100, 900},
        Case{"schedule: {decay_steps: 5000}\n", 2000, 100, 1900},
        Case{"schedule: {name: warmup_stable_decay, warmup_steps: 950}\n", 1000, 900, 100}}) {
    const auto warnings = warnings_of(c.text, {"trainer.max_steps=" + std::to_string(c.max_steps)});
    EXPECT_EQ(warnings.size(), c.warmup == 10 ? 0u : 1u) << c.text;
    if (!warnings.empty()) {
      EXPECT_THAT(warnings[0], ::testing::AllOf(HasSubstr("schedule."), HasSubstr(".yaml:3:"),
                                                HasSubstr(fmt::format("trainer.max_steps: {}", c.max_steps))));
    }
    const Settings settings = from(c.text, {"trainer.max_steps=" + std::to_string(c.max_steps)});
    EXPECT_EQ(settings.schedule.warmup_steps, c.warmup) << c.text;
    EXPECT_EQ(settings.schedule.decay_steps, c.decay) << c.text;
  }
  EXPECT_TRUE(warnings_of("", {"trainer.max_steps=10"}).empty()) << "a default adapts silently";
  EXPECT_EQ(from("", {"trainer.max_steps=100"}).schedule.warmup_steps, 10) << "by default every run decays";
  EXPECT_THROW(from("", {"trainer.max_steps=20", "schedule.warmup_steps=50"}), UserError);
}

TEST(ShortRuns, EveryConfigRunsTenSteps) {
  for (const auto& entry : fs::directory_iterator(testing::source_directory() / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    EXPECT_NO_THROW(load_settings(entry.path(), {"trainer.max_steps=10"})) << entry.path();
  }
}

TEST(OverriddenKeys, CommandLineMakesFileKeysIneffective) {
  const std::string text = "model:\n  attention:\n    mechanism: linear\n    feature_map: elu1\n";
  const auto warnings = warnings_of(text, {"model.attention.mechanism=softmax"});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], ::testing::AllOf(HasSubstr(".yaml:6:18: model.attention.feature_map"),
                                            HasSubstr("--set model.attention.mechanism=softmax")));
  EXPECT_THROW(from(text, {"model.attention.mechanism=softmax", "model.attention.chunk_size=32"}), UserError)
      << "both are from the command line";
}

TEST(Adapters, OfRandomWeightsAreWarnedOf) {
  const auto warnings = warnings_of("model:\n  lora_rank: 4\n", {});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], ::testing::AllOf(HasSubstr("model.lora_rank"), HasSubstr("set model.weights")));
  EXPECT_TRUE(warnings_of("model:\n  lora_rank: 4\n  weights: teacher.h5\n", {}).empty());
}

TEST(RunnableConfigs, AreValid) {
  std::vector<fs::path> files;
  std::error_code code;
  for (fs::recursive_directory_iterator it(testing::source_directory() / "configs", code), end; !code && it != end;
       it.increment(code))
    if (it->path().extension() == ".yaml") files.push_back(it->path());
  if (files.empty()) GTEST_SKIP() << "there are no files configs/*.yaml";
  for (const auto& file : files) EXPECT_NO_THROW(load_settings(file)) << file;
}

TEST(Reference, PageInDocsIsCurrent) {
  EXPECT_TRUE(slurp(testing::source_directory() / "docs/config.md") == reference_markdown())
      << "docs/config.md is not what the table of keys says; write it again: furlong config reference > docs/config.md";
}

TEST(Reference, NamesEveryKey) {
  Settings settings;
  const std::string page = reference_markdown();
  const auto schema = json_schema();
  const auto table = settings_table(settings);
  for (const auto& key : table.keys()) {
    EXPECT_THAT(page, HasSubstr("\n### " + key.path() + "\n\n" + key.type()));
    EXPECT_FALSE(key.meaning().empty()) << key.path();
    std::string pointer = "/properties/" + key.path();
    for (auto dot = pointer.find('.'); dot != std::string::npos; dot = pointer.find('.', dot))
      pointer.replace(dot, 1, "/properties/");
    EXPECT_TRUE(schema.contains(nlohmann::ordered_json::json_pointer(pointer))) << key.path();
  }
}

// Whatever bytes a file holds, reading gives settings or one line, never anything else.
TEST(BrokenConfigs, DamagedTextGivesSettingsOrOneLine) {
  Settings base = from(
      "model: {attention: {mechanism: linear, redraw_every: 100}}\ntrainer: {sample_tokens: 9, sample_prompt: \"a: "
      "b\"}\n");
  const std::string whole = to_yaml(base);
  const std::string_view bytes("\t\n :-#[]{}\"'*&!|>%@`,?~.0e\xff\xc3\0", 29);
  std::mt19937 random(1);
  int refused = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    std::string text = whole;
    for (int edit = 0; edit < 1 + trial % 3; ++edit) {
      const std::size_t at = random() % text.size();
      const char byte = bytes[random() % bytes.size()];
      if (random() % 3 == 0)
        text.erase(at, 1 + random() % 20);
      else if (random() % 2)
        text[at] = byte;
      else
        text.insert(at, 1, byte);
    }
    try {
      from_yaml_text(text, "text");
    } catch (const UserError& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      EXPECT_THAT(error.what(), ::testing::StartsWith("text")) << text;
    }
  }
  EXPECT_GT(refused, 300);
}

// Every default must be a value that the key itself accepts, and names of other programs must lead to one key of a
// section only.
TEST(Table, IsConsistent) {
  Settings settings;
  std::set<std::string> seen;
  const auto table = settings_table(settings);
  for (const auto& key : table.keys()) {
    EXPECT_TRUE(key.accepts(key.get())) << key.path();
    for (const auto& name : key.names_elsewhere()) {
      EXPECT_TRUE(seen.insert(key.section() + "." + name).second) << name;
      EXPECT_FALSE(table.find(key.section().empty() ? name : key.section() + "." + name)) << name << " is a key itself";
    }
    for (const auto& condition : key.conditions()) {
      const auto* other = table.find(condition.key);
      ASSERT_TRUE(other) << key.path();
      for (const auto& value : condition.values) EXPECT_TRUE(other->accepts(value)) << key.path() << " " << value;
    }
  }
  EXPECT_NO_THROW(check(Settings()));
}

TEST(Resolve, FillsInWhatFollowsFromOtherKeys) {
  const Settings s =
      from("model: {d_model: 96, n_heads: 6, attention: {mechanism: linear}}\ntrainer: {max_steps: 500}\n");
  EXPECT_EQ(s.model.attention.n_kv_heads, 6);
  EXPECT_EQ(s.model.attention.d_head, 16);
  EXPECT_EQ(s.model.d_feedforward, 384);
  EXPECT_EQ(s.model.max_sequence_length, 1024);
  EXPECT_EQ(s.model.attention.n_features, 32);
  EXPECT_EQ(s.schedule.decay_steps, 400);
  EXPECT_EQ(s.model.vocabulary_size, 0);
  EXPECT_EQ(from("model: {attention: {mechanism: linear, feature_map: elu1}}\n").model.attention.n_features, 32);
  EXPECT_EQ(from("schedule: {name: warmup_stable_decay}\n").schedule.decay_steps, 100);
  EXPECT_EQ(from("schedule: {name: constant}\n").schedule.decay_steps, 0);
  const std::string scaled = "model: {rotary_scaling_factor: 2, max_sequence_length: 4096, rotary_scaling: ";
  EXPECT_EQ(from(scaled + "yarn}\n").model.rotary_scaling.original_length, 4096);
  EXPECT_EQ(from(scaled + "linear}\n").model.rotary_scaling.original_length, 0);
  EXPECT_EQ(resolve(s), s);
}

TEST(RoundTrip, CompleteYamlGivesEqualSettings) {
  const std::vector<std::string> variants = {
      "",
      "model: {attention: {mechanism: linear}}\n",
      "model: {attention: {mechanism: linear, feature_map: elu1}}\n",
      "model: {attention: {mechanism: linear, random_projection: iid, redraw_every: 100, n_features: 256, chunk_size: "
      "128}}\n",
      "model: {position: learned, max_sequence_length: 4096, norm: rmsnorm, bias: false, activation: swiglu, "
      "n_key_value_heads: 2}\n",
      "schedule: {name: warmup_stable_decay, final_fraction: 0}\n",
      "schedule: {name: inverse_square_root}\n",
      "schedule: {name: linear, warmup_steps: 1000}\n",
      "model: {norm_placement: post, embedding_norm: true, n_segments: 2, shared_layers: true, d_embedding: 32, "
      "prediction_head: transform, output_bias: true, position: learned}\n",
      "model: {bias: false, query_key_value_bias: true}\n",
      "model: {architecture: encoder, token_dropout: true}\nobjective: {name: masked_tokens}\n",
      "model: {query_key_norm: rmsnorm, rotary_scaling: llama3, rotary_scaling_factor: 8, rotary_low_frequency_factor: "
      "2, lora_rank: 4}\n",
      "model: {rotary_scaling: yarn, rotary_scaling_factor: 4, rotary_original_length: 100, rotary_beta_fast: 16, "
      "rotary_beta_slow: 2, rotary_attention_factor: 1.2}\n",
      "trainer: {sample_tokens: 9, sample_prompt: \"In the beginning: # \\\"God\\\"\\n\"}\n",
      "device: \"cuda:1\"\nseed: 9223372036854775807\noptimizer: {learning_rate: 0.000123456789012345678}\n"};
  for (const auto& variant : variants) {
    const Settings settings = from(variant);
    for (const bool comments : {false, true}) {
      const std::string text = to_yaml(settings, comments);
      EXPECT_EQ(from_yaml_text(text, "again").settings, settings) << text;
    }
    EXPECT_EQ(from_yaml_text(to_json(settings).dump(), "json").settings, settings) << variant;
  }
}

TEST(RoundTrip, WritesEveryKey) {
  Settings settings = from("");
  const std::string text = to_yaml(settings);
  const auto table = settings_table(settings);
  for (const auto& key : table.keys()) EXPECT_THAT(text, HasSubstr(key.name() + ": ")) << key.path();
}

TEST(Load, NamesTheRunDirectoryAfterTheFile) {
  const fs::path file = fs::path(::testing::TempDir()) / ("furlong_quick." + std::to_string(::getpid()) + ".yaml");
  std::ofstream(file) << minimal;
  EXPECT_EQ(load_settings(file).settings.run_directory, fs::path("runs") / file.stem());
  EXPECT_EQ(load_settings(file, {"run_directory=/tmp/here"}).settings.run_directory, "/tmp/here");
  fs::remove(file);
}

TEST(Check, SettingsMadeInCodeAreCheckedToo) {
  Settings settings;
  settings.model.attention.redraw_every = 5;
  EXPECT_THROW(check(settings), UserError);
  settings.model.attention.mechanism = "linear";
  EXPECT_NO_THROW(check(settings));
  settings.model.attention.n_heads = 3;
  EXPECT_THROW(check(settings), UserError);
}

TEST(Check, OverridesAreNamedInConflicts) {
  EXPECT_EQ(message_of<UserError>([] { from("model: {n_heads: 4}\n", {"model.d_model=130"}); }),
            "--set model.d_model=130: model.d_model: 130 is not a multiple of model.n_heads: 4 (text:3:18); "
            "change one of the two, or set model.d_head");
}

TEST(Check, AllowsWhatLooksOddButIsRight) {
  EXPECT_NO_THROW(from("model: {d_model: 100, n_heads: 3, d_head: 32}\n"));
  EXPECT_NO_THROW(from("model: {d_model: 36, n_heads: 4, position: sinusoidal}\n"));
  EXPECT_NO_THROW(from("model: {attention: {mechanism: linear, feature_map: elu1, n_features: 32}}\n"));
  EXPECT_NO_THROW(from("model: {n_heads: 4, n_key_value_heads: 1}\n"));
  EXPECT_NO_THROW(from("schedule: {warmup_steps: 1000}\n"));
  EXPECT_NO_THROW(from("schedule: {warmup_steps: 0}\n"));
}

TEST(AttentionConfig, TwoWindowsAndTheEpsilonThatEachDefinitionReads) {
  const auto config = [](const std::string& attention) {
    return layers::attention_config(from("model: {n_layers: 2, attention: {" + attention + "}}\n").model);
  };
  const auto mixed = config("layers: [softmax, windowed], softmax_window: 16");
  EXPECT_EQ(mixed.window, 0) << "softmax stays global";
  EXPECT_EQ(mixed.softmax_window, 16);
  EXPECT_EQ(config("layers: [softmax, windowed], softmax_window: 16, window: 64").window, 64);

  EXPECT_EQ(config("mechanism: linear, feature_map: favor_relu").map_options.kernel_epsilon, 1e-3);
  EXPECT_EQ(config("mechanism: linear, feature_map: favor_relu, kernel_epsilon: 0.01").map_options.kernel_epsilon,
            0.01);
}

TEST(RemovedKeys, OfAnOlderCheckpointLoadWhereTheyChangedNothing) {
  const std::string text =
      "model: {attention: {mechanism: linear, kernel_epsilon: 0, compat: none, compat_stabilize: false}}\n";
  EXPECT_EQ(from_checkpoint_text(text, "old").settings,
            from_checkpoint_text("model: {attention: {mechanism: linear}}\n", "new").settings);
}

// It is only a bound.
TEST(CheckpointTexts, OfAnEarlierVersionMayHaveManyPolynomialFeatures) {
  const std::string text =
      "model: {d_model: 16, n_heads: 2, attention: {mechanism: linear, feature_map: taylor, max_features: 1e6}}\n";
  EXPECT_EQ(from_checkpoint_text(text, "c").settings.model.attention.map_options.max_features, 65536);
}

// Conversions would copy their values into other checkpoints.
TEST(CheckpointTexts, EnvironmentVariablesAreNotRead) {
  setenv("FURLONG_TEST_SECRET", "secret", 1);
  const std::string text = "run_directory: /x/${FURLONG_TEST_SECRET}/$$y/$z\ndata: {dataset: ~/a.h5}\n";
  const Settings settings = from_checkpoint_text(text, "c").settings;
  EXPECT_EQ(settings.run_directory, "/x/${FURLONG_TEST_SECRET}/$y/$z");
  EXPECT_EQ(settings.data.dataset, "./~/a.h5");
  EXPECT_EQ(from_checkpoint_text(to_yaml(settings), "c").settings, settings);
  EXPECT_EQ(from_checkpoint_text(text, "c", {"run_directory=/x/${FURLONG_TEST_SECRET}"}).settings.run_directory,
            "/x/secret");
  unsetenv("FURLONG_TEST_SECRET");
}

TEST(Overrides, AKeyWithoutItsSectionIsNamedWhole) {
  const auto hint = [](const std::string& override_text) {
    const std::string message = message_of<UserError>([&] { from("", {override_text}); });
    return message.substr(message.find("; ") + 2);
  };
  EXPECT_EQ(hint("d_model=32"), "did you mean model.d_model?");
  EXPECT_EQ(hint("attention.chunk_size=32"), "did you mean model.attention.chunk_size?");
  EXPECT_EQ(hint("every=32"), "did you mean checkpoint.every or log.every?");
  EXPECT_EQ(hint("lr=1"), "did you mean optimizer.learning_rate?");
  EXPECT_EQ(hint("optimizer.lr=1"), "did you mean optimizer.learning_rate?");
  EXPECT_EQ(hint("trainer.batch_size=1"), "did you mean data.batch_size?");
  EXPECT_EQ(hint("modle.d_modle=1"), "did you mean model.d_model?");
  EXPECT_EQ(hint("model.attention.foo=1").substr(0, 31), "model.attention has mechanism, ");
}

TEST(Overrides, AttentionsHaveOtherNamesInTheLiterature) {
  const auto refusal = [](const std::string& override_text) {
    return message_of<UserError>([&] { from("", {"model.n_layers=2", "model.attention." + override_text}); });
  };
  for (const char* name : {"performer", "Performer", "favor+", "favor"})
    EXPECT_THAT(refusal(std::string("mechanism=") + name),
                ::testing::EndsWith("; did you mean mechanism: linear with feature_map: favor_positive?"));
  EXPECT_THAT(refusal("layers=[softmax, performer]"), ::testing::HasSubstr("feature_map: favor_positive?"));
  EXPECT_THAT(refusal("mechanism=linfromer"), ::testing::EndsWith("; did you mean linformer?"));
}

}  // namespace
}  // namespace furlong
