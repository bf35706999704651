#include "framework/io/checkpoint_shards.h"
#include "framework/io/json_bounds.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "framework/core/error.h"

namespace furlong {
namespace {

constexpr std::string_view shard_mark = ".shard_";

[[noreturn]] void refuse(const std::string& origin, std::string_view what) {
  throw UserError("{}: its shard index {}; it is damaged or was not written by Furlong; use an earlier checkpoint",
                  origin, what);
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::int64_t elements_of(const std::string& tensor, const std::vector<std::int64_t>& shape, const std::string& origin) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements))
      refuse(origin, "gives tensor '" + tensor + "' an invalid shape");
  return elements;
}

ShardIndex::File file_from(const nlohmann::json& json, const std::string& origin) {
  if (!json.is_object() || !json.value("name", nlohmann::json()).is_string() ||
      !json.value("checksum", nlohmann::json()).is_string())
    refuse(origin, "has a file without name or checksum");
  ShardIndex::File file;
  file.name = json["name"].get<std::string>();
  if (file.name != std::filesystem::path(file.name).filename().string() || !checkpoint_of_shard(file.name))
    refuse(origin, "lists '" + file.name + "', which is not the name of a shard");
  const auto text = json["checksum"].get<std::string>();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), file.checksum, 16);
  if (error != std::errc{} || end != text.data() + text.size())
    refuse(origin, "has a checksum that is not a hexadecimal number");
  return file;
}

ShardIndex::Whole whole_from(const nlohmann::json& json, const std::string& origin) {
  if (!json.is_object() || !json.value("dtype", nlohmann::json()).is_string() ||
      !json.value("shape", nlohmann::json()).is_array())
    refuse(origin, "has a tensor without dtype or shape");
  ShardIndex::Whole whole;
  whole.dtype = json["dtype"].get<std::string>();
  for (const auto& extent : json["shape"]) {
    if (!extent.is_number_integer()) refuse(origin, "has a tensor whose shape is not a list of integers");
    whole.shape.push_back(extent.get<std::int64_t>());
  }
  return whole;
}

}  // namespace

std::filesystem::path shard_path(const std::filesystem::path& checkpoint, int rank, int world_size) {
  return checkpoint.parent_path() /
         fmt::format("{}{}{}_of_{}.h5", checkpoint.stem().string(), shard_mark, rank, world_size);
}

std::optional<std::string> checkpoint_of_shard(const std::string& file_name) {
  const std::size_t mark = file_name.find(shard_mark);
  if (mark == std::string::npos || !file_name.ends_with(".h5")) return std::nullopt;
  const std::string_view numbers =
      std::string_view(file_name).substr(mark + shard_mark.size(), file_name.size() - mark - shard_mark.size() - 3);
  const std::size_t between = numbers.find("_of_");
  if (between == std::string_view::npos || !whole_number(numbers.substr(0, between)) ||
      !whole_number(numbers.substr(between + 4)))
    return std::nullopt;
  return file_name.substr(0, mark);
}

std::string piece_name(const std::string& tensor, std::int64_t first) { return fmt::format("{}@{}", tensor, first); }

std::string ShardIndex::to_json() const {
  nlohmann::ordered_json json;
  json["files"] = nlohmann::ordered_json::array();
  for (const File& file : files)
    json["files"].push_back({{"name", file.name}, {"checksum", fmt::format("{:016x}", file.checksum)}});
  json["tensors"] = nlohmann::ordered_json::object();
  for (const auto& [name, whole] : tensors) json["tensors"][name] = {{"dtype", whole.dtype}, {"shape", whole.shape}};
  return json.dump();
}

ShardIndex ShardIndex::from_json(std::string_view text, const std::string& origin) {
  foreign::check_json_depth(text, origin);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.value("files", nlohmann::json()).is_array() ||
      !json.value("tensors", nlohmann::json()).is_object())
    refuse(origin, "is not an object with files and tensors");
  ShardIndex index;
  std::set<std::string> names;
  for (const auto& item : json["files"]) {
    ShardIndex::File file = file_from(item, origin);
    // A reader opens each shard and reads all of it, so that a repeated one takes time and descriptors.
    if (!names.insert(file.name).second) refuse(origin, "lists '" + file.name + "' twice");
    index.files.push_back(std::move(file));
  }
  for (const auto& [name, whole] : json["tensors"].items()) index.tensors[name] = whole_from(whole, origin);
  return index;
}

std::map<std::string, std::vector<Piece>> assemble(const ShardIndex& index,
                                                   const std::vector<std::map<std::string, std::int64_t>>& found,
                                                   const std::string& origin) {
  std::map<std::string, std::vector<Piece>> pieces;
  for (std::size_t file = 0; file < found.size(); ++file) {
    for (const auto& [name, elements] : found[file]) {
      const std::size_t at = name.rfind('@');
      const auto first = at == std::string::npos ? std::nullopt : whole_number(std::string_view(name).substr(at + 1));
      if (!first || !index.tensors.contains(name.substr(0, at)))
        refuse(origin, fmt::format("does not list '{}', which {} contains", name, index.files[file].name));
      pieces[name.substr(0, at)].push_back({file, name, *first, elements});
    }
  }
  for (const auto& [tensor, whole] : index.tensors) {
    std::vector<Piece>& parts = pieces[tensor];
    std::sort(parts.begin(), parts.end(), [](const Piece& a, const Piece& b) { return a.first < b.first; });
    std::int64_t covered = 0;
    for (const Piece& piece : parts) {
      if (piece.first != covered)
        refuse(origin, fmt::format("misses or repeats elements {} to {} of '{}'", std::min(covered, piece.first),
                                   std::max(covered, piece.first), tensor));
      covered += piece.elements;
    }
    if (covered != elements_of(tensor, whole.shape, origin))
      refuse(origin, fmt::format("has {} elements of '{}', but its shape has another number", covered, tensor));
  }
  return pieces;
}

}  // namespace furlong
