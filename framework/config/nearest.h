#pragma once
// Suggestions for misspelled words, as in "unknown key 'lerning_rate'; did you mean learning_rate?".
#include <cstddef>
#include <string>
#include <vector>

namespace furlong::config {

/// Returns the least number of edits that turn `a` into `b`. An edit inserts, deletes or replaces one byte, or swaps
/// two neighbors; no byte is edited twice (optimal string alignment, Damerau 1964).
std::size_t edit_distance(const std::string& a, const std::string& b);

/// Returns the candidate with the fewest edits to `word`, ignoring letter case. A word of n letters may have up to n /
/// 3 edits: one for 4 or 5 letters, two for 6 to 8; words of up to three letters none. If no candidate is that close,
/// returns the first one that starts with `word` or that `word` starts with, for prefixes of at least three letters; or
/// that is `word` without its vowels ("txt" for text). Otherwise returns "".
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace furlong::config
