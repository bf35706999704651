#pragma once
// What a misspelt word was probably meant to be.
#include <cstddef>
#include <string>
#include <vector>

namespace furlong::config {

/// Number of single-character insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`
/// (optimal string alignment, Damerau 1964, each substring edited once).
std::size_t edit_distance(const std::string& a, const std::string& b);

/// The candidate closest to `word`, letter case aside, or "" when none is close enough to be worth suggesting: at most
/// one edit per three letters and none in words of up to three, or else one word being the beginning of the other
/// (three letters or more).
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace furlong::config
