#pragma once
// The compiled normalization of SentencePiece models ("precompiled_charsmap"): texts and what replaces them.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace furlong {

/// A precompiled_charsmap: the size of a trie in bytes (32 bits), the trie, and texts that end with NUL. The trie is an
/// array of 32-bit units (Yata et al. 2007, "A compact static double-array keeping character codes"): the child of node
/// p for byte b is at p ^ b and leads to (p ^ b) ^ offset.
class NormalizationMap {
 public:
  /// Returns nothing if some text could lead a search out of the trie or of the texts.
  static std::optional<NormalizationMap> parse(std::string_view map);
  /// Returns what replaces `text`: the entry of its shortest prefix that has one; nothing if no prefix has.
  std::optional<std::string_view> find(std::string_view text) const;
  /// Whether all texts are valid UTF-8 from their first byte on.
  bool is_utf8() const;
  bool has_text_of_more_than(std::size_t bytes) const;
  /// Whether a text could have more than `entries` prefixes with an entry. A map with a cycle has such texts.
  bool may_match_more_than(std::size_t entries) const;

 private:
  NormalizationMap() = default;
  bool is_closed() const;
  template <class Use>
  bool walk(const Use& use) const;
  static std::size_t offset(std::uint32_t unit) {
    return static_cast<std::size_t>(unit >> 10) << ((unit & (1u << 9)) >> 6);
  }
  static bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
  std::size_t value_at(std::size_t node) const { return units_[node] & 0x7FFFFFFF; }

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace furlong
