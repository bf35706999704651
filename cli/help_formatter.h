#pragma once
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class FormatterBase;
class Option;
}  // namespace CLI

namespace furlong::command_line {

/// The group of options that every help page lists last.
inline constexpr const char* common_group = "Common options";

/// Returns the layout of all help pages: description, usage, arguments, options, subcommands, footer, in 80 columns.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// Returns an option's name in messages: --output, or the placeholder of an argument, such as CHECKPOINT|RUN.
std::string shown_name(const CLI::Option& option);

/// Returns all values that an option accepts; none if they are not a list.
std::vector<std::string> choices_of(const CLI::Option& option);

}  // namespace furlong::command_line
