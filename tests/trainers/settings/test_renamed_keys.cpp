#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "framework/config/reader.h"
#include "tests/places.h"
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
