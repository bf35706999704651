#pragma once
// UTF-8, categories, normal forms and case, as tokenizers define them.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace furlong::unicode {

constexpr char32_t replacement_character = 0xFFFD;

/// Returns the character at `text[position]` and advances `position` past it. For a byte that starts no valid
/// character, returns U+FFFD and advances by one byte.
char32_t next(std::string_view text, std::size_t& position);
/// Returns the length in bytes of the character at `position` of valid UTF-8.
std::size_t length_at(std::string_view text, std::size_t position);
/// Appends the UTF-8 encoding of a character.
void append(std::string& text, char32_t character);
/// Returns the length of the longest prefix of `text` that is valid UTF-8 (no surrogates, no overlong forms, nothing
/// beyond U+10FFFF).
std::size_t valid_length(std::string_view text);
/// Returns the text with U+FFFD instead of each invalid byte.
std::string with_replacements(std::string_view text);
/// Returns the number of characters of valid UTF-8.
std::size_t count(std::string_view text);

/// Categories are those of Unicode 15 (utf8proc). Libraries with tables of another version differ for characters
/// assigned since.
bool is_whitespace(char32_t character);         ///< the property White_Space
bool is_number(char32_t character);             ///< N*
bool is_mark(char32_t character);               ///< M*
bool is_nonspacing_mark(char32_t character);    ///< Mn
bool is_format_or_control(char32_t character);  ///< Cc, Cf, Co; not unassigned characters
bool is_word(char32_t character);               ///< alphabetic, M*, Nd, Pc or a join control (UTS #18, \w)
bool is_punctuation(char32_t character);        ///< P*, and ASCII characters in S* ($ + < = > ^ ` | ~)

/// Returns the end of the extended grapheme cluster (UAX #29), a character with its marks, that begins at `begin`.
std::size_t cluster_end(std::string_view text, std::size_t begin);

enum class Form { nfc, nfd, nfkc, nfkd };
/// Returns the text in a normal form.
std::string normalize(std::string_view text, Form form);
/// Lower-cases each character separately: no language rules, no final sigma.
std::string lowercase(std::string_view text);

}  // namespace furlong::unicode
