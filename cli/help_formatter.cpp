#include "cli/help_formatter.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/help_text.h"

namespace furlong::command_line {
namespace {

struct Value {
  std::string name;                  ///< as shown after the option's name; empty for a flag
  std::vector<std::string> choices;  ///< all allowed values; empty if there is no such list
};

/// Splits CLI11's "NAME:{a,b,c}", and replaces names of C++ types.
Value value_of(const CLI::Option& option) {
  Value value;
  if (option.get_type_size() == 0) return value;
  value.name = option.get_type_name();
  if (const std::size_t list = value.name.find(":{"); list != std::string::npos) {
    const std::size_t end = value.name.find('}', list);
    value.choices = CLI::detail::split(value.name.substr(list + 2, end - list - 2), ',');
    value.name.erase(list);
  }
  if (value.name == "INT" || value.name == "UINT") value.name = "N";
  if (value.name == "FLOAT") value.name = "X";
  if (value.name == "TEXT" && !value.choices.empty()) value.name = fmt::format("{}", fmt::join(value.choices, "|"));
  return value;
}

bool mentions(const std::string& text, const std::string& word) { return text.find(word) != std::string::npos; }

/// The names of `options`, sorted: CLI11 orders them by address.
std::string names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

/// The description, followed by allowed values, default value, and relations to other options.
std::string description_of(const CLI::Option& option, const Value& value) {
  std::string text = option.get_description();
  const bool are_listed = std::all_of(value.choices.begin(), value.choices.end(), [&](const std::string& choice) {
    return mentions(value.name, choice) || mentions(text, choice);
  });
  if (!are_listed) text += fmt::format(": {}", fmt::join(value.choices, ", "));
  std::vector<std::string> notes;
  if (option.get_required() && option.nonpositional()) notes.emplace_back("required");
  if (std::string standard = option.get_default_str(); !standard.empty() && !value.name.empty()) {
    if (standard.starts_with('[') && standard.ends_with(']')) standard = standard.substr(1, standard.size() - 2);
    notes.push_back("default: " + standard);
  }
  if (!option.get_needs().empty()) notes.push_back("requires " + names_of(option.get_needs()));
  if (!option.get_excludes().empty()) notes.push_back("not with " + names_of(option.get_excludes()));
  if (!notes.empty()) text += fmt::format(" ({})", fmt::join(notes, "; "));
  return text;
}

std::string entry_of(const CLI::Option& option) {
  const Value value = value_of(option);
  std::string name = option.get_positional() ? value.name : option.get_name(false, true);
  if (const std::size_t comma = name.find(",--"); !option.get_positional() && comma != std::string::npos)
    name.insert(comma + 1, " ");
  if (!option.get_positional() && !value.name.empty()) name += " " + value.name;
  return list_entry(name, description_of(option, value));
}

std::string usage_of(const CLI::App& app, const std::string& name) {
  std::string usage = "Usage: " + name + " [OPTIONS]";
  for (const CLI::Option* option : app.get_options([](const CLI::Option* one) { return one->get_positional(); })) {
    std::string argument = value_of(*option).name;
    const bool is_list = option->get_expected_max() >= CLI::detail::expected_max_vector_size;
    if (is_list && !argument.ends_with("...")) argument += "...";
    usage += option->get_required() ? " " + argument : " [" + argument + "]";
  }
  if (!app.get_subcommands({}).empty()) usage += " SUBCOMMAND";
  return wrapped(usage);
}

class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode /*mode*/) const override {
    std::string page = wrapped(app->get_description()) + '\n' + usage_of(*app, name);
    std::string arguments, options, common, subcommands, help;
    std::vector<std::pair<std::string, std::string>> sections;  // title and entries
    for (const CLI::Option* option : app->get_options([](const CLI::Option*) { return true; })) {
      if (option->get_positional()) {
        arguments += entry_of(*option);
      } else if (option == app->get_help_ptr()) {
        help = entry_of(*option);
      } else if (const std::string& group = option->get_group(); group == common_group || group == "Options") {
        (group == common_group ? common : options) += entry_of(*option);
      } else {
        if (sections.empty() || sections.back().first != group) sections.emplace_back(group, "");
        sections.back().second += entry_of(*option);
      }
    }
    for (const CLI::App* subcommand : app->get_subcommands({}))
      subcommands += list_entry(subcommand->get_name(), subcommand->get_description());
    if (!arguments.empty()) page += "\nArguments:\n" + arguments;
    if (!subcommands.empty()) page += "\nSubcommands:\n" + subcommands;
    if (!options.empty()) page += "\nOptions:\n" + options;
    for (const auto& [title, entries] : sections) page += fmt::format("\n{}:\n{}", title, entries);
    page += fmt::format("\n{}:\n", common_group) + common + help;
    if (!app->get_footer().empty()) page += '\n' + app->get_footer();
    return page;
  }
};

}  // namespace

std::string shown_name(const CLI::Option& option) {
  return option.get_positional() ? value_of(option).name : option.get_name();
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  const Value value = value_of(option);
  if (!value.choices.empty() || value.name.find('|') == std::string::npos) return value.choices;
  // A placeholder such as RUN|CHECKPOINT is in capitals; add_choice() shows the words themselves.
  const std::vector<std::string> words = CLI::detail::split(value.name, '|');
  const bool capitals = std::any_of(words[0].begin(), words[0].end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  return capitals ? std::vector<std::string>() : words;
}

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

}  // namespace furlong::command_line
