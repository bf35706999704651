#pragma once
// Tokens by id and ids by token.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace furlong {

/// Drawn when the program starts: a file cannot choose keys that collide in hash tables.
std::uint64_t hash_seed();

/// For maps with text as key, into which one looks without making a std::string.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const;
};

class TokenTable {
 public:
  /// Throws UserError, beginning with `origin`, where the id has another token, the token another id, or the id is 2^24
  /// or more (a damaged file, which is not given memory for it).
  void add(std::string_view token, std::int32_t id, std::string_view origin);
  /// Ids are 0 to size() - 1; some may have no token.
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  const std::string& token(std::int32_t id) const { return tokens_[static_cast<std::size_t>(id)]; }
  bool has(std::int32_t id) const { return id >= 0 && id < size() && used_[static_cast<std::size_t>(id)]; }
  std::optional<std::int32_t> find(std::string_view token) const;

 private:
  std::vector<std::string> tokens_;
  std::vector<bool> used_;
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> ids_;
};

}  // namespace furlong
