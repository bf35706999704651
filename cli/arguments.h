#pragma once
// Declares the command lines of subcommands. Only arguments.cpp and help_formatter.cpp include CLI11, whose headers
// take longer to compile than any subcommand.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/core/error.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace furlong::command_line {

/// An option or a positional argument of a command. A handle: copies refer to the same option, which lives as long as
/// the program.
class Option {
 public:
  Option() = default;
  explicit Option(CLI::Option* option) : option_(option) {}
  explicit operator bool() const { return option_ != nullptr; }

  std::string name() const;
  /// Returns all names, "--output" and "-o"; none for a positional argument.
  std::vector<std::string> names() const;
  /// Returns whether the option is not a flag.
  bool takes_value() const;
  /// Returns all values that the option accepts; none if they are not a list.
  std::vector<std::string> choices() const;
  /// Returns whether the command line contains the option.
  bool is_given() const;

  /// Sets the placeholder that help shows for the value.
  Option value_name(const std::string& name) const;
  /// Sets the default that help shows: `value`, or the current value of the variable.
  Option shows_default(const std::string& value) const;
  Option shows_default() const;
  /// Lists the option in help under this title, after the other options.
  Option section(const std::string& title) const;
  /// Lists the option last in help, with --help.
  Option common() const;
  Option required() const;
  /// Restricts the values that the option accepts.
  Option one_of(const std::vector<std::string>& values) const;
  Option range(int least, int most) const;
  Option range(double least, double most) const;
  Option positive() const;
  /// Accepts numbers with a unit: 64KiB is 65536, 64KB is 64000.
  Option in_bytes() const;
  /// Accepts numbers with a unit: 4k is 4096, 1M is 1048576.
  Option in_tokens() const;
  /// Splits one argument into several values. The next argument is not part of them.
  Option separated_by(char separator) const;
  /// Can be given several times, with one value each.
  Option repeatable() const;
  Option excludes(const Option& other) const;
  Option needs(const Option& other) const;

 private:
  CLI::Option* option_ = nullptr;
};

/// The program or one of its subcommands: a handle, like Option.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  std::string name() const;
  std::vector<Command> subcommands() const;
  std::vector<Option> options() const;
  /// Returns the option that was added under this name.
  Option option(const std::string& name) const;

  Command add_subcommand(const std::string& name, const std::string& description) const;
  /// Adds a second name, which help does not show.
  void alias(const std::string& name) const;
  /// Makes a command line without one of the subcommands an error.
  void require_subcommand() const;
  /// Adds an option, or a positional argument if `name` has no dashes. `name` is --long or --long,-s. `value` has to
  /// live as long as the program.
  /// T: int, int64, uint64, double, string, path; vectors of int64, double, string; optional uint64, string.
  template <class T>
  Option add_option(const std::string& name, T& value, const std::string& description) const;
  Option add_flag(const std::string& name, bool& value, const std::string& description) const;
  /// Adds an option that accepts one of `words` and passes it to `set`. Help shows the words between bars.
  Option add_choice(const std::string& name, const std::vector<std::string>& words, const std::string& standard,
                    std::function<void(const std::string&)> set, const std::string& description) const;
  /// Adds text below the options in help, wrapped at 80 columns.
  void footer(const std::string& text) const;
  /// Adds commands at the end of help. Call it after footer().
  void examples(const std::vector<std::string>& commands) const;
  /// Sets the function that runs the command after its command line is parsed.
  void action(std::function<void()> run) const;
  /// Stops parsing at the first word that is not an option of this command. rest() returns that word and all others.
  void ends_at_first_word() const;
  std::vector<std::string> rest() const;

 protected:
  CLI::App* app_;
};

/// Invalid arguments of the command line.
class ArgumentError : public UserError {
 public:
  explicit ArgumentError(const std::string& message) : UserError("{}", message) {}
};

class Program : public Command {
 public:
  Program(const std::string& name, const std::string& description);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Sets what --version prints.
  void version(const std::string& text) const;
  /// Parses the arguments after the program's name and runs the subcommand, or prints help or the version. Throws
  /// ArgumentError if the arguments are invalid. Its message is one line that names what was expected, the probable
  /// spelling or the new name.
  void run(const std::vector<std::string>& arguments) const;

 private:
  std::unique_ptr<CLI::App> owned_;
};

}  // namespace furlong::command_line
