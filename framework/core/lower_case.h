#pragma once
#include <cctype>
#include <string>

namespace furlong {

/// Returns the text with ASCII letters in lower case.
inline std::string lower_case(std::string text) {
  for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return text;
}

}  // namespace furlong
