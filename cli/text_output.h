#pragma once
// Prints text of models and files on standard output.
#include <string>
#include <string_view>

namespace furlong::command_line {

/// Writes text to standard output. Pipes and files get all bytes unchanged. On a terminal, control characters except
/// line ends and tabs, and bytes that are not UTF-8, appear as \xNN, because they could control the terminal.
class TextOutput {
 public:
  TextOutput();
  /// `text` can end inside a character; the next call continues it.
  void write(std::string_view text);
  /// Writes an incomplete character and flushes.
  void finish();

 private:
  bool terminal_;
  std::string partial_character_;  ///< bytes of an incomplete character
};

/// Prints whole text as TextOutput does.
void print_text(std::string_view text);

/// Prints text of a command that trains. If nobody reads it, it is lost, and the command continues (write_message()).
/// Returns whether it was written: text that no file has must not be lost with status 0.
bool print_message(const std::string& text);

/// Throws the MachineError of a table of finished runs that print_message() could not write and no file has.
[[noreturn]] void throw_lost_table();

/// Returns `text` as a terminal shows it.
std::string terminal_text(std::string_view text);

}  // namespace furlong::command_line
