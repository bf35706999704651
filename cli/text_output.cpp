#include "cli/text_output.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "framework/core/error.h"
#include "framework/core/printable.h"
#include "framework/core/standard_streams.h"

namespace furlong::command_line {
namespace {

/// Returns the number of bytes of an incomplete character at the end.
std::size_t incomplete_bytes(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte < 0xc0) continue;
    const std::size_t length = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    return length > back ? back : 0;
  }
  return 0;
}

void put(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of("\n\t", at), text.size());
    shown += foreign::single_line(text.substr(at, end - at), std::string::npos);
    if (end < text.size()) shown += text[end];
    at = end + 1;
  }
  return shown;
}

void print_text(std::string_view text) {
  // main() flushes, and reports what fails.
  put(isatty(STDOUT_FILENO) != 0 ? terminal_text(text) : std::string(text));
}

bool print_message(const std::string& text) {
  return write_message(STDOUT_FILENO, isatty(STDOUT_FILENO) != 0 ? terminal_text(text) : text);
}

void throw_lost_table() {
  throw MachineError(
      "cannot write the table to standard output; all runs are saved: repeat the command, or pass --json-file");
}

TextOutput::TextOutput() : terminal_(isatty(STDOUT_FILENO) != 0) {}

void TextOutput::write(std::string_view text) {
  if (!terminal_) return put(text);
  partial_character_ += text;
  const std::size_t whole = partial_character_.size() - incomplete_bytes(partial_character_);
  put(terminal_text(std::string_view(partial_character_).substr(0, whole)));
  partial_character_.erase(0, whole);
}

void TextOutput::finish() {
  put(terminal_text(partial_character_));
  partial_character_.clear();
  std::fflush(stdout);
}

}  // namespace furlong::command_line
