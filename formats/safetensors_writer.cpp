#include "formats/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/element_type.h"
#include "framework/core/dtype.h"
#include "framework/core/error.h"
#include "framework/core/printable.h"

namespace furlong {

namespace {

constexpr std::size_t piece_values = 1 << 18;

/// The order of types in the reference library: decreasing alignment, then the order of its list of types.
constexpr std::array<std::string_view, 9> written_types = {"I64", "F32", "I32", "BF16", "F16",
                                                           "I16", "I8",  "U8",  "BOOL"};

std::size_t rank_of(const ForeignTensor& tensor) {
  const auto found = std::find(written_types.begin(), written_types.end(), tensor.stored_type);
  require(found != written_types.end(), "tensor '{}': type {} cannot be written", tensor.name, tensor.stored_type);
  return static_cast<std::size_t>(found - written_types.begin());
}

std::string json_text(const std::string& text) {
  require(foreign::is_utf8(text), "'{}' is not UTF-8, as a safetensors header requires", foreign::printable(text));
  return nlohmann::json(text).dump();
}

/// Writes values as packed elements of type Stored, piece by piece.
template <class Stored, class Value, class Convert>
void write_packed(AtomicFile& file, std::uint64_t offset, std::span<const Value> values, const Convert& convert) {
  std::vector<Stored> piece(std::min(values.size(), piece_values));
  for (std::size_t begin = 0; begin < values.size(); begin += piece_values) {
    const auto part = values.subspan(begin, std::min(piece_values, values.size() - begin));
    std::transform(part.begin(), part.end(), piece.begin(), convert);
    file.write_at(offset + begin * sizeof(Stored), piece.data(), part.size() * sizeof(Stored));
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<ForeignTensor> tensors,
                                     bool overwrite, const std::map<std::string, std::string>& metadata)
    : file_(path, overwrite) {
  for (const ForeignTensor& tensor : tensors)
    rank_of(tensor);  // checks the type: sorting a single tensor does not call rank_of()
  std::sort(tensors.begin(), tensors.end(), [](const ForeignTensor& a, const ForeignTensor& b) {
    return std::pair(rank_of(a), std::string_view(a.name)) < std::pair(rank_of(b), std::string_view(b.name));
  });
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata)
      header += (header.back() == '{' ? "" : ",") + json_text(key) + ":" + json_text(value);
    header += "}";
  }
  std::uint64_t offset = 0;
  for (ForeignTensor& tensor : tensors) {
    const std::uint64_t end =
        offset +
        static_cast<std::uint64_t>(tensor.shape.elements() * foreign::find_element_type(tensor.stored_type)->bytes);
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header == "{" ? "" : ",",
                          json_text(tensor.name), tensor.stored_type,
                          fmt::join(tensor.shape.begin(), tensor.shape.end(), ","), offset, end);
    const std::string name = tensor.name;
    require(slots_.emplace(name, Slot{std::move(tensor), offset}).second, "tensor '{}' is declared twice", name);
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // aligns the elements
  const std::uint64_t header_bytes = header.size();
  file_.write(&header_bytes, sizeof header_bytes);
  file_.write(header);
  for (auto& [name, slot] : slots_) slot.offset += sizeof header_bytes + header_bytes;
}

SafetensorsWriter::Slot& SafetensorsWriter::claim(std::string_view name, std::size_t n_values) {
  const auto found = slots_.find(name);
  require(found != slots_.end(), "tensor '{}' is not declared", name);
  Slot& slot = found->second;
  require(!slot.written, "tensor '{}' is written twice", name);
  require(static_cast<std::int64_t>(n_values) == slot.tensor.shape.elements(),
          "tensor '{}' {} cannot be written with {} values", name, slot.tensor.shape.text(), n_values);
  slot.written = true;
  return slot;
}

void SafetensorsWriter::write(std::string_view name, std::span<const float> values) {
  const Slot& slot = claim(name, values.size());
  const std::string& type = slot.tensor.stored_type;
  if (type == "F32") {
    file_.write_at(slot.offset, values.data(), values.size_bytes());
  } else if (type == "F16") {
    write_packed<std::uint16_t>(file_, slot.offset, values, foreign::float_to_half);
  } else {
    require(type == "BF16", "tensor '{}' is declared as {} but written with floats", name, type);
    write_packed<std::uint16_t>(file_, slot.offset, values, [](float value) { return bfloat16(value).bits; });
  }
}

void SafetensorsWriter::write_integers(std::string_view name, std::span<const std::int64_t> values) {
  const Slot& slot = claim(name, values.size());
  const std::string& type = slot.tensor.stored_type;
  const auto narrowed = [&]<class Stored>(Stored least, Stored most) {
    write_packed<Stored>(file_, slot.offset, values, [&](std::int64_t value) {
      require(value >= least && value <= most, "tensor '{}': value {} does not fit {}", name, value, type);
      return static_cast<Stored>(value);
    });
  };
  const auto whole_range = [&]<class Stored>(Stored) {
    narrowed(std::numeric_limits<Stored>::min(), std::numeric_limits<Stored>::max());
  };
  if (type == "I64") return file_.write_at(slot.offset, values.data(), values.size_bytes());
  if (type == "I32") return whole_range(std::int32_t{});
  if (type == "I16") return whole_range(std::int16_t{});
  if (type == "I8") return whole_range(std::int8_t{});
  if (type == "U8") return whole_range(std::uint8_t{});
  require(type == "BOOL", "tensor '{}' is declared as {} but written with integers", name, type);
  narrowed(std::uint8_t{0}, std::uint8_t{1});
}

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) require(slot.written, "tensor '{}' is declared but never written", name);
  file_.commit();
}

}  // namespace furlong
