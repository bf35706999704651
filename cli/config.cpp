// furlong config: shows and checks configs, and prints the reference of all keys.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/common_options.h"
#include "cli/json_output.h"
#include "cli/text_output.h"
#include "framework/core/error.h"
#include "trainers/model/objective.h"
#include "trainers/settings/settings.h"
#include "trainers/train/data_checks.h"

namespace furlong::command_line {
namespace {

struct ConfigArguments {
  std::string file;
  std::vector<std::string> overrides;
  bool as_json = false;
  bool with_comments = false;
  bool only_changed = false;
};

void add_file_and_overrides(Command command, ConfigArguments& options) {
  command.add_option("config", options.file, "YAML file").required().value_name("CONFIG");
  add_overrides(command, options.overrides, "trainer.max_steps=1000");
}

void show(const ConfigArguments& options) {
  const auto loaded = load_settings(options.file, options.overrides);
  log_warnings(loaded);
  if (options.as_json)
    print_json(shown_as_json(loaded));
  else
    print_text(options.only_changed ? changed_to_yaml(loaded, options.with_comments)
                                    : shown_as_yaml(loaded, options.with_comments));
}

std::unique_ptr<Dataset> open_dataset(const LoadedSettings& loaded) {
  try {
    return open_data(loaded.settings.data);
  } catch (const UserError& error) {
    const std::string key = loaded.settings.data.sources.empty() ? "data.dataset" : "data.sources";
    const std::string message = error.what();
    throw UserError("{}: {}{}", loaded.origins.at(key).text(), message.starts_with(key) ? "" : key + ": ", message);
  }
}

void check_file(const ConfigArguments& options) {
  const auto loaded = load_settings(options.file, options.overrides);
  log_warnings(loaded);
  const std::string missing = missing_data(loaded.settings.data);
  const bool has_dataset = missing.empty();
  if (has_dataset) check_against_data(loaded, *open_dataset(loaded));
  if (options.as_json) {
    nlohmann::ordered_json files = nlohmann::ordered_json::array();
    for (const auto& file : loaded.files) files.push_back(file.string());
    print_json(nlohmann::ordered_json{
        {"valid", true}, {"files", files}, {"keys_set", loaded.origins.size()}, {"dataset_exists", has_dataset}});
    return;
  }
  fmt::print("{}: valid; {} key{} set, {} file{} read\n", options.file, loaded.origins.size(),
             loaded.origins.size() == 1 ? "" : "s", loaded.files.size(), loaded.files.size() == 1 ? "" : "s");
  if (!has_dataset) fmt::print("note: data.dataset {} does not exist yet; furlong prepare writes it\n", missing);
}

}  // namespace

void add_config(Command program, int&) {
  const Command config = program.add_subcommand("config", "Show, check and document configs");
  config.require_subcommand();
  config.footer("Keys, units, defaults and meanings: furlong config reference, or docs/config.md.");
  config.examples({
      "furlong config check configs/quickstart.yaml",
      "furlong config show configs/quickstart.yaml --set trainer.max_steps=1000",
  });
  const auto options = std::make_shared<ConfigArguments>();

  const Command show_command =
      config.add_subcommand("show", "Print the complete config, with defaults and derived values");
  add_file_and_overrides(show_command, *options);
  const Option comments =
      show_command.add_flag("--comments", options->with_comments, "Print the meaning of each key next to it");
  const Option changed = show_command.add_flag(
      "--changed", options->only_changed,
      "Print only the keys that the config, its includes and --set set, with the values given there");
  add_json(show_command, options->as_json, "Print JSON instead of YAML").excludes(comments).excludes(changed);
  show_command.examples({
      "furlong config show configs/quickstart.yaml --comments",
      "furlong config show configs/quickstart.yaml --set trainer.max_steps=1000 --json",
  });
  show_command.action([options] { show(*options); });

  const Command check_command = config.add_subcommand("check", "Check a config, and its dataset if that exists");
  add_file_and_overrides(check_command, *options);
  add_json(check_command, options->as_json);
  check_command.footer("Exit status: 0 if the config is valid, 2 if not. An error names the file, line and key.");
  check_command.examples({
      "furlong config check configs/quickstart.yaml",
      "furlong config check configs/quickstart.yaml --set data.batch_size=64 --json",
  });
  check_command.action([options] { check_file(*options); });

  const Command schema = config.add_subcommand("schema", "Print the JSON Schema of configs, for completion in editors");
  schema.examples({"furlong config schema", "furlong config schema > furlong.schema.json"});
  schema.action([] { print_json(json_schema()); });

  const Command reference = config.add_subcommand("reference", "Print the reference page of all keys (docs/config.md)");
  reference.examples({"furlong config reference", "furlong config reference | grep -A 6 activation_checkpointing"});
  reference.action([] { fmt::print("{}", reference_markdown()); });
}

}  // namespace furlong::command_line
