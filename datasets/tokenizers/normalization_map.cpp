#include "datasets/tokenizers/normalization_map.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "datasets/tokenizers/wire_format.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

class Trie {
 public:
  Trie(std::string_view bytes, std::size_t text_bytes) : units_(bytes.size() / 4), text_bytes_(text_bytes) {
    if (!units_.empty()) std::memcpy(units_.data(), bytes.data(), 4 * units_.size());
  }

  /// Whether every search stays inside the array, and every result inside the texts.
  bool is_closed() const {
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
        const bool has_leaf = (unit >> 8 & 1) != 0;
        if (has_leaf && (units_[next] & 0x7FFFFFFF) >= text_bytes_) return false;
      }
    }
    return true;
  }

 private:
  static std::size_t offset(std::uint32_t unit) {
    return static_cast<std::size_t>(unit >> 10) << ((unit & (1u << 9)) >> 6);
  }
  std::vector<std::uint32_t> units_;
  std::size_t text_bytes_;
};

bool is_sound(std::string_view map) {
  std::uint32_t trie_bytes = 0;
  if (map.size() <= sizeof(trie_bytes)) return false;
  std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
  map.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes >= map.size() || trie_bytes % 4 != 0) return false;
  const std::string_view texts = map.substr(trie_bytes);
  return texts.back() == '\0' && Trie(map.substr(0, trie_bytes), texts.size()).is_closed();
}

}  // namespace

void check_normalization_maps(std::string_view model, std::string_view origin) {
  constexpr std::uint64_t normalizer_spec = 3, denormalizer_spec = 5, precompiled_charsmap = 2;
  for (WireFields fields(model, origin); fields.next();) {
    if (fields.field() != normalizer_spec && fields.field() != denormalizer_spec) continue;
    for (WireFields inner(fields.bytes(), origin); inner.next();) {
      if (inner.field() == precompiled_charsmap && !inner.bytes().empty() && !is_sound(inner.bytes()))
        throw UserError(
            "{}: not a SentencePiece model (its precompiled_charsmap is damaged); download or copy it again", origin);
    }
  }
}

}  // namespace furlong
