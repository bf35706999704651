// GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): header, metadata, tensor descriptions, padding,
// tensors.
#include "formats/gguf.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <tuple>

#include "formats/dequantize.h"
#include "formats/element_type.h"
#include "formats/gguf_metadata.h"
#include "formats/tensor_table.h"

namespace furlong {

namespace fs = std::filesystem;

namespace {

using foreign::BlockType;
using foreign::ByteCursor;
using foreign::ElementType;
using foreign::printable;

constexpr std::uint64_t default_alignment = 32, max_alignment = 1 << 20;
constexpr std::uint32_t max_dimensions = 4;  // GGML_MAX_DIMS

struct NumberedType {
  std::uint32_t id;
  std::string_view name;
};

/// Types of plain elements, named as in find_element_type().
constexpr std::array element_types = {NumberedType{0, "F32"},  NumberedType{1, "F16"},  NumberedType{24, "I8"},
                                      NumberedType{25, "I16"}, NumberedType{26, "I32"}, NumberedType{27, "I64"},
                                      NumberedType{28, "F64"}, NumberedType{30, "BF16"}};
/// Unsupported types, listed so that messages can name them.
constexpr std::array other_types = {
    NumberedType{9, "Q8_1"},     NumberedType{10, "Q2_K"},   NumberedType{11, "Q3_K"},    NumberedType{15, "Q8_K"},
    NumberedType{16, "IQ2_XXS"}, NumberedType{17, "IQ2_XS"}, NumberedType{18, "IQ3_XXS"}, NumberedType{19, "IQ1_S"},
    NumberedType{20, "IQ4_NL"},  NumberedType{21, "IQ3_S"},  NumberedType{22, "IQ2_S"},   NumberedType{23, "IQ4_XS"},
    NumberedType{29, "IQ1_M"},   NumberedType{34, "TQ1_0"},  NumberedType{35, "TQ2_0"},   NumberedType{39, "MXFP4"}};

template <class Types>
std::string_view name_in(const Types& types, std::uint32_t id) {
  const auto found = std::find_if(types.begin(), types.end(), [&](const NumberedType& type) { return type.id == id; });
  return found == types.end() ? "" : found->name;
}

struct Place {
  const ElementType* element = nullptr;  ///< set for plain elements
  /// Set for quantized elements. Both are null if the type is unsupported.
  const BlockType* block = nullptr;
  std::uint64_t offset =
      /// From the start of the tensor data; after opening, from the start of the file.
      0;
  std::uint64_t bytes = 0;
};

class Gguf final : public foreign::TensorTable<GgufFile, Place> {
 public:
  explicit Gguf(const fs::path& path) : TensorTable(path.string()), file_(path) {
    ByteCursor cursor(file_, 0, file_.size(), this->path());
    check_version(cursor);
    const auto n_tensors = cursor.take<std::uint64_t>(), n_pairs = cursor.take<std::uint64_t>();
    // A pair takes at least 13 bytes, a tensor description at least 24.
    if (n_pairs > cursor.remaining() / 13 || n_tensors > cursor.remaining() / 24) {
      throw UserError(
          "{}: truncated or damaged: states {} metadata keys and {} tensors in {} bytes; download or copy it again",
          this->path(), n_pairs, n_tensors, file_.size());
    }
    metadata_ = foreign::read_gguf_metadata(cursor, n_pairs);
    if (const std::int64_t parts = integer("split.count", 1); parts > 1) {
      throw UserError("{}: is one of {} parts; merge them with llama-gguf-split --merge", this->path(), parts);
    }
    std::vector<std::pair<ForeignTensor, Place>> found;
    for (std::uint64_t i = 0; i < n_tensors; ++i) found.push_back(read_description(cursor));
    check_layout(found, cursor.position());
    set_tensors(std::move(found));
  }

  const foreign::GgufMetadata& metadata() const override { return metadata_; }

  void read(const std::string& name, std::span<float> values) const override {
    const auto [tensor, place] = locate(name, values);
    if (place.block != nullptr) return dequantize(place, values);
    foreign::read_elements(path(), tensor, element_of(tensor, place), fetch_from(place), values);
  }

