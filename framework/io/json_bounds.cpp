#include "framework/io/json_bounds.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "framework/core/error.h"

namespace furlong::foreign {
namespace {

constexpr std::size_t max_depth = 64;
constexpr std::uint64_t max_comparisons = std::uint64_t{1} << 29;

/// Returns the key comparisons of building an ordered document. The parser reports unmatched brackets.
std::uint64_t comparisons_in(std::string_view text, std::string_view origin, std::size_t deepest = max_depth) {
  std::array<std::uint64_t, max_depth + 1> keys{};  // keys so far of the object at each depth
  std::uint64_t comparisons = 0;
  std::size_t depth = 0;
  std::size_t text_begin = 0, text_bytes = 0;  // of the last text
  bool inside_text = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == '\\') ++i;
    if (letter == '"') {
      inside_text = !inside_text;
      if (inside_text)
        text_begin = i;
      else
        text_bytes = i - text_begin;
    }
    if (inside_text) continue;
    // Keys of equal length are compared byte for byte.
    if (letter == ':') comparisons += keys[depth]++ * (1 + text_bytes / 128);
    if (letter == '{' || letter == '[') {
      if (depth == deepest) throw UserError("{}: nested more than {} deep", origin, deepest);
      keys[++depth] = 0;
    }
    if ((letter == '}' || letter == ']') && depth > 0) --depth;
  }
  return comparisons;
}

}  // namespace

void check_json_depth(std::string_view text, std::string_view origin, std::size_t levels_around) {
  comparisons_in(text, origin, max_depth - levels_around);
}

void check_ordered_json(std::string_view text, std::string_view origin) {
  if (comparisons_in(text, origin) > max_comparisons)
    throw UserError(
        "{}: objects have too many or too long keys; expected at most 32,768 in one object, fewer in several", origin);
}

}  // namespace furlong::foreign
