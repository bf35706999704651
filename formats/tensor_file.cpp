#include "formats/tensor_file.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "formats/byte_file.h"
#include "formats/gguf.h"
#include "formats/tensor_table.h"
#include "framework/config/nearest.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

/// Returns the first `bytes` bytes of a file, fewer if it is shorter.
std::string first_bytes(const fs::path& path, std::size_t bytes) {
  const foreign::ByteFile file(path);
  std::string text(std::min<std::uint64_t>(bytes, file.size()), '\0');
  file.read_at(0, text.data(), text.size());
  return text;
}

/// Returns the only file in `directory` that ends in .gguf; nothing if there is none. Throws UserError if there are
/// several.
std::optional<fs::path> only_gguf(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".gguf") found.push_back(entry->path());
  }
  if (error) throw MachineError("{}: cannot list the directory: {}", directory.string(), error.message());
  if (found.empty()) return std::nullopt;
  if (found.size() > 1) {
    std::sort(found.begin(), found.end());
    throw UserError("{}: has {} GGUF files ({}, {}, ...); give one of them", directory.string(), found.size(),
                    foreign::printable(found[0].filename().string()), foreign::printable(found[1].filename().string()));
  }
  return found.front();
}

std::unique_ptr<TensorFile> open_directory(const fs::path& directory) {
  const auto has = [&](const char* name) { return foreign::exists(directory / name); };
  if (has("model.safetensors") || has("model.safetensors.index.json")) return open_safetensors(directory);
  if (has("pytorch_model.bin") || has("pytorch_model.bin.index.json")) return open_pytorch(directory);
  if (const auto gguf = only_gguf(directory)) return open_gguf(*gguf);
  throw UserError(
      "{}: has no weights; expected model.safetensors, pytorch_model.bin, shards of either with index.json, or a GGUF "
      "file",
      directory.string());
}

}  // namespace

const ForeignTensor* TensorFile::find(std::string_view name) const {
  const auto& all = tensors();
  const auto found = std::lower_bound(all.begin(), all.end(), name,
                                      [](const ForeignTensor& a, std::string_view b) { return a.name < b; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

std::unique_ptr<TensorFile> open_tensor_file(const fs::path& path) {
  if (foreign::is_directory(path)) return open_directory(path);
  const std::string beginning = first_bytes(path, 9);
  if (beginning.starts_with("GGUF")) return open_gguf(path);
  // A safetensors file starts with an eight-byte length below 2^32, then JSON. The length may look like another
  // format's magic, so this is tested first.
  if (beginning.size() == 9 && beginning.substr(4) == std::string_view("\0\0\0\0{", 5)) return open_safetensors(path);
  const bool pickle = beginning.size() > 1 && beginning[0] == '\x80' && beginning[1] >= 2 && beginning[1] <= 5;
  if (beginning.starts_with("PK") || pickle) return open_pytorch(path);
  return open_safetensors(path);
}

namespace foreign {

void throw_missing_tensor(const TensorFile& file, std::string_view name) {
  // The search for the nearest name is linear in the names. Models have thousands; hostile files may have millions.
  constexpr std::size_t many = 20000;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(many, file.tensors().size()); ++i) names.push_back(file.tensors()[i].name);
  const std::string near = name.size() < 256 ? config::nearest(std::string(name), names) : "";
  throw UserError("{}: has no tensor '{}'{}", file.path(), printable(name),
                  near.empty() ? "" : fmt::format("; did you mean '{}'?", printable(near)));
}

void append_extent(const std::string& path, std::string_view tensor, Shape& shape, std::uint64_t extent) {
  if (shape.rank() == Shape::max_rank) {
    throw UserError("{}: tensor '{}' has more than {} dimensions, which is not supported", path, printable(tensor),
                    Shape::max_rank);
  }
  // An extent of zero must not hide that the other extents overflow: computing strides would then overflow.
  std::int64_t product = 1;
  for (const std::int64_t known : shape) product *= std::max<std::int64_t>(known, 1);
  if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
      __builtin_mul_overflow(product, std::max<std::int64_t>(static_cast<std::int64_t>(extent), 1), &product)) {
    throw UserError(
        "{}: damaged: tensor '{}' has more than 2^63 elements (one extent is {}); download or copy it again", path,
        printable(tensor), extent);
  }
  shape.push_back(static_cast<std::int64_t>(extent));
}

}  // namespace foreign

}  // namespace furlong
