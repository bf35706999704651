#include "cli/help_text.h"

#include <algorithm>

namespace furlong::command_line {
namespace {

constexpr std::size_t description_column = 24;

/// Returns the bytes before the text that continuations align with: leading spaces, and a term with the spaces after
/// it.
std::size_t prefix_bytes(std::string_view line) {
  const std::size_t start = line.find_first_not_of(' ');
  if (start == std::string_view::npos) return line.size();
  if (start == 0) return 0;
  const std::size_t gap = line.find("  ", start);
  if (gap == std::string_view::npos) return start;
  const std::size_t definition = line.find_first_not_of(' ', gap);
  return definition == std::string_view::npos ? start : definition;
}

/// Appends `line` to `page`, broken at spaces. A word longer than the width stays whole.
void append_wrapped(std::string& page, std::string_view line, std::size_t indent) {
  const std::size_t prefix = prefix_bytes(line);
  const std::size_t hanging = indent + columns_of(line.substr(0, prefix));
  std::string current = std::string(indent, ' ') + std::string(line.substr(0, prefix));
  std::size_t column = hanging;
  bool is_empty = true;
  for (std::size_t at = prefix; at < line.size();) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    const std::string_view word = line.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    const std::size_t width = columns_of(word);
    if (!is_empty && column + 1 + width > help_width) {
      page += current + '\n';
      current.assign(hanging, ' ');
      column = hanging;
      is_empty = true;
    }
    if (!is_empty) {
      current += ' ';
      ++column;
    }
    current += word;
    column += width;
    is_empty = false;
  }
  current.erase(current.find_last_not_of(' ') + 1);
  page += current + '\n';
}

}  // namespace

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }));
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::string page;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    append_wrapped(page, text.substr(at, end - at), indent);
    at = end + 1;
  }
  return page;
}

std::string list_entry(const std::string& name, std::string_view description) {
  const std::string left = "  " + name;
  std::string right = wrapped(description, description_column);
  if (columns_of(left) + 2 > description_column) return left + '\n' + right;
  if (right.empty()) return left + '\n';
  return left + right.substr(columns_of(left));
}

std::string example_lines(const std::vector<std::string>& commands) {
  std::string page;
  for (const std::string& command : commands) {
    std::string line = "  ";
    for (std::size_t at = 0; at < command.size();) {
      // An option and its value stay on one line.
      const std::size_t next = std::min(command.find(" --", at + 1), command.size());
      const std::string part = command.substr(at, next - at);
      const std::size_t reserved = next < command.size() ? 2 : 0;  // " \" at the end of a line that continues
      if (at > 0 && columns_of(line) + columns_of(part) + reserved > help_width) {
        page += line + " \\\n";
        line = "     ";
      }
      line += part;
      at = next;
    }
    page += line + '\n';
  }
  return page;
}

}  // namespace furlong::command_line
