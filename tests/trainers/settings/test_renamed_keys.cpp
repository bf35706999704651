#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "framework/config/reader.h"
#include "framework/core/error.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"
#include "trainers/settings/settings.h"

namespace furlong {
namespace {

// A value for a key of the table that it can have, not its default.
std::string some_value(const config::Key& key) {
  if (key.holds<bool>()) return std::get<bool>(key.get()) ? "false" : "true";
  if (!key.choices().empty()) return key.choices().back();
  if (key.holds<std::vector<std::string>>()) return "[1024, 4096]";
  if (key.is_number()) return key.highest() <= 1 ? "0.25" : "3";
  return "some.h5";
}

struct Read {
  Settings settings;
  config::Reading reading;
};

Read read_override(const std::string& path, const std::string& value) {
  Read read;
  read.reading = config::read_settings_text(settings_table(read.settings, false), "", "x",
                                            {path + "=" + value, "teacher.checkpoint=t.h5"});
  return read;
}

TEST(RenamedKeys, EachReadsAsItsPresentName) {
  Settings defaults;
  const auto table = settings_table(defaults, false);
  ASSERT_GE(table.renamings().size(), 20u);
  for (const config::Renaming& renaming : table.renamings()) {
    const config::Key& key = *table.find(renaming.path);
    auto values = renaming.values;
    if (values.empty()) values = {{some_value(key), some_value(key)}};
    for (auto& [old_value, value] : values) {
      if (key.holds<std::vector<std::string>>() && old_value[0] != '[') {
        old_value = "[" + old_value + "]";
        value = "[" + value + "]";
      }
      const Read old = read_override(renaming.old_path, old_value), now = read_override(renaming.path, value);
      EXPECT_EQ(old.settings, now.settings) << renaming.old_path << "=" << old_value;
      ASSERT_EQ(old.reading.renamed.size(), 1u) << renaming.old_path << "=" << old_value;
      EXPECT_THAT(old.reading.renamed[0], ::testing::HasSubstr(renaming.path)) << renaming.old_path;
      EXPECT_TRUE(now.reading.renamed.empty()) << renaming.path << "=" << value;
      EXPECT_TRUE(old.reading.origins.contains(renaming.path)) << renaming.old_path;
    }
  }
}

TEST(RenamedKeys, OldValuesAreReadInAnyCase) {
  for (const char* old_value : {"true", "True", "TRUE"}) {
    const Read old = read_override("parallel.shard_optimizer", old_value);
    EXPECT_EQ(old.settings.parallel.zero_stage, 1) << old_value;
    ASSERT_EQ(old.reading.renamed.size(), 1u) << old_value;
    EXPECT_THAT(old.reading.renamed[0], ::testing::HasSubstr("parallel.zero_stage: 1")) << old_value;
  }
  EXPECT_EQ(read_override("parallel.shard_optimizer", "False").settings.parallel.zero_stage, 0);
  EXPECT_THROW(read_override("parallel.shard_optimizer", "yes"), UserError);
}

TEST(RenamedKeys, BothNamesOfAKeyAreAnError) {
  const auto error_of = [](const std::string& text, const std::vector<std::string>& overrides) {
    return testing::message_of<UserError>([&] {
      Settings settings;
      config::read_settings_text(settings_table(settings, false), text, "x", overrides);
    });
  };
  EXPECT_EQ(error_of("", {"data.store=a.h5", "data.dataset=b.h5"}),
            "--set data.dataset=b.h5: data.dataset is set twice, under its old and its present name, also by --set "
            "data.store=a.h5; remove one of the two");
  EXPECT_THAT(error_of("", {"data.dataset=b.h5", "data.store=null"}),
              ::testing::AllOf(::testing::HasSubstr("--set data.store=null: data.dataset is set twice"),
                               ::testing::HasSubstr("by --set data.dataset=b.h5")));
  EXPECT_THAT(error_of("data:\n  store: a.h5\n  dataset: b.h5\n", {}),
              ::testing::AllOf(::testing::HasSubstr("x:3:3: data.dataset is set twice"), ::testing::HasSubstr("x:2:")));
  Settings last;
  config::read_settings_text(settings_table(last, false), "data: {store: a.h5}\n", "x",
                             {"data.dataset=b.h5", "data.dataset=c.h5"});
  EXPECT_EQ(last.data.dataset, "c.h5") << "the file's old name, and repeated --set of one name, give way";
}

// What `config show` of version 0.1 printed for a config that sets every key which has another name now.
TEST(RenamedKeys, ConfigOfAnEarlierVersionLoads) {
  const auto folder = testing::source_directory() / "tests/trainers/settings";
  const LoadedSettings old = load_settings(folder / "old_config.yaml"),
                       now = load_settings(folder / "old_config_now.yaml");
  Settings expected = now.settings;
  expected.run_directory = old.settings.run_directory;
  EXPECT_EQ(old.settings, expected);
  EXPECT_GE(old.warnings.size(), 10u);
  for (const std::string& warning : old.warnings)
    EXPECT_THAT(warning, ::testing::ContainsRegex("old_config.yaml:[0-9]+:[0-9]+: .* is now ")) << warning;
  EXPECT_TRUE(now.warnings.empty());
}

// The complete settings that version 0.1 wrote into a checkpoint.
TEST(RenamedKeys, ConfigInAnEarlierCheckpointLoads) {
  const auto file = testing::source_directory() / "tests/trainers/settings/old_checkpoint_config.yaml";
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  const Settings settings = from_checkpoint_text(text.str(), "old").settings;
  EXPECT_EQ(settings.model.norm_placement, layers::NormPlacement::post);
  EXPECT_EQ(settings.model.attention.random_projection, layers::RandomProjectionKind::orthogonal_fixed_norm);
  EXPECT_EQ(settings.trainer.activation_checkpointing, layers::ActivationCheckpointing::blocks);
  EXPECT_EQ(settings.data.dataset, "kjv.h5");
  EXPECT_TRUE(settings.data.stateful);
  EXPECT_FALSE(settings.checkpoint.async);
}

}  // namespace
}  // namespace furlong
