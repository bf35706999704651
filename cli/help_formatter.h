#pragma once
#include <memory>

namespace CLI {
class FormatterBase;
}  // namespace CLI

namespace furlong::command_line {

/// The group of options that every help page lists last.
inline constexpr const char* common_group = "Common options";

/// Returns the layout of all help pages: description, usage, arguments, options, subcommands, footer, in 80 columns.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace furlong::command_line
