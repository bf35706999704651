#include "framework/config/nearest.h"

#include <algorithm>
#include <string_view>

#include "framework/core/lower_case.h"

namespace furlong::config {

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

namespace {
std::string without_vowels(std::string text) {
  std::erase_if(text, [](char c) { return std::string_view("aeiou").find(c) != std::string_view::npos; });
  return text;
}
}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string wanted = lower_case(word);
  if (wanted.size() > 200) return "";  // the algorithm is quadratic in the length, and no key is that long
  std::string best;
  std::size_t best_distance =
      wanted.size() / 3 + (wanted.size() > 3 ? 1 : 0);  // with up to three letters, any edit makes another word
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(wanted, lower_case(candidate));
    if (distance < best_distance && distance < candidate.size()) best_distance = distance, best = candidate;
  }
  if (!best.empty() || wanted.size() < 3) return best;
  for (const auto& candidate : candidates) {
    const std::string known = lower_case(candidate);
    if (known.starts_with(wanted) || (known.size() >= 3 && wanted.starts_with(known))) return candidate;
  }
  for (const auto& candidate : candidates) {
    if (without_vowels(lower_case(candidate)) == wanted) return candidate;
  }
  return "";
}

}  // namespace furlong::config
