#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "framework/core/error.h"
#include "tests/trainers/training.h"
#include "trainers/settings/settings.h"

namespace furlong {
namespace {

using ::testing::HasSubstr;

class ConfigCommand : public testing::WithTemporaryFolder {
 protected:
  // Standard output of `furlong config ...`; the arguments in the order of a command line.
  std::string run(std::vector<std::string> arguments) {
    const command_line::Program program("furlong", "test");
    int status = 0;
    command_line::add_config(program, status);
    arguments.insert(arguments.begin(), "config");
    ::testing::internal::CaptureStdout();
    try {
      program.run(arguments);
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
    std::fflush(stdout);
    return ::testing::internal::GetCapturedStdout();
  }

  const std::string file_ = file("config.yaml", "data:\n  dataset: no_such_store.h5\n");
};

TEST_F(ConfigCommand, ShowsChangedKeysAlone) {
  EXPECT_EQ(
      run({"show", file_, "--changed", "--set", "trainer.max_steps=7", "--set", "model.attention.mechanism=linear"}),
      "model:\n  attention:\n    mechanism: linear\ndata:\n  dataset: no_such_store.h5\ntrainer:\n  max_steps: 7\n");
}

// The model of furlong finetune is that of its source, which config show does not read.
TEST_F(ConfigCommand, ShowsNoDefaultsOfAModelThatComesFromASource) {
  std::ofstream(file_) << "data:\n  dataset: x.h5\nmodel:\n  attention:\n    mechanism: linear\nfinetune:\n"
                          "  source: models/bert\n  stages: [task]\n";
  const std::string yaml = run({"show", file_});
  EXPECT_THAT(yaml, ::testing::StartsWith("# Settings of furlong finetune. Missing keys of model, and a missing "
                                          "objective.name, come from finetune.source.\n"));
  EXPECT_THAT(yaml, HasSubstr("    mechanism: linear\n"));
  EXPECT_THAT(yaml, HasSubstr("    n_features: 0\n")) << "derived from the width of the source's heads";
  for (const char* key : {"n_layers", "d_model", "position", " window", "name: next_token"})
    EXPECT_THAT(yaml, ::testing::Not(HasSubstr(std::string(key)))) << key;
  EXPECT_THAT(yaml, HasSubstr("  learning_rate: "));
  EXPECT_THAT(yaml, HasSubstr("  stages: [task]\n"));
  EXPECT_EQ(from_yaml_text(yaml, "shown").settings, load_settings(file_, {}).settings);
  const auto json = nlohmann::ordered_json::parse(run({"show", file_, "--json"}));
  EXPECT_EQ(json["model"]["attention"]["mechanism"], "linear");
  EXPECT_FALSE(json["model"].contains("d_model"));
  std::ofstream(file_, std::ios::app) << "  student: student.h5\n";
  EXPECT_EQ(nlohmann::ordered_json::parse(run({"show", file_, "--json"}))["model"]["attention"].dump(),
            R"({"mechanism":"linear"})");
  EXPECT_TRUE(json["optimizer"].contains("learning_rate"));
}

TEST_F(ConfigCommand, ShowsChangedKeysAsSet) {
  std::ofstream(file_) << "data:\n  dataset: x.h5\nmodel:\n  d_feedforward: 0\nschedule:\n  warmup_steps: 60\n";
  EXPECT_THAT(run({"show", file_, "--changed", "--set", "trainer.max_steps=20"}),  // after a warning
              ::testing::EndsWith("model:\n  d_feedforward: 0\ndata:\n  dataset: x.h5\nschedule:\n  "
                                  "warmup_steps: 60\ntrainer:\n  max_steps: 20\n"))
      << "neither the adapted warm-up nor the derived width";
  EXPECT_THAT(run({"show", file_, "--set", "trainer.max_steps=20"}), HasSubstr("  warmup_steps: 2\n"));
}

TEST_F(ConfigCommand, ShownConfigLoadsToSameSettings) {
  const Settings expected = load_settings(file_, {"seed=3", "data.ignore_tokens=[N, X]"}).settings;
  const std::string yaml = run({"show", file_, "--set", "seed=3", "--set", "data.ignore_tokens=[N, X]"});
  EXPECT_EQ(from_yaml_text(yaml, "shown").settings, expected);
  EXPECT_EQ(
      from_yaml_text(run({"show", "--set", "seed=3", "--set=data.ignore_tokens=[N, X]", file_, "--comments"}), "shown")
          .settings,
      expected);
  EXPECT_EQ(
      from_yaml_text(run({"show", file_, "--json", "--set", "seed=3", "--set", "data.ignore_tokens=[N, X]"}), "shown")
          .settings,
      expected);
}

TEST_F(ConfigCommand, CheckReportsValidity) {
  const std::string text = run({"check", file_});
  EXPECT_THAT(text, HasSubstr(": valid; 1 key set, 1 file read\n"));
  EXPECT_THAT(text, HasSubstr("no_such_store.h5 does not exist yet"));
  const auto json = nlohmann::json::parse(run({"check", file_, "--json"}));
  EXPECT_EQ(json["valid"], true);
  EXPECT_EQ(json["dataset_exists"], false);
  EXPECT_THROW(run({"check", file_, "--set", "model.n_layer=3"}), UserError);
  EXPECT_THROW(run({"check"}), UserError);
}

TEST_F(ConfigCommand, CheckComparesWithExistingDataset) {
  const std::string store = path("store.h5");
  testing::write_store(store, testing::synthetic_text(4000));
  std::ofstream(file_) << "data:\n  dataset: " << store << "\n  sequence_length: 32\n  ignore_tokens: [a, Nope]\n";
  const auto message = [&](const std::string& override_text) {
    return testing::message_of<UserError>([&] { run({"check", file_, "--set", override_text}); });
  };
  EXPECT_THAT(message("seed=1"), HasSubstr(file_ + ":4:18: data.ignore_tokens: 'Nope' is not a symbol"));
  std::ofstream(file_) << "data:\n  dataset: " << store << "\n  sequence_length: 32\n";
  EXPECT_EQ(nlohmann::json::parse(run({"check", file_, "--json"}))["dataset_exists"], true);
  EXPECT_THAT(message("model.vocabulary_size=100"),
              HasSubstr("--set model.vocabulary_size=100: model.vocabulary_size: 100 is too small"));
  EXPECT_THAT(message("data.sequence_length=100000"),
              HasSubstr("--set data.sequence_length=100000: data.sequence_length: " + store));
  std::ofstream(store) << "no store";
  EXPECT_THAT(message("seed=1"), HasSubstr(":2:12: data.dataset: " + store));
}

TEST_F(ConfigCommand, PrintsSchemaAndReference) {
  EXPECT_EQ(nlohmann::ordered_json::parse(run({"schema"})), json_schema());
  EXPECT_EQ(run({"reference"}), reference_markdown());
}

}  // namespace
}  // namespace furlong
