#pragma once
// Escapes names from foreign files, which may contain any bytes, for single-line messages.
#include <cstddef>
#include <string>
#include <string_view>

#include "framework/core/error.h"
#include "framework/core/file_error.h"

namespace furlong::foreign {

/// Returns the bytes of the character that starts at `at`, in UTF-8 as is_utf8() defines it; 0 if none does.
std::size_t character_bytes(std::string_view text, std::size_t at);

/// Whether the bytes are valid UTF-8 (RFC 3629): shortest forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view bytes);

/// Returns the text with control characters, quotes and invalid UTF-8 as \xNN, truncated after about 100 characters.
std::string printable(std::string_view bytes);

/// Returns a whole message with control characters and invalid UTF-8 as \xNN, truncated after about `longest` bytes.
/// Quotes stay.
std::string single_line(std::string_view bytes, std::size_t longest = 2000);

/// Returns the result of `action`. If it throws a UserError, rethrows it with the message as a single_line(), whatever
/// bytes of a file the message quotes. An UnusableFile stays one.
template <class Action>
auto with_single_line_errors(const Action& action) {
  try {
    return action();
  } catch (const UnusableFile& error) {
    throw UnusableFile("{}", single_line(error.what()));
  } catch (const UserError& error) {
    throw UserError("{}", single_line(error.what()));
  }
}

}  // namespace furlong::foreign
