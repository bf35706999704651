#pragma once
// Suggestions for misspelt words.
#include <cstddef>
#include <string>
#include <vector>

namespace furlong::config {

/// Returns the number of single-character insertions, deletions, substitutions and swaps of neighbours that turn `a`
/// into `b` (optimal string alignment, Damerau 1964; each substring edited once).
std::size_t edit_distance(const std::string& a, const std::string& b);

/// Returns the candidate closest to `word`, ignoring letter case, or "" if none is close. Close means at most one edit
/// per three letters, with no edit in words of up to three letters, or one word being a prefix (three letters or more)
/// of the other.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace furlong::config
