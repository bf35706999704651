#pragma once
// Names out of foreign files, which may hold any bytes, on their way into messages of one line.
#include <cstddef>
#include <string>
#include <string_view>

#include "framework/core/error.h"

namespace furlong::foreign {

/// Whether the bytes are UTF-8 as RFC 3629 has it: shortest forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::string_view bytes);

/// The text with control characters, quotes and what is not UTF-8 as \xNN, cut after about 100 characters.
std::string printable(std::string_view bytes);

/// The same of a whole message: quotes stay, and it is cut after about `longest` bytes.
std::string single_line(std::string_view bytes, std::size_t longest = 2000);

/// What `action` returns. A UserError that it throws is thrown on with a message that is a single_line(): whatever a
/// file says in it.
template <class Action>
auto with_single_line_errors(const Action& action) {
  try {
    return action();
  } catch (const UserError& error) {
    throw UserError("{}", single_line(error.what()));
  }
}

}  // namespace furlong::foreign
