// furlong config: what a configuration says, whether it is right, and what it may say.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "framework/core/error.h"
#include "trainers/model/objective.h"
#include "trainers/settings/settings.h"
#include "trainers/train/data_checks.h"

namespace furlong::command_line {
namespace {

struct Options {
  std::string file;
  std::vector<std::string> overrides;
  bool as_json = false;
  bool with_comments = false;
};

void add_file_and_overrides(Command command, Options& options) {
  command.add_option("config", options.file, "The YAML file").required().value_name("FILE");
  command
      .add_option("--set", options.overrides,
                  "Set a key on top of the file, such as --set trainer.max_steps=1000; may be repeated")
      .value_name("KEY=VALUE")
      .repeatable();
}

void show(const Options& options) {
  const auto loaded = load_settings(options.file, options.overrides);
  log_warnings(loaded);
  if (options.as_json)
    fmt::print("{}\n", to_json(loaded.settings).dump(2));
  else
    fmt::print("{}", to_yaml(loaded.settings, options.with_comments));
}

std::unique_ptr<Dataset> open_store(const LoadedSettings& loaded) {
  try {
    return open_data(loaded.settings.data);
  } catch (const UserError& error) {
    throw UserError("{}: data.store: {}", loaded.origins.at("data.store").text(), error.what());
  }
}

void check_file(const Options& options) {
  const auto loaded = load_settings(options.file, options.overrides);
  log_warnings(loaded);
  std::error_code code;
  const bool has_store =
      loaded.settings.data.task != "none" || std::filesystem::exists(loaded.settings.data.store, code);
  if (has_store) check_against_data(loaded, *open_store(loaded));
  if (options.as_json) {
    nlohmann::ordered_json files = nlohmann::ordered_json::array();
    for (const auto& file : loaded.files) files.push_back(file.string());
    fmt::print("{}\n",
               nlohmann::ordered_json{
                   {"valid", true}, {"files", files}, {"keys_set", loaded.origins.size()}, {"store_exists", has_store}}
                   .dump(2));
    return;
  }
  fmt::print("{}: valid; {} key{} set, {} file{} read\n", options.file, loaded.origins.size(),
             loaded.origins.size() == 1 ? "" : "s", loaded.files.size(), loaded.files.size() == 1 ? "" : "s");
  if (!has_store)
    fmt::print("note: data.store {} does not exist yet; furlong prepare writes it\n",
               loaded.settings.data.store.string());
}

}  // namespace

void add_config(Command program, int&) {
  const Command config = program.add_subcommand("config", "Show, check and explain configuration files");
  config.require_subcommand();
  config.footer("Keys, units, defaults and meanings: furlong config reference, or docs/config.md.");
  const auto options = std::make_shared<Options>();

  const Command show_command = config.add_subcommand(
      "show", "Print the complete configuration: file, included files, --set, defaults, derived values");
  add_file_and_overrides(show_command, *options);
  const Option json = show_command.add_flag("--json", options->as_json, "Print JSON instead of YAML");
  show_command.add_flag("--comments", options->with_comments, "Say behind each key what it means").excludes(json);
  show_command.action([options] { show(*options); });

  const Command check_command =
      config.add_subcommand("check",
                            "Say whether a configuration is valid, and fits its data store where "
                            "that exists; if not, what is wrong and where (exit status 2)");
  add_file_and_overrides(check_command, *options);
  check_command.add_flag("--json", options->as_json, "Print JSON");
  check_command.action([options] { check_file(*options); });

  const Command schema = config.add_subcommand(
      "schema", "Print the JSON Schema of configuration files, for completion and checks in editors");
  schema.action([] { fmt::print("{}\n", json_schema().dump(2)); });

  const Command reference = config.add_subcommand("reference", "Print the reference page of all keys (docs/config.md)");
  reference.action([] { fmt::print("{}", reference_markdown()); });
}

}  // namespace furlong::command_line
