#include "datasets/tokenizers/normalization_map.h"

#include <cstring>

#include "datasets/tokenizers/unicode.h"
#include "datasets/tokenizers/wire_format.h"
#include "framework/core/error.h"

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

void check_normalization_maps(std::string_view model, std::string_view origin) {
  // As text may grow elsewhere (text_growth.h). SentencePiece itself has no limit, and its own maps need 33 bytes.
  constexpr std::size_t max_replacement_bytes = 64;
  constexpr std::uint64_t normalizer_spec = 3, denormalizer_spec = 5, precompiled_charsmap = 2;
  for (WireFields fields(model, origin); fields.next();) {
    if (fields.field() != normalizer_spec && fields.field() != denormalizer_spec) continue;
    for (WireFields inner(fields.bytes(), origin); inner.next();) {
      if (inner.field() != precompiled_charsmap || inner.bytes().empty()) continue;
      const auto map = NormalizationMap::parse(inner.bytes());
      if (!map)
        throw UserError(
            "{}: not a SentencePiece model (its precompiled_charsmap is damaged); download or copy it again", origin);
      if (map->has_text_of_more_than(max_replacement_bytes))
        throw UserError("{}: its precompiled_charsmap replaces a character by more than {} bytes", origin,
                        max_replacement_bytes);
    }
  }
}

}  // namespace furlong
