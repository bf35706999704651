#include "framework/io/json_depth.h"

#include "framework/core/error.h"

namespace furlong::foreign {

void check_json_depth(std::string_view text, std::string_view origin) {
  constexpr int deepest = 64;
  int depth = 0;
  bool inside_text = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == '\\') ++i;
    if (letter == '"') inside_text = !inside_text;
    if (inside_text) continue;
    if (letter == '{' || letter == '[') ++depth;
    if (letter == '}' || letter == ']') --depth;
    if (depth > deepest) throw UserError("{}: nested more than {} deep", origin, deepest);
  }
}

}  // namespace furlong::foreign
