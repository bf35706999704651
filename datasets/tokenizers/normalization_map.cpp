#include "datasets/tokenizers/normalization_map.h"

#include <algorithm>
#include <cstring>

#include "datasets/tokenizers/unicode.h"

namespace furlong {

/// Calls use(value) for the value of each leaf. Returns false as soon as a node is outside of the array, or if `use`
/// returns false.
template <class Use>
bool NormalizationMap::walk(const Use& use) const {
  if (units_.empty()) return false;
  std::vector<bool> known(units_.size(), false);
  std::vector<std::size_t> open;
  const auto reach = [&](std::size_t node) {
    if ((node | 255) >= units_.size()) return false;  // a search may read any of its 256 children
    if (!known[node]) open.push_back(node);
    known[node] = true;
    return true;
  };
  if (!reach(offset(units_[0]))) return false;
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const std::size_t child = node ^ byte;
      const std::uint32_t unit = units_[child];
      if ((unit & 0x800000FF) != byte) continue;  // not a child of this node, or the value of a leaf
      const std::size_t next = child ^ offset(unit);
      if (!reach(next)) return false;
      if (has_leaf(unit) && !use(value_at(next))) return false;
    }
  }
  return true;
}

bool NormalizationMap::is_closed() const {
  return walk([&](std::size_t value) { return value < texts_.size(); });
}

bool NormalizationMap::is_utf8() const {
  if (unicode::valid_length(texts_) != texts_.size()) return false;
  return walk([&](std::size_t value) { return (static_cast<unsigned char>(texts_[value]) & 0xC0) != 0x80; });
}

bool NormalizationMap::has_text_of_more_than(std::size_t bytes) const {
  return !walk([&](std::size_t value) { return ::strnlen(texts_.c_str() + value, bytes + 1) <= bytes; });
}

bool NormalizationMap::may_match_more_than(std::size_t entries) const {
  enum State : std::uint8_t { unseen, open, done };
  struct Step {
    std::size_t node;
    std::uint32_t byte;  // the next child
  };
  std::vector<State> states(units_.size(), unseen);
  std::vector<std::size_t> most(units_.size(), 0);  // entries on a path from the node
  std::vector<Step> path{{offset(units_[0]), 0}};
  states[path.back().node] = open;
  while (!path.empty()) {
    Step& step = path.back();
    const std::size_t node = step.node;
    if (step.byte == 256) {
      states[node] = done;
      path.pop_back();
      continue;
    }
    const std::size_t child = node ^ step.byte;
    const std::uint32_t unit = units_[child];
    const std::size_t next = child ^ offset(unit);
    const bool is_empty = next == node && !has_leaf(unit);  // an unused unit, which reads as a NUL
    if ((unit & 0x800000FF) != step.byte || is_empty) {
      ++step.byte;
    } else if (states[next] == open) {
      return true;
    } else if (states[next] == unseen) {
      states[next] = open;
      path.push_back({next, 0});
    } else {
      most[node] = std::max(most[node], most[next] + (has_leaf(unit) ? 1 : 0));
      if (most[node] > entries) return true;
      ++step.byte;
    }
  }
  return false;
}

std::optional<NormalizationMap> NormalizationMap::parse(std::string_view map) {
  std::uint32_t trie_bytes = 0;
  if (map.size() <= sizeof(trie_bytes)) return std::nullopt;
  std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
  map.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes >= map.size() || trie_bytes % 4 != 0) return std::nullopt;
  NormalizationMap parsed;
  parsed.units_.resize(trie_bytes / 4);
  if (trie_bytes > 0) std::memcpy(parsed.units_.data(), map.data(), trie_bytes);
  parsed.texts_ = map.substr(trie_bytes);
  if (parsed.texts_.back() != '\0' || !parsed.is_closed()) return std::nullopt;
  return parsed;
}

std::optional<std::string_view> NormalizationMap::find(std::string_view text) const {
  std::size_t node = offset(units_[0]);
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const std::uint32_t unit = units_[node ^ byte];
    if (byte == 0 || (unit & 0x800000FF) != byte) return std::nullopt;
    node = node ^ byte ^ offset(unit);
    if (has_leaf(unit)) return texts_.c_str() + value_at(node);
  }
  return std::nullopt;
}

}  // namespace furlong
