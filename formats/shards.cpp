#include "formats/shards.h"

#include <map>
#include <utility>

#include "formats/byte_file.h"
#include "formats/json_header.h"
#include "formats/tensor_table.h"

namespace furlong::foreign {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t max_index_bytes = 100'000'000;

class Shards final : public TensorTable<TensorFile, const TensorFile*> {
 public:
  Shards(const fs::path& directory, const fs::path& index, const Opener& open)
      : TensorTable(directory.string()), index_(index.string()) {
    const auto weight_map = parse_weight_map(index_, read_index(index));
    std::map<std::string, std::string> file_of;  // tensor -> file name
    for (const auto& [tensor, file] : weight_map) {
      check_file_name(file);
      if (!file_of.emplace(tensor, file).second)
        throw UserError("{}: damaged: lists tensor '{}' twice; download or copy it again", index_, printable(tensor));
      if (!shards_.contains(file)) shards_.emplace(file, open(directory / file));
    }
    std::vector<std::pair<ForeignTensor, const TensorFile*>> found;
    for (const auto& [file, shard] : shards_) {
      for (const ForeignTensor& tensor : shard->tensors()) {
        check_listed(tensor.name, file, file_of);
        found.emplace_back(tensor, shard.get());
      }
    }
    set_tensors(std::move(found));
    for (const auto& [tensor, file] : file_of) {
      if (find(tensor) == nullptr) {
        throw UserError("{}: lists tensor '{}' in {}, which does not contain it; download the shards again", index_,
                        printable(tensor), file);
      }
    }
  }

  void read(const std::string& name, std::span<float> values) const override {
    locate(name, values).second->read(name, values);
  }
  std::vector<std::int64_t> read_integers(const std::string& name) const override {
    return locate(name).second->read_integers(name);
  }

 private:
  static std::string read_index(const fs::path& index) {
    const ByteFile file(index);
    if (file.size() > max_index_bytes)
      throw UserError("{}: has {} bytes, expected a shard index of at most {}", file.path(), file.size(),
                      max_index_bytes);
    std::string text(file.size(), '\0');
    file.read_at(0, text.data(), text.size());
    return text;
  }

  void check_file_name(const std::string& file) const {
    if (file.empty() || file == "." || file == ".." ||
        file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      throw UserError("{}: lists the shard '{}', expected a file in the same directory", index_, printable(file));
    }
  }

  void check_listed(const std::string& tensor, const std::string& file,
                    const std::map<std::string, std::string>& file_of) const {
    const auto listed = file_of.find(tensor);
    if (listed == file_of.end()) {
      throw UserError(
          "{}: does not list tensor '{}', which {} contains; check that index and shards belong to the same model",
          index_, printable(tensor), file);
    }
    if (listed->second != file) {
      throw UserError(
          "{}: lists tensor '{}' in {}, but {} also contains it; check that index and shards belong to the same model",
          index_, printable(tensor), printable(listed->second), printable(file));
    }
  }

  std::string index_;
  std::map<std::string, std::unique_ptr<TensorFile>> shards_;  // file name -> shard
};

}  // namespace

std::unique_ptr<TensorFile> open_in_directory(const fs::path& directory, const std::string& whole, const Opener& open) {
  if (foreign::exists(directory / whole)) return open(directory / whole);
  const fs::path index = directory / (whole + ".index.json");
  if (foreign::exists(index)) return std::make_unique<Shards>(directory, index, open);
  throw UserError("{}: has neither {} nor {}.index.json", directory.string(), whole, whole);
}

}  // namespace furlong::foreign
