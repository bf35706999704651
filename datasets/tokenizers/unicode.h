#pragma once
// Characters as tokenizers see them: UTF-8, categories, normal forms and case.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace furlong::unicode {

constexpr char32_t replacement_character = 0xFFFD;

/// The character that begins at `text[position]`, with `position` moved behind it. Of a byte that begins no character
/// U+FFFD, and one byte on.
char32_t next(std::string_view text, std::size_t& position);
/// Bytes of the character that begins at `position` of valid UTF-8.
std::size_t length_at(std::string_view text, std::size_t position);
void append(std::string& text, char32_t character);
/// Length of the longest beginning of `text` that is valid UTF-8 (no surrogates, no overlong forms, nothing beyond
/// U+10FFFF).
std::size_t valid_length(std::string_view text);
/// The same text with U+FFFD in place of each byte that belongs to no character.
std::string with_replacements(std::string_view text);
std::size_t count(std::string_view text);

/// Categories are those of Unicode 15 (utf8proc). Libraries that other programs tokenize with have tables of other
/// years; they differ in what they say of characters assigned since.
bool is_whitespace(char32_t character);         ///< the property White_Space
bool is_number(char32_t character);             ///< N*
bool is_mark(char32_t character);               ///< M*
bool is_nonspacing_mark(char32_t character);    ///< Mn
bool is_format_or_control(char32_t character);  ///< Cc, Cf, Co; unassigned characters are not
bool is_word(char32_t character);               ///< what \w matches: L*, M*, Nd, Nl, Pc
bool is_punctuation(char32_t character);        ///< P*, and the signs of ASCII that are S* ($ + < = > ^ ` | ~)

enum class Form { nfc, nfd, nfkc, nfkd };
std::string normalize(std::string_view text, Form form);
/// Each character on its own: no rule of a language, no final sigma.
std::string lowercase(std::string_view text);

}  // namespace furlong::unicode
