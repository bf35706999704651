#include "datasets/tokenizers/token_table.h"

#define XXH_INLINE_ALL
#include <sys/random.h>
#include <xxhash.h>

#include <algorithm>
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
  const auto [other, is_new] = tokens_.try_emplace(id, &found->first);
  if (!is_new) throw UserError("{}: the id {} belongs to two tokens, '{}' and '{}'", origin, id, *other->second, token);
  size_ = std::max(size_, id + 1);
}

const std::string& TokenTable::token(std::int32_t id) const {
  static const std::string none;
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? none : *found->second;
}

std::optional<std::int32_t> TokenTable::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace furlong
