#pragma once
// Text out of models and files, on standard output.
#include <string>
#include <string_view>

namespace furlong::command_line {

/// A pipe or a file gets every byte. On a terminal control characters other than line ends and tabs, and what is not
/// UTF-8, appear as \xNN: they could steer it.
class TextOutput {
 public:
  TextOutput();
  /// With a part of a character at its end, which the next call goes on with.
  void write(std::string_view text);
  /// Writes what is left, and flushes.
  void finish();

 private:
  bool terminal_;
  std::string begun_;  ///< bytes of a character that is not whole yet
};

/// What `text` looks like on a terminal.
std::string terminal_text(std::string_view text);

}  // namespace furlong::command_line
