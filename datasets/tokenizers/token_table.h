#pragma once
// Maps tokens to ids and ids to tokens.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace furlong {

/// Returns a seed drawn at program start, so that a file cannot choose colliding keys.
std::uint64_t hash_seed();

/// Hash for maps with text keys; lookups do not construct a std::string.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const;
};

/// A bidirectional map of tokens and ids.
class TokenTable {
 public:
  /// Adds a token. Throws UserError, starting with `origin`, if the id has another token, if the token has another id,
  /// or if the id is 2^24 or more. Larger ids mean a damaged file, for which no memory is allocated.
  void add(std::string_view token, std::int32_t id, std::string_view origin);
  /// Returns the largest id plus 1. Some ids may have no token.
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  /// Returns the token of an id below size(); empty if the id has none.
  const std::string& token(std::int32_t id) const { return tokens_[static_cast<std::size_t>(id)]; }
  /// Returns whether the id has a token.
  bool has(std::int32_t id) const { return id >= 0 && id < size() && used_[static_cast<std::size_t>(id)]; }
  /// Returns the id of a token, or nullopt if it is unknown.
  std::optional<std::int32_t> find(std::string_view token) const;

 private:
  std::vector<std::string> tokens_;
  std::vector<bool> used_;
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> ids_;
};

}  // namespace furlong
