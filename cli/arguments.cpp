#include "cli/arguments.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "framework/config/nearest.h"
#include "framework/core/error.h"

namespace furlong::command_line {
namespace {

/// In one line, naming the nearest subcommand where a word in its place is none.
std::string message_of(const CLI::App& program, const CLI::ParseError& error,
                       const std::vector<std::string>& arguments) {
  std::string message = error.what();
  const CLI::App* innermost = &program;
  std::string command = program.get_name();
  std::size_t place = 0;  // of the word behind it
  for (; !innermost->get_subcommands().empty(); ++place) {
    innermost = innermost->get_subcommands()[0];
    command += " " + innermost->get_name();
  }
  std::string hint = "; see " + command + " --help";
  std::vector<std::string> known;
  for (const CLI::App* subcommand : innermost->get_subcommands({})) known.push_back(subcommand->get_name());
  if (!known.empty() && arguments.size() > place && !arguments[place].starts_with('-')) {
    message = (place == 0 ? "there is no subcommand '" : command + " has no subcommand '") + arguments[place] + "'";
    const std::string near = config::nearest(arguments[place], known);
    if (!near.empty()) hint = "; did you mean " + near + "? The others are in " + command + " --help";
  }
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message + hint;
}

}  // namespace

std::string Option::name() const { return option_->get_name(); }

bool Option::is_given() const { return option_->count() > 0; }

Option Option::value_name(const std::string& name) const { return Option(option_->type_name(name)); }

Option Option::shows_default(const std::string& value) const { return Option(option_->default_str(value)); }

Option Option::shows_default() const {
  option_->capture_default_str();
  return *this;
}

Option Option::required() const { return Option(option_->required()); }

Option Option::one_of(const std::vector<std::string>& values) const {
  return Option(option_->check(CLI::IsMember(values)));
}

Option Option::range(int least, int most) const { return Option(option_->check(CLI::Range(least, most))); }

Option Option::range(double least, double most) const { return Option(option_->check(CLI::Range(least, most))); }

Option Option::positive() const { return Option(option_->check(CLI::PositiveNumber)); }

Option Option::not_negative() const { return Option(option_->check(CLI::NonNegativeNumber)); }

Option Option::in_bytes() const { return Option(option_->transform(CLI::AsSizeValue(true))); }

Option Option::separated_by(char separator) const { return Option(option_->delimiter(separator)); }

Option Option::one_argument() const { return Option(option_->allow_extra_args(false)); }

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
  return Command(app_->add_subcommand(name, description));
}

void Command::require_subcommand() const { app_->require_subcommand(1); }

template <class T>
Option Command::add_option(const std::string& name, T& value, const std::string& description) const {
  return Option(app_->add_option(name, value, description));
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
FURLONG_OPTION(std::vector<std::filesystem::path>)
FURLONG_OPTION(std::optional<std::uint64_t>)
FURLONG_OPTION(std::optional<std::string>)
#undef FURLONG_OPTION

Option Command::add_flag(const std::string& name, bool& value, const std::string& description) const {
  return Option(app_->add_flag(name, value, description));
}

Option Command::add_choice(const std::string& name, const std::vector<std::string>& words, const std::string& standard,
                           std::function<void(const std::string&)> set, const std::string& description) const {
  CLI::IsMember check(words);
  check.description("");
  return Option(app_->add_option_function<std::string>(name, std::move(set), description)
                    ->check(check)
                    ->default_str(standard)
                    ->type_name(fmt::format("{}", fmt::join(words, "|"))));
}

void Command::footer(const std::string& text) const { app_->footer(text); }

void Command::action(std::function<void()> run) const { app_->callback(std::move(run)); }

void Command::ends_at_first_word() const { app_->prefix_command(); }

std::vector<std::string> Command::rest() const { return app_->remaining(); }

Program::Program(const std::string& name, const std::string& description)
    : Command(nullptr), owned_(std::make_unique<CLI::App>(description, name)) {
  app_ = owned_.get();
}

Program::~Program() = default;

void Program::version(const std::string& text) const { app_->set_version_flag("--version", text); }

void Program::run(const std::vector<std::string>& arguments) const {
  try {
    app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw UserError("{}", message_of(*app_, error, arguments));
    app_->exit(error);  // prints help or the version
  }
}

}  // namespace furlong::command_line
