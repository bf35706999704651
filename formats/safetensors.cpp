// safetensors: 8 bytes N, N bytes of JSON, elements (https://github.com/huggingface/safetensors, "Format").
#include <tuple>

#include "formats/element_type.h"
#include "formats/json_header.h"
#include "formats/shards.h"
#include "formats/tensor_table.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

using foreign::HeaderEntry;

constexpr std::uint64_t max_header_bytes = 100'000'000;  // the reference implementation's limit

struct Place {
  const foreign::ElementType* type;
  std::uint64_t offset;  ///< from the start of the file
};

class SafetensorsFile final : public foreign::TensorTable<TensorFile, Place> {
 public:
  explicit SafetensorsFile(const fs::path& path) : TensorTable(path.string()), file_(path) {
    const std::string header = read_header();
    std::vector<HeaderEntry> entries = foreign::parse_safetensors_header(this->path(), header);
    check_offsets(entries, file_.size() - 8 - header.size());
    std::vector<std::pair<ForeignTensor, Place>> found;
    for (HeaderEntry& entry : entries) {
      const Place place{foreign::find_element_type(entry.tensor.stored_type), 8 + header.size() + entry.begin};
      found.emplace_back(std::move(entry.tensor), place);
    }
    set_tensors(std::move(found));
  }

  void read(const std::string& name, std::span<float> values) const override {
    const auto [tensor, place] = locate(name, values);
    foreign::read_elements(path(), tensor, *place.type, fetch_from(place.offset), values);
  }

  std::vector<std::int64_t> read_integers(const std::string& name) const override {
    const auto [tensor, place] = locate(name);
    return foreign::read_integer_elements(path(), tensor, *place.type, fetch_from(place.offset));
  }

 private:
  foreign::Fetch fetch_from(std::uint64_t begin) const {
    return [this, begin](std::uint64_t offset, std::span<std::byte> piece) { file_.read_at(begin + offset, piece); };
  }

  std::string read_header() const {
    if (file_.size() < 8) throw UserError("{}: has {} bytes, too short for a safetensors file", path(), file_.size());
    std::uint64_t bytes = 0;
    file_.read_at(0, &bytes, sizeof bytes);
    char first = 0;
    if (file_.size() > 8) file_.read_at(8, &first, 1);
    if (bytes > max_header_bytes || first != '{') {
      throw UserError("{}: is not a safetensors file; expected a header length of at most {} bytes, then '{{'", path(),
                      max_header_bytes);
    }
    if (bytes > file_.size() - 8) {
      throw UserError(
          "{}: truncated: the header has {} bytes, but the file ends {} bytes into it; download or copy it again",
          path(), bytes, file_.size() - 8);
    }
    std::string header(bytes, '\0');
    file_.read_at(8, header.data(), header.size());
    return header;
  }

  /// Checks that the elements fill the file after the header: each byte must belong to exactly one tensor.
  void check_offsets(std::vector<HeaderEntry>& entries, std::uint64_t data_bytes) const {
    std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
      return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
    });
    std::uint64_t end = 0;
    for (const HeaderEntry& entry : entries) {
      const ForeignTensor& tensor = entry.tensor;
      std::int64_t bytes = 0;
      const bool overflow = __builtin_mul_overflow(tensor.shape.elements(),
                                                   foreign::find_element_type(tensor.stored_type)->bytes, &bytes);
      if (overflow || entry.end < entry.begin || entry.end - entry.begin != static_cast<std::uint64_t>(bytes)) {
        throw UserError(
            "{}: damaged: tensor '{}' is {} {}, which does not match its bytes {} to {}; download or copy it again",
            path(), foreign::printable(tensor.name), tensor.stored_type, tensor.shape.text(), entry.begin, entry.end);
      }
      if (entry.end > data_bytes) {
        throw UserError(
            "{}: truncated or damaged: tensor '{}' ends at byte {} after the header, but the file has {}; download it "
            "again",
            path(), foreign::printable(tensor.name), entry.end, data_bytes);
      }
      if (entry.begin != end) {
        throw UserError(
            "{}: damaged: tensor '{}' starts at byte {} after the header, {} byte {}, where the previous tensor ends; "
            "download or copy it again",
            path(), foreign::printable(tensor.name), entry.begin, entry.begin < end ? "before" : "with a gap after",
            end);
      }
      end = entry.end;
    }
    if (end != data_bytes) {
      throw UserError(
          "{}: damaged: its tensors end at byte {} after the header, {} bytes before the end of the file; download or "
          "copy it again",
          path(), end, data_bytes - end);
    }
  }

  foreign::ByteFile file_;
};

std::unique_ptr<TensorFile> open_safetensors_file(const fs::path& path) {
  return std::make_unique<SafetensorsFile>(path);
}

}  // namespace

std::unique_ptr<TensorFile> open_safetensors(const fs::path& path) {
  return foreign::is_directory(path) ? foreign::open_in_directory(path, "model.safetensors", open_safetensors_file)
                                     : open_safetensors_file(path);
}

}  // namespace furlong
