#pragma once
// Layout of help pages: text wrapped at 80 columns.
#include <string>
#include <string_view>
#include <vector>

namespace furlong::command_line {

/// Width of a help page, in columns.
inline constexpr std::size_t help_width = 80;

/// Returns the number of code points of UTF-8 text.
std::size_t columns_of(std::string_view text);

/// Wraps each line of `text` at spaces and indents it by `indent` columns. Leading spaces of a line are kept and also
/// indent its continuations. If two or more spaces separate a term from its definition, continuations align with the
/// definition. Every line of the result ends with LF.
std::string wrapped(std::string_view text, std::size_t indent = 0);

/// Returns an entry of a list: `name`, and `description` wrapped in a column next to it, or below a long name.
std::string list_entry(const std::string& name, std::string_view description);

/// Returns one indented line for each command. A command that is too long continues after a backslash.
std::string example_lines(const std::vector<std::string>& commands);

}  // namespace furlong::command_line
