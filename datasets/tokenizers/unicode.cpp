#include "datasets/tokenizers/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong::unicode {
namespace {

utf8proc_category_t category(char32_t character) { return utf8proc_category(static_cast<utf8proc_int32_t>(character)); }

bool between(utf8proc_category_t value, utf8proc_category_t first, utf8proc_category_t last) {
  return value >= first && value <= last;
}

}  // namespace

char32_t next(std::string_view text, std::size_t& position) {
  if (const auto first = static_cast<unsigned char>(text[position]); first < 0x80) return ++position, first;
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[position + i]));
  };
  const std::size_t length = foreign::character_bytes(text, position);
  char32_t character = replacement_character;
  switch (length) {
    case 1:
      character = byte(0);
      break;
    case 2:
      character = (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
      break;
    case 3:
      character = (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
      break;
    case 4:
      character = (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
      break;
    default:
      break;
  }
  position += length == 0 ? 1 : length;
  return character;
}

std::size_t length_at(std::string_view text, std::size_t position) {
  const auto first = static_cast<unsigned char>(text[position]);
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

void append(std::string& text, char32_t character) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (character < 0x80) {
    put(character);
  } else if (character < 0x800) {
    put(0xC0 | character >> 6), put(0x80 | (character & 0x3F));
  } else if (character < 0x10000) {
    put(0xE0 | character >> 12), put(0x80 | (character >> 6 & 0x3F)), put(0x80 | (character & 0x3F));
  } else {
    put(0xF0 | character >> 18), put(0x80 | (character >> 12 & 0x3F)), put(0x80 | (character >> 6 & 0x3F)),
        put(0x80 | (character & 0x3F));
  }
}

std::size_t valid_length(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    if (static_cast<unsigned char>(text[position]) < 0x80) {
      ++position;
      continue;
    }
    const std::size_t length = foreign::character_bytes(text, position);
    if (length == 0) break;
    position += length;
  }
  return position;
}

std::string with_replacements(std::string_view text) {
  std::string valid;
  for (std::size_t position = 0; position < text.size();) append(valid, next(text, position));
  return valid;
}

std::size_t count(std::string_view text) {
  std::size_t characters = 0;
  for (const char byte : text) characters += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return characters;
}

bool is_whitespace(char32_t character) {
  if (character < 0x80) return character == ' ' || (character >= '\t' && character <= '\r');
  return character == 0x85 || character == 0xA0 || character == 0x1680 ||
         (character >= 0x2000 && character <= 0x200A) || character == 0x2028 || character == 0x2029 ||
         character == 0x202F || character == 0x205F || character == 0x3000;
}

bool is_number(char32_t character) {
  if (character < 0x80) return character >= '0' && character <= '9';
  return between(category(character), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool is_mark(char32_t character) { return between(category(character), UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME); }

bool is_nonspacing_mark(char32_t character) { return category(character) == UTF8PROC_CATEGORY_MN; }

bool is_format_or_control(char32_t character) {
  if (character < 0x80) return character < 0x20 || character == 0x7F;
  const utf8proc_category_t value = category(character);
  return value == UTF8PROC_CATEGORY_CC || value == UTF8PROC_CATEGORY_CF || value == UTF8PROC_CATEGORY_CO;
}

bool is_word(char32_t character) {
  const utf8proc_category_t value = category(character);
  if (between(value, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_NL) ||  // L*, M*, Nd, Nl are consecutive
      value == UTF8PROC_CATEGORY_PC)
    return true;
  // Join controls, and letters in circles and squares, which are alphabetic symbols.
  constexpr std::pair<char32_t, char32_t> others[] = {
      {0x200C, 0x200D}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  return std::any_of(std::begin(others), std::end(others),
                     [&](const auto& range) { return character >= range.first && character <= range.second; });
}

bool is_punctuation(char32_t character) {
  if (character < 0x80) {
    return (character >= '!' && character <= '/') || (character >= ':' && character <= '@') ||
           (character >= '[' && character <= '`') || (character >= '{' && character <= '~');
  }
  return between(category(character), UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

std::size_t cluster_end(std::string_view text, std::size_t begin) {
  utf8proc_int32_t state = 0;
  std::size_t end = begin;
  char32_t last = next(text, end);
  for (std::size_t position = end; position < text.size(); end = position) {
    const char32_t character = next(text, position);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last), static_cast<utf8proc_int32_t>(character),
                                         &state) != 0)
      return end;
    last = character;
  }
  return end;
}

namespace {

/// Sorts each run of marks by combining class, stably: the Canonical Ordering Algorithm (Unicode, section 3.11).
/// utf8proc exchanges neighbors instead, in time quadratic in the run.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto class_of = [](utf8proc_int32_t character) { return utf8proc_get_property(character)->combining_class; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    const auto is_mark = [&](utf8proc_int32_t character) { return character >= 0x300 && class_of(character) != 0; };
    begin = std::find_if(begin, characters.end(), is_mark);
    const auto end = std::find_if_not(begin, characters.end(), is_mark);
    std::stable_sort(begin, end, [&](auto a, auto b) { return class_of(a) < class_of(b); });
    begin = end;
  }
}

}  // namespace

std::string normalize(std::string_view text, Form form) {
  if (std::all_of(text.begin(), text.end(), [](char letter) { return static_cast<unsigned char>(letter) < 0x80; }))
    return std::string(text);
  int options = UTF8PROC_STABLE;
  options |= form == Form::nfc || form == Form::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::nfkc || form == Form::nfkd) options |= UTF8PROC_COMPAT;
  const auto chosen = static_cast<utf8proc_option_t>(options);
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size() + 1);
  std::array<utf8proc_int32_t, 32> parts{};  // Unicode's longest decomposition has 18
  int boundary = 0;
  for (std::size_t position = 0; position < text.size();) {
    const auto character = static_cast<utf8proc_int32_t>(next(text, position));
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(character, parts.data(), std::ssize(parts), chosen, &boundary);
    require(count >= 0 && count <= std::ssize(parts), "U+{:04X} cannot be normalized: {}", character,
            utf8proc_errmsg(count));
    characters.insert(characters.end(), parts.begin(), parts.begin() + count);
  }
  order_marks(characters);
  const auto length = std::ssize(characters);
  characters.push_back(0);  // room for the NUL at the end
  const utf8proc_ssize_t bytes = utf8proc_reencode(characters.data(), length, chosen);
  require(bytes >= 0, "text of {} bytes cannot be normalized: {}", text.size(), utf8proc_errmsg(bytes));
  return std::string(reinterpret_cast<const char*>(characters.data()), static_cast<std::size_t>(bytes));
}

std::string lowercase(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t position = 0; position < text.size();) {
    const char32_t character = next(text, position);
    if (character == 0x130) {  // the only letter whose lower case has two characters: i and a dot above
      lower += "i\u0307";
    } else if (character < 0x80) {
      lower += static_cast<char>(character >= 'A' && character <= 'Z' ? character + 32 : character);
    } else {
      append(lower, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))));
    }
  }
  return lower;
}

}  // namespace furlong::unicode
