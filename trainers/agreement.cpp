#include "trainers/agreement.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "datasets/token_store.h"
#include "framework/core/error.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

/// What may be another on another host.
bool may_differ(const std::string& key) {
  static const std::vector<std::string> own{"/data/store", "/run_directory", "/threads",
                                            "/device",     "/model/weights", "/teacher/checkpoint"};
  return key.starts_with("/log/") || std::find(own.begin(), own.end(), key) != own.end();
}

/// Tokens at both ends of a split.
std::vector<std::int32_t> ends(const TokenStore& store, Split split) {
  constexpr std::uint64_t most = 1024;
  const std::uint64_t size = store.size(split), count = std::min(size, most);
  if (count == 0) return {};
  std::vector<std::int32_t> tokens = store.read(split, 0, count);
  const std::vector<std::int32_t> last = store.read(split, size - count, count);
  tokens.insert(tokens.end(), last.begin(), last.end());
  return tokens;
}

Json description(const Dataset& data) {
  Json json{{"vocabulary", data.vocabulary().to_json()}};
  const auto* store = dynamic_cast<const TokenStore*>(&data);
  for (const Split split : {Split::train, Split::validation}) {
    json["sizes"].push_back(data.size(split));
    if (store != nullptr) json["ends"].push_back(ends(*store, split));
  }
  return json;
}

}  // namespace

void check_agreement(const ProcessGroup& group, const Settings& settings, const Dataset& data) {
  if (group.is_alone()) return;
  const Json own{{"settings", to_json(settings)}, {"data", description(data)}};
  const Json first = Json::parse(group.from_first(own.dump()));
  const Json here = own["settings"].flatten(), there = first["settings"].flatten();
  for (const auto& [key, value] : here.items()) {
    if (may_differ(key) || (there.contains(key) && there[key] == value)) continue;
    std::string name = key.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    throw UserError("{}: {} here, and {} in rank 0; expected the same in all processes: start them with one config and the same --set",
                    name, value.dump(), there.contains(key) ? there[key].dump() : "nothing");
  }
  if (own["data"] != first["data"])
    throw UserError("data.store: {}: holds other data than what rank 0 reads; expected the same store, or a copy of it, in all processes",
                    data.path());
}

}  // namespace furlong
