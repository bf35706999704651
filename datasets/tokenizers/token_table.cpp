#include "datasets/tokenizers/token_table.h"

#define XXH_INLINE_ALL
#include <sys/random.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

#include "framework/core/error.h"

namespace furlong {

std::uint64_t hash_seed() {
  static const std::uint64_t seed = [] {
    std::uint64_t drawn = 0;
    if (::getrandom(&drawn, sizeof drawn, 0) != static_cast<ssize_t>(sizeof drawn))
      throw MachineError("cannot get random numbers from the system: {}", std::strerror(errno));
    return drawn;
  }();
  return seed;
}

std::size_t TextHash::operator()(std::string_view text) const {
  static const std::uint64_t seed = hash_seed();
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

void TokenTable::add(std::string_view token, std::int32_t id, std::string_view origin) {
  constexpr std::size_t max_ids = std::size_t{1} << 24;
  if (id < 0 || static_cast<std::size_t>(id) >= max_ids)
    throw UserError("{}: the token '{}' has the id {}; expected 0 to {}", origin, token, id, max_ids - 1);
  const auto [found, added] = ids_.try_emplace(std::string(token), id);
  if (!added) {
    if (found->second == id) return;
    throw UserError("{}: the token '{}' has two ids, {} and {}", origin, token, found->second, id);
  }
  const auto place = static_cast<std::size_t>(id);
  if (place >= tokens_.size()) {
    tokens_.resize(place + 1);
    used_.resize(place + 1);
  }
  if (used_[place])
    throw UserError("{}: the id {} belongs to two tokens, '{}' and '{}'", origin, id, tokens_[place], token);
  used_[place] = true;
  tokens_[place] = token;
}

std::optional<std::int32_t> TokenTable::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace furlong
