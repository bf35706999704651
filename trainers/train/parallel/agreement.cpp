#include "trainers/train/parallel/agreement.h"

#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "datasets/tokenized_dataset.h"
#include "framework/core/error.h"
#include "framework/core/json_output.h"
#include "framework/core/version.h"

namespace furlong {
namespace {

using Json = nlohmann::ordered_json;

/// Keys whose values may differ between hosts. They must still be set on all ranks or on none.
bool may_differ(const std::string& key) {
  static const std::vector<std::string> own{"/data/dataset", "/run_directory", "/threads",
                                            "/device",       "/model/weights", "/teacher/checkpoint"};
  const bool is_source = key.starts_with("/data/sources/") && key.ends_with("/dataset");
  return is_source || key.starts_with("/log/") || std::find(own.begin(), own.end(), key) != own.end();
}

bool is_given(const Json& value) { return !value.is_null() && value != ""; }

/// Returns the tokens at both ends of a split.
std::vector<std::int32_t> ends(const TokenizedDataset& store, Split split) {
  constexpr std::uint64_t most = 1024;
  const std::uint64_t size = store.size(split), count = std::min(size, most);
  if (count == 0) return {};
  std::vector<std::int32_t> tokens = store.read(split, 0, count);
  const std::vector<std::int32_t> last = store.read(split, size - count, count);
  tokens.insert(tokens.end(), last.begin(), last.end());
  return tokens;
}

template <class T>
std::string hash_of(const std::vector<T>& values) {
  const XXH128_hash_t hash = XXH3_128bits(values.data(), values.size() * sizeof(T));
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

/// Of labeled data: the labels.
Json labels_of(const TokenizedDataset& store) {
  const LabelKind kind = store.label_kind();
  if (kind == LabelKind::numbers) return hash_of(store.label_numbers());
  if (kind == LabelKind::sets) return {hash_of(store.labels()), hash_of(store.label_ends())};
  return hash_of(store.labels());
}

Json description(const Dataset& data) {
  Json json{{"vocabulary", data.vocabulary().to_json()}};
  const auto stores = data.stores();
  for (const Split split : {Split::train, Split::validation}) {
    json["sizes"].push_back(data.size(split));
    if (stores.size() == 1) json["ends"].push_back(ends(*stores.front(), split));
  }
  if (stores.size() == 1 && stores.front()->documents_per_label() > 0) json["labels"] = labels_of(*stores.front());
  if (stores.size() > 1) {
    for (const TokenizedDataset* store : stores) json["mixture"].push_back(description(*store));
    json["weights"] = data.weights();
  }
  return json;
}

Json description(const TrainOptions& options) {
  Json json;
  const bool is_automatic = options.resume == TrainOptions::Resume::automatic;
  json["--resume"] = is_automatic                                    ? "auto"
                     : options.resume == TrainOptions::Resume::never ? "never"
                                                                     : options.checkpoint.string();
  json["--trace"] = options.trace.has_value();
  json["--trace-steps"] = options.trace ? fmt::format("{}-{}", options.trace->first, options.trace->last) : "";
  return json;
}

/// Returns the values of this rank and those of rank 0, both as JSON can represent them.
std::pair<Json, Json> both(const ProcessGroup& group, const Json& values) {
  const std::string here = json_line(values);
  return {Json::parse(here), Json::parse(group.broadcast_text(here))};
}

[[noreturn]] void refuse(const std::string& name, const Json& here, const Json& there) {
  throw UserError(
      "{}: {} on this rank and {} on rank 0; expected equal values on all ranks: start them with the same config and "
      "arguments",
      name, json_line(here), json_line(there));
}

/// Returns the keys of either object, those of `first` first.
std::vector<std::string> keys_of(Json first, const Json& second) {
  first.update(second);
  std::vector<std::string> keys;
  for (const auto& entry : first.items()) keys.push_back(entry.key());
  return keys;
}

Json value_at(const Json& object, const std::string& key) {
  return object.contains(key) ? object.at(key) : Json("nothing");
}

std::string hash_of(const Json& json) {
  const std::string text = json_line(json);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

std::string data_fingerprint(const Dataset& data) {
  Json json = description(data);
  for (const TokenizedDataset* store : data.stores()) {
    const Json provenance = Json::parse(store->provenance(), nullptr, false);
    if (provenance.is_object() && provenance.contains("sources")) {
      for (const Json& source : provenance["sources"])
        if (source.is_object() && source.contains("xxh3_64") && source["xxh3_64"].is_string())
          json["sources"].push_back(source["xxh3_64"]);
    }
  }
  return hash_of(json);
}

void check_same(const ProcessGroup& group, const Json& values) {
  if (group.is_alone()) return;
  const auto [here, first] = both(group, values);
  for (const std::string& name : keys_of(first, here)) {
    const Json own = value_at(here, name), other = value_at(first, name);
    if (own != other) refuse(name, own, other);
  }
}

std::string this_program() { return fmt::format("{} ({})", version(), commit()); }

void check_same_program(const ProcessGroup& group, const std::string& program) {
  if (group.is_alone()) return;
  const std::string first = group.broadcast_text(program);
  if (program != first)
    throw UserError(
        "this rank runs furlong {} and rank 0 furlong {}; expected the same program: install it on all hosts", program,
        first);
}

void check_agreement(const ProcessGroup& group, const Settings& settings, const Dataset& data,
                     const TrainOptions* options) {
  if (group.is_alone()) return;
  const auto [own, first] = both(group, {{"settings", to_json(settings)}, {"data", data_fingerprint(data)}});
  const Json here = own["settings"].flatten(), there = first["settings"].flatten();
  for (const std::string& key : keys_of(there, here)) {
    const bool is_in_both = here.contains(key) && there.contains(key);
    if (is_in_both && (may_differ(key) ? is_given(here[key]) == is_given(there[key]) : here[key] == there[key]))
      continue;
    std::string name = key.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    refuse(name, value_at(here, key), value_at(there, key));
  }
  if (own["data"] != first["data"])
    throw UserError(
        "data.dataset: {}: differs from the data of rank 0; expected the same dataset, or a copy of it, on all ranks",
        data.path());
  if (options) check_same(group, description(*options));
}

void check_same_start(const ProcessGroup& group, const std::string& digest, const std::filesystem::path& path) {
  const std::string first = group.broadcast_text(digest);
  if (first != digest)
    throw UserError(
        "{}: contains {}, but rank 0 has loaded {}; expected the same checkpoint, or a copy of it, on all ranks",
        path.string(), digest, first);
  group.barrier();
}

}  // namespace furlong
