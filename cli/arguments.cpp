#include "cli/arguments.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "cli/help_formatter.h"
#include "cli/help_text.h"
#include "framework/config/nearest.h"
#include "framework/config/reader.h"
#include "framework/core/error.h"
#include "trainers/settings/settings.h"

namespace furlong::command_line {
namespace {

/// An option, or one value of an option, that has a new name.
struct Renamed {
  std::string_view option;
  std::string_view value;  ///< empty: the option itself was renamed
  std::string_view replacement;
};

constexpr Renamed renamed_options[] = {
    {"--d", "", "--head-dim"},
    {"--deviation", "", "--std"},
    {"--directions-kind", "", "--random-projection"},
    {"--dtype", "own", "--dtype model"},
    {"--framed", "", "--add-special-tokens"},
    {"--json", "", "--json-file"},
    {"--maps", "", "--feature-maps"},
    {"--max-features", "", "--search-limit"},
    {"--most-features", "", "--max-features"},
    {"--most-features", "", "--search-limit"},
    {"--n", "", "--lengths"},
    {"--repeat", "", "--repeats"},
    {"--special", "", "--parse-special"},
    {"--weights", "averaged", "--weights ema"},
};

/// British spellings, accepted as well.
constexpr std::pair<std::string_view, std::string_view> spellings[] = {{"--unlabelled", "--unlabeled"},
                                                                       {"--utilisation", "--utilization"}};

std::string respelled(std::string argument) {
  for (const auto& [british, american] : spellings) {
    if (argument == british || argument.starts_with(std::string(british) + "="))
      argument.replace(0, british.size(), american);
  }
  return argument;
}

bool has_option(const CLI::App& command, std::string_view name) {
  return command.get_option_no_throw(std::string(name)) != nullptr;
}

bool contains(const Renamed& renamed, const std::vector<std::string>& arguments) {
  const std::string option(renamed.option), value(renamed.value);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (value.empty() ? arguments[i] == option || arguments[i].starts_with(option + "=")
                      : arguments[i] == option + "=" + value ||
                            (arguments[i] == option && i + 1 < arguments.size() && arguments[i + 1] == value))
      return true;
  }
  return false;
}

/// Returns "--old was renamed: use --new" if the arguments contain a former name of one of the command's options.
std::string rename_hint(const CLI::App& command, const std::vector<std::string>& arguments) {
  for (const Renamed& renamed : renamed_options) {
    const std::string_view current = renamed.replacement.substr(0, renamed.replacement.find(' '));
    if (!has_option(command, current) || !contains(renamed, arguments)) continue;
    if (renamed.value.empty()) return fmt::format("{} was renamed: use {}", renamed.option, renamed.replacement);
    return fmt::format("{} {} was renamed: use {}", renamed.option, renamed.value, renamed.replacement);
  }
  return "";
}

bool is_missing(const CLI::Option* option) { return option->get_required() && option->count() == 0; }

/// Returns the option or the --set that an unknown option probably means, or "".
std::string option_hint(const CLI::App& command, const std::string& option, const std::vector<std::string>& arguments) {
  const std::string name = option.substr(0, option.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* one : command.get_options()) {
    for (const std::string& longer : one->get_lnames()) known.push_back("--" + longer);
  }
  if (const std::string near = config::nearest(name, known); !near.empty()) return near;
  if (!has_option(command, "--set")) return "";
  std::string word = name.substr(2);
  std::replace(word.begin(), word.end(), '-', '_');
  Settings settings;
  const std::string key = config::path_of_key(settings_table(settings), word);
  if (key.empty()) return "";
  // The value is known to fit only if the option has the name of the key.
  std::string value = "VALUE";
  if (key == word || key.ends_with("." + word)) {
    const auto at = std::find(arguments.begin(), arguments.end(), option);
    if (option.size() > name.size() + 1) {
      value = option.substr(name.size() + 1);
    } else if (at != arguments.end() && at + 1 != arguments.end() && !at[1].starts_with('-')) {
      value = at[1];
    }
  }
  return fmt::format("--set {}={}", key, value);
}

/// Returns the text of CLI11's error with the names and values that help shows.
std::string text_of(const CLI::App& command, const CLI::ParseError& error, const std::vector<std::string>& arguments) {
  const std::string text = error.what(), kind = error.get_name();
  const std::vector<const CLI::Option*> options = command.get_options();
  if (kind == "RequiredError") {
    const auto missing = std::find_if(options.begin(), options.end(), is_missing);
    return missing == options.end() ? text : shown_name(**missing) + " is required";
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {  // its name is the command's
    const std::vector<std::string> extras = command.remaining();
    const auto option =
        std::find_if(extras.begin(), extras.end(), [](const auto& one) { return one.starts_with("--"); });
    if (extras.empty()) return text;
    if (option == extras.end())
      return fmt::format("unexpected argument{}: {}", extras.size() == 1 ? "" : "s", fmt::join(extras, " "));
    const std::string hint = option_hint(command, *option, arguments);
    return fmt::format("unknown option {}{}", option->substr(0, option->find('=')),
                       hint.empty() ? "" : "; did you mean " + hint + "?");
  }
  if (kind == "ExcludesError") return text + "; remove one of them";
  // Other texts start with CLI11's name of the option.
  for (const CLI::Option* option : options) {
    const std::string prefix = option->get_name() + ": ";
    if (!text.starts_with(prefix)) continue;
    const std::string name = shown_name(*option);
    if (kind == "ValidationError") return name + ": " + text.substr(prefix.size());
    if (kind == "ArgumentMismatch" && option->count() > 1)
      return fmt::format("{}: found {} values; expected one", name, option->count());
    if (kind == "ArgumentMismatch") return fmt::format("{}: its value is missing", name);
  }
  return text;
}

/// Returns the error as one line. For an unknown subcommand, the line suggests the nearest name.
std::string message_of(const CLI::App& program, const CLI::ParseError& error,
                       const std::vector<std::string>& arguments) {
  const CLI::App* innermost = &program;
  std::string command = program.get_name();
  std::size_t depth = 0;  // number of subcommands that were parsed
  for (; !innermost->get_subcommands().empty(); ++depth) {
    innermost = innermost->get_subcommands()[0];
    command += " " + innermost->get_name();
  }
  if (const std::string hint = rename_hint(*innermost, arguments); !hint.empty()) return hint;
  std::string message = text_of(*innermost, error, arguments), hint = "; see " + command + " --help";
  std::vector<std::string> known;
  for (const CLI::App* subcommand : innermost->get_subcommands({})) known.push_back(subcommand->get_name());
  if (!known.empty() && arguments.size() > depth && !arguments[depth].starts_with('-')) {
    message = fmt::format("{}: unknown subcommand '{}'", command, arguments[depth]);
    const std::string near = config::nearest(arguments[depth], known);
    if (!near.empty()) hint = fmt::format("; did you mean {}? {} --help lists all subcommands", near, command);
  }
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message + hint;
}

/// Replaces "help bench lra" by "bench lra --help". An unknown subcommand stays the error that it is without "help".
std::vector<std::string> help_as_option(const CLI::App& program, std::vector<std::string> arguments) {
  if (arguments.empty() || arguments[0] != "help") return arguments;
  arguments.erase(arguments.begin());
  const CLI::App* command = &program;
  for (const std::string& word : arguments) {
    const std::vector<const CLI::App*> known = command->get_subcommands({});
    const auto found = std::find_if(known.begin(), known.end(), [&](const auto* one) { return one->check_name(word); });
    if (found == known.end()) return arguments;
    command = *found;
  }
  arguments.emplace_back("--help");
  return arguments;
}

/// Adds a check. If `accepts(text)` is false, the error is "NAME: found TEXT; expected EXPECTED". Help shows
/// `description`, if any, as part of the value's name.
template <class Accepts>
CLI::Option* check(CLI::Option* option, const std::string& expected, Accepts accepts,
                   const std::string& description = "") {
  return option->check(CLI::Validator(
      [=](const std::string& text) {
        return accepts(text) ? std::string()
                             : fmt::format("found {}; expected {}", text.empty() ? "''" : text, expected);
      },
      description));
}

/// CLI11 reads 010 as octal and 0x10 as hexadecimal, which nobody who pads a number with zeros expects.
bool is_decimal(const std::string& text) {
  const std::size_t first = text.find_first_not_of("+-");
  return first == std::string::npos || text[first] != '0' || first + 1 == text.size() ||
         !std::isalnum(static_cast<unsigned char>(text[first + 1]));
}

/// Returns whether `text` is one T in [least, most].
template <class T>
bool is_within(const std::string& text, T least, T most) {
  T value{};
  if constexpr (std::is_integral_v<T>) {  // CLI11 2.1 takes -1 and what exceeds the type for its largest number
    std::string_view digits = text;
    while (!digits.empty() && digits.front() == ' ') digits.remove_prefix(1);  // of a list: "64, 128"
    if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (!is_decimal(std::string(digits)) || error != std::errc() || end != digits.data() + digits.size()) return false;
  } else if (!CLI::detail::lexical_cast(text, value)) {
    return false;
  }
  return value >= least && value <= most;
}

template <class T>
bool is_a(const std::string& text) {
  return is_within(text, std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max());
}

/// Applies CLI11's conversion of numbers with units, with another error.
CLI::Option* convert_unit(CLI::Option* option, const CLI::Validator& conversion, const std::string& expected) {
  return option->transform(CLI::Validator(
      [=](std::string& text) {
        const std::string given = text;
        try {
          if (is_decimal(text) && conversion(text).empty()) return std::string();
        } catch (const CLI::ValidationError&) {
        }
        return fmt::format("found {}; expected {}", given, expected);
      },
      ""));
}

/// Returns "a, b or c".
std::string alternatives(const std::vector<std::string>& words) {
  if (words.size() == 1) return words[0];
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

CLI::Option* check_word(CLI::Option* option, const std::vector<std::string>& words, const std::string& description) {
  return check(
      option, alternatives(words),
      [words](const std::string& text) { return std::find(words.begin(), words.end(), text) != words.end(); },
      description);
}

template <class T>
struct ElementOf {
  using type = T;
};
template <class T>
struct ElementOf<std::vector<T>> {
  using type = T;
};
template <class T>
struct ElementOf<std::optional<T>> {
  using type = T;
};

}  // namespace

std::string Option::name() const { return option_->get_name(); }

std::vector<std::string> Option::names() const {
  std::vector<std::string> all;
  for (const std::string& name : option_->get_lnames()) all.push_back("--" + name);
  for (const std::string& name : option_->get_snames()) all.push_back("-" + name);
  return all;
}

bool Option::takes_value() const { return option_->get_type_size() != 0; }

std::vector<std::string> Option::choices() const { return choices_of(*option_); }

bool Option::is_given() const { return option_->count() > 0; }

Option Option::value_name(const std::string& name) const { return Option(option_->type_name(name)); }

Option Option::shows_default(const std::string& value) const { return Option(option_->default_str(value)); }

Option Option::shows_default() const {
  option_->capture_default_str();
  return *this;
}

Option Option::section(const std::string& title) const {
  option_->group(title);
  return *this;
}

Option Option::common() const { return section(common_group); }

Option Option::required() const { return Option(option_->required()); }

Option Option::one_of(const std::vector<std::string>& values) const {
  return Option(check_word(option_, values, fmt::format("{{{}}}", fmt::join(values, ","))));
}

Option Option::range(int least, int most) const {
  return Option(check(option_, fmt::format("an integer from {} to {}", least, most),
                      [=](const std::string& text) { return is_within(text, least, most); }));
}

Option Option::range(double least, double most) const {
  return Option(check(option_, fmt::format("a number from {:g} to {:g}", least, most),
                      [=](const std::string& text) { return is_within(text, least, most); }));
}

Option Option::positive() const {
  return Option(check(option_, "a number above 0", [](const std::string& text) {
    return is_within(text, std::numeric_limits<double>::min(), std::numeric_limits<double>::max());
  }));
}

Option Option::in_bytes() const {
  return Option(convert_unit(option_, CLI::AsSizeValue(true), "a size such as 64KiB or 25MB"));
}

Option Option::in_tokens() const {
  CLI::AsNumberWithUnit number(std::map<std::string, std::int64_t>{{"k", 1 << 10}, {"m", 1 << 20}},
                               CLI::AsNumberWithUnit::CASE_INSENSITIVE);
  return Option(convert_unit(option_, number, "a number of tokens such as 4096 or 4k"));
}

Option Option::separated_by(char separator) const {
  return Option(option_->delimiter(separator)->allow_extra_args(false));
}

Option Option::repeatable() const { return Option(option_->expected(1)->take_all()->allow_extra_args(false)); }

Option Option::excludes(const Option& other) const { return Option(option_->excludes(other.option_)); }

Option Option::needs(const Option& other) const { return Option(option_->needs(other.option_)); }

std::string Command::name() const { return app_->get_name(); }

std::vector<Command> Command::subcommands() const {
  std::vector<Command> all;
  for (CLI::App* app : app_->get_subcommands({})) all.emplace_back(app);
  return all;
}

std::vector<Option> Command::options() const {
  std::vector<Option> all;
  for (CLI::Option* option : app_->get_options()) all.emplace_back(option);
  return all;
}

Option Command::option(const std::string& name) const { return Option(app_->get_option(name)); }

Command Command::add_subcommand(const std::string& name, const std::string& description) const {
  CLI::App* const subcommand = app_->add_subcommand(name, description);
  subcommand->footer("");  // CLI11 copies the parent's
  return Command(subcommand);
}

void Command::alias(const std::string& name) const { app_->alias(name); }

void Command::require_subcommand() const { app_->require_subcommand(1); }

template <class T>
Option Command::add_option(const std::string& name, T& value, const std::string& description) const {
  CLI::Option* const option = app_->add_option(name, value, description);
  using Element = typename ElementOf<T>::type;
  if constexpr (std::is_integral_v<Element>)
    check(option, std::is_signed_v<Element> ? "an integer" : "an integer of at least 0", is_a<Element>);
  if constexpr (std::is_floating_point_v<Element>) check(option, "a number", is_a<Element>);
  return Option(option);
}

#define FURLONG_OPTION(...) \
  template Option Command::add_option(const std::string&, __VA_ARGS__&, const std::string&) const;
FURLONG_OPTION(int)
FURLONG_OPTION(std::int64_t)
FURLONG_OPTION(std::uint64_t)
FURLONG_OPTION(double)
FURLONG_OPTION(std::string)
FURLONG_OPTION(std::filesystem::path)
FURLONG_OPTION(std::vector<std::int64_t>)
FURLONG_OPTION(std::vector<double>)
FURLONG_OPTION(std::vector<std::string>)
FURLONG_OPTION(std::optional<std::uint64_t>)
FURLONG_OPTION(std::optional<std::string>)
#undef FURLONG_OPTION

Option Command::add_flag(const std::string& name, bool& value, const std::string& description) const {
  return Option(app_->add_flag(name, value, description));
}

Option Command::add_choice(const std::string& name, const std::vector<std::string>& words, const std::string& standard,
                           std::function<void(const std::string&)> set, const std::string& description) const {
  CLI::Option* const option = app_->add_option_function<std::string>(name, std::move(set), description);
  return Option(
      check_word(option, words, "")->default_str(standard)->type_name(fmt::format("{}", fmt::join(words, "|"))));
}

void Command::footer(const std::string& text) const { app_->footer(wrapped(text)); }

void Command::examples(const std::vector<std::string>& commands) const {
  const std::string above = app_->get_footer();
  app_->footer(above + (above.empty() ? "" : "\n") + "Examples:\n" + example_lines(commands));
}

void Command::action(std::function<void()> run) const { app_->callback(std::move(run)); }

void Command::ends_at_first_word() const { app_->prefix_command(); }

std::vector<std::string> Command::rest() const { return app_->remaining(); }

Program::Program(const std::string& name, const std::string& description)
    : Command(nullptr), owned_(std::make_unique<CLI::App>(description, name)) {
  app_ = owned_.get();
  app_->formatter(help_formatter());
  app_->set_help_flag("-h,--help", "Print this help");
}

Program::~Program() = default;

void Program::version(const std::string& text) const {
  app_->set_version_flag("--version", text, "Print the version")->group(common_group);
}

void Program::run(const std::vector<std::string>& given) const {
  const std::vector<std::string> arguments = help_as_option(*app_, given);
  try {
    std::vector<std::string> reversed;  // CLI11 expects this order
    std::transform(arguments.rbegin(), arguments.rend(), std::back_inserter(reversed), respelled);
    app_->parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw ArgumentError(message_of(*app_, error, arguments));
    app_->exit(error);  // prints help or the version
  }
}

}  // namespace furlong::command_line