  std::vector<std::int64_t> read_integers(const std::string& name) const override {
    const auto [tensor, place] = locate(name);
    if (place.block != nullptr) {
      throw UserError("{}: tensor '{}' has elements of type {}, expected integers", path(), printable(name),
                      tensor.stored_type);
    }
    return foreign::read_integer_elements(path(), tensor, element_of(tensor, place), fetch_from(place));
  }

 private:
  void check_version(ByteCursor& cursor) const {
    std::array<char, 4> magic{};
    if (file_.size() >= 24) cursor.take(magic.data(), magic.size());
    if (std::string_view(magic.data(), magic.size()) != "GGUF")
      throw UserError("{}: is not a GGUF file ('GGUF' is missing at its start)", path());
    const auto version = cursor.take<std::uint32_t>();
    if (version == 2 || version == 3) return;
    if ((version & 0xffff) == 0)
      throw UserError("{}: is a GGUF file for big-endian machines, which is not supported", path());
    throw UserError("{}: has GGUF version {}, expected 2 or 3; convert it again with a newer llama.cpp", path(),
                    version);
  }

  std::pair<ForeignTensor, Place> read_description(ByteCursor& cursor) const {
    ForeignTensor tensor;
    tensor.name = cursor.take_text(cursor.take<std::uint64_t>());
    if (!foreign::is_utf8(tensor.name))
      throw UserError("{}: damaged: the name of tensor '{}' is not UTF-8; download or copy it again", path(),
                      printable(tensor.name));
    const auto n_dimensions = cursor.take<std::uint32_t>();
    if (n_dimensions > max_dimensions) {
      throw UserError("{}: damaged: tensor '{}' has {} dimensions, expected at most {}; download or copy it again",
                      path(), printable(tensor.name), n_dimensions, max_dimensions);
    }
    std::array<std::uint64_t, max_dimensions> extents{};  // fastest-varying first
    for (std::uint32_t i = 0; i < n_dimensions; ++i) extents[i] = cursor.take<std::uint64_t>();
    for (std::uint32_t i = n_dimensions; i-- > 0;)
      foreign::append_extent(path(), tensor.name, tensor.shape, extents[i]);
    const auto type = cursor.take<std::uint32_t>();
    Place place;
    place.block = foreign::find_block_type(type);
    place.element = foreign::find_element_type(name_in(element_types, type));
    place.offset = cursor.take<std::uint64_t>();
    set_type(type, tensor, place);
    return {std::move(tensor), place};
  }

  /// Sets the name of the type, and the tensor's bytes if the type is supported.
  void set_type(std::uint32_t type, ForeignTensor& tensor, Place& place) const {
    const std::string_view other = name_in(other_types, type);
    tensor.stored_type = place.block != nullptr     ? std::string(place.block->name)
                         : place.element != nullptr ? std::string(place.element->name)
                         : !other.empty()           ? std::string(other)
                                                    : fmt::format("type {}", type);
    const std::int64_t block_elements = place.block != nullptr ? place.block->elements : 1;
    const std::int64_t block_bytes = place.block != nullptr     ? place.block->bytes
                                     : place.element != nullptr ? place.element->bytes
                                                                : 0;
    const std::int64_t inner = tensor.shape.rank() == 0 ? 1 : tensor.shape[-1];
    std::int64_t bytes = 0;
    if (inner % block_elements != 0 ||
        __builtin_mul_overflow(tensor.shape.elements() / block_elements, block_bytes, &bytes)) {
      throw UserError(
          "{}: damaged: tensor '{}' {} cannot have type {}, whose blocks have {} elements; download or copy it again",
          path(), printable(tensor.name), tensor.shape.text(), tensor.stored_type, block_elements);
    }
    // The size of an unknown type is unknown, but every type takes at least one bit per element.
    if (place.block == nullptr && place.element == nullptr &&
        static_cast<std::uint64_t>(tensor.shape.elements()) / 8 > file_.size()) {
      throw UserError("{}: damaged: tensor '{}' {} has more elements than {} bytes can hold; download or copy it again",
                      path(), printable(tensor.name), tensor.shape.text(), file_.size());
    }
    place.bytes = static_cast<std::uint64_t>(bytes);
  }

