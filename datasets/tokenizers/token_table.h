#pragma once
// Maps tokens to ids and ids to tokens.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace furlong {

/// Returns a seed drawn at program start, so that a file cannot choose colliding keys.
std::uint64_t hash_seed();

/// Hash for maps with text keys; lookups do not construct a std::string.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const;
};

/// A bidirectional map of tokens and ids. Its memory depends on the number of tokens, not on the largest id.
class TokenTable {
 public:
  TokenTable() = default;
  TokenTable(TokenTable&&) = default;
  TokenTable& operator=(TokenTable&&) = default;

  /// Adds a token. Throws UserError, starting with `origin`, if the id has another token, if the token has another id,
  /// or if the id is 2^24 or more.
  void add(std::string_view token, std::int32_t id, std::string_view origin);
  /// Returns the largest id plus 1. Some ids may have no token.
  std::int32_t size() const { return size_; }
  /// Returns the token of an id; empty if the id has none.
  const std::string& token(std::int32_t id) const;
  /// Returns whether the id has a token.
  bool has(std::int32_t id) const { return tokens_.contains(id); }
  /// Returns the id of a token, or nullopt if it is unknown.
  std::optional<std::int32_t> find(std::string_view token) const;

 private:
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> ids_;
  std::unordered_map<std::int32_t, const std::string*> tokens_;  // keys of ids_
  std::int32_t size_ = 0;
};

}  // namespace furlong
