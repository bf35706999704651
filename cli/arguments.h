#pragma once
// What subcommands say about their command lines. CLI11 does the work behind it, in arguments.cpp alone: its headers
// take longer to compile than any subcommand.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace furlong::command_line {

/// An option or a positional argument of a command. A handle: copies mean the same option, which lives as long as the
/// program.
class Option {
 public:
  Option() = default;
  explicit Option(CLI::Option* option) : option_(option) {}
  explicit operator bool() const { return option_ != nullptr; }

  std::string name() const;
  /// Whether the command line has it.
  bool is_given() const;

  /// What stands in help for its value.
  Option value_name(const std::string& name) const;
  /// Help shows this default, or the value that the variable has now.
  Option shows_default(const std::string& value) const;
  Option shows_default() const;
  Option required() const;
  /// What a value is allowed to be.
  Option one_of(const std::vector<std::string>& values) const;
  Option range(int least, int most) const;
  Option range(double least, double most) const;
  Option positive() const;
  Option not_negative() const;
  /// Numbers with a unit: 64KiB is 65536, and so is 64KB.
  Option in_bytes() const;
  /// One argument holds several values.
  Option separated_by(char separator) const;
  /// Each time it takes one argument, although it has many values.
  Option one_argument() const;
  /// It can be given several times, with one value each.
  Option repeatable() const;
  Option excludes(const Option& other) const;
  Option needs(const Option& other) const;

 private:
  CLI::Option* option_ = nullptr;
};

/// The program or one of its subcommands: a handle, as Option is.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  std::string name() const;
  std::vector<Command> subcommands() const;
  std::vector<Option> options() const;
  /// The one that was added under this name.
  Option option(const std::string& name) const;

  Command add_subcommand(const std::string& name, const std::string& description) const;
  /// The command does nothing without one of its subcommands.
  void require_subcommand() const;
  /// `name` is --long, --long,-s, or without dashes a positional argument. `value` has to live as long as the program.
  /// T: int, int64, uint64, double, string, path; vectors of int64, double, string, path; optional uint64, string.
  template <class T>
  Option add_option(const std::string& name, T& value, const std::string& description) const;
  Option add_flag(const std::string& name, bool& value, const std::string& description) const;
  /// An option that takes one of a few words, which help shows between bars. `set` gets the word.
  Option add_choice(const std::string& name, const std::vector<std::string>& words, const std::string& standard,
                    std::function<void(const std::string&)> set, const std::string& description) const;
  /// The text behind the options in help.
  void footer(const std::string& text) const;
  /// What the command does once its command line is read.
  void action(std::function<void()> run) const;
  /// From the first word that is no option of this command on, all belongs to another command: rest() has it.
  void ends_at_first_word() const;
  std::vector<std::string> rest() const;

 protected:
  CLI::App* app_;
};

class Program : public Command {
 public:
  Program(const std::string& name, const std::string& description);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// What --version prints.
  void version(const std::string& text) const;
  /// Reads the arguments behind the program's name and runs what the subcommand does; or prints help or the version, if
  /// they ask for it. Throws UserError where they are wrong, in one line that names what was probably meant.
  void run(const std::vector<std::string>& arguments) const;

 private:
  std::unique_ptr<CLI::App> owned_;
};

}  // namespace furlong::command_line