  /// Makes offsets relative to the start of the file. Checks that tensors are aligned, inside the file, and do not
  /// overlap.
  void check_layout(std::vector<std::pair<ForeignTensor, Place>>& found, std::uint64_t descriptions_end) const {
    const std::int64_t stated = integer("general.alignment", default_alignment);
    const auto alignment = static_cast<std::uint64_t>(stated);
    if (stated < 1 || alignment > max_alignment || (alignment & (alignment - 1)) != 0) {
      throw UserError(
          "{}: damaged: general.alignment is {}, expected a power of two up to {}; download or copy it again", path(),
          stated, max_alignment);
    }
    const std::uint64_t begin = (descriptions_end + alignment - 1) / alignment * alignment;
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
      return std::tie(a.second.offset, a.second.bytes) < std::tie(b.second.offset, b.second.bytes);
    });
    std::uint64_t end = 0;
    for (auto& [tensor, place] : found) {
      if (place.offset % alignment != 0 || place.offset < end) {
        throw UserError(
            "{}: damaged: tensor '{}' starts at byte {} after the header, {}; download or copy it again", path(),
            printable(tensor.name), place.offset,
            place.offset < end ? "inside another tensor" : fmt::format("which is not a multiple of {}", alignment));
      }
      if (begin > file_.size() || !foreign::within(place.offset, place.bytes, file_.size() - begin)) {
        throw UserError(
            "{}: truncated or damaged: tensor '{}' takes {} bytes from byte {} after the header, but the file has {} "
            "there; download it again",
            path(), printable(tensor.name), place.bytes, place.offset, file_.size() - std::min(begin, file_.size()));
      }
      end = place.offset + place.bytes;
      place.offset += begin;
    }
  }

  const ElementType& element_of(const ForeignTensor& tensor, const Place& place) const {
    if (place.element == nullptr) {
      std::string known;
      for (const BlockType& type : foreign::block_types()) known += fmt::format(", {}", type.name);
      throw UserError("{}: tensor '{}' is quantized as {}, which is not supported; expected F32, F16, BF16{}", path(),
                      printable(tensor.name), tensor.stored_type, known);
    }
    return *place.element;
  }

  foreign::Fetch fetch_from(const Place& place) const {
    return [this, begin = place.offset](std::uint64_t offset, std::span<std::byte> piece) {
      file_.read_at(begin + offset, piece);
    };
  }

  void dequantize(const Place& place, std::span<float> values) const {
    constexpr std::size_t piece_blocks = 4096;
    const auto block_bytes = static_cast<std::size_t>(place.block->bytes),
               block_elements = static_cast<std::size_t>(place.block->elements);
    const std::size_t n_blocks = values.size() / block_elements;
    std::vector<std::byte> piece(std::min(n_blocks, piece_blocks) * block_bytes);
    for (std::size_t first = 0; first < n_blocks; first += piece_blocks) {
      const std::size_t count = std::min(piece_blocks, n_blocks - first);
      file_.read_at(place.offset + first * block_bytes, piece.data(), count * block_bytes);
      for (std::size_t i = 0; i < count; ++i) {
        place.block->dequantize(piece.data() + i * block_bytes, values.data() + (first + i) * block_elements);
      }
    }
  }

  foreign::ByteFile file_;
  foreign::GgufMetadata metadata_;
};

}  // namespace

bool is_gguf(const fs::path& path) {
  if (!fs::is_regular_file(path)) return false;
  std::ifstream file(path, std::ios::binary);
  char magic[4] = {};
  return file.read(magic, 4) && std::string_view(magic, 4) == "GGUF";
}

std::unique_ptr<GgufFile> open_gguf(const fs::path& path) { return std::make_unique<Gguf>(path); }

}  // namespace furlong
