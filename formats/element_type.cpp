#include "formats/element_type.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "framework/core/dtype.h"
#include "framework/core/printable.h"

namespace furlong::foreign {

namespace {

constexpr std::size_t piece_bytes = 1 << 20;

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Stored, auto convert>
void to_floats(const std::byte* elements, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = convert(load<Stored>(elements + i * sizeof(Stored)));
}

template <class Stored>
bool to_integers(const std::byte* elements, std::span<std::int64_t> values) {
  bool fits = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto stored = load<Stored>(elements + i * sizeof(Stored));
    if constexpr (sizeof(Stored) == 8)
      fits = fits && stored <= static_cast<Stored>(std::numeric_limits<std::int64_t>::max());
    values[i] = static_cast<std::int64_t>(stored);
  }
  return fits;
}

bool to_booleans(const std::byte* elements, std::span<std::int64_t> values) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = elements[i] == std::byte{0} ? 0 : 1;
  return true;
}

float same(float value) { return value; }
float narrowed(double value) { return static_cast<float>(value); }
float widened(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// The last five types are listed so that files with such tensors can be opened; their values cannot be read.
constexpr std::array element_types = {
    ElementType{"F64", 8, to_floats<double, narrowed>, nullptr},
    ElementType{"F32", 4, to_floats<float, same>, nullptr},
    ElementType{"F16", 2, to_floats<std::uint16_t, half_to_float>, nullptr},
    ElementType{"BF16", 2, to_floats<std::uint16_t, widened>, nullptr},
    ElementType{"I64", 8, nullptr, to_integers<std::int64_t>},
    ElementType{"I32", 4, nullptr, to_integers<std::int32_t>},
    ElementType{"I16", 2, nullptr, to_integers<std::int16_t>},
    ElementType{"I8", 1, nullptr, to_integers<std::int8_t>},
    ElementType{"U64", 8, nullptr, to_integers<std::uint64_t>},
    ElementType{"U32", 4, nullptr, to_integers<std::uint32_t>},
    ElementType{"U16", 2, nullptr, to_integers<std::uint16_t>},
    ElementType{"U8", 1, nullptr, to_integers<std::uint8_t>},
    ElementType{"BOOL", 1, nullptr, to_booleans},
    ElementType{"C64", 8, nullptr, nullptr},
    ElementType{"F8_E4M3", 1, nullptr, nullptr},
    ElementType{"F8_E5M2", 1, nullptr, nullptr},
    ElementType{"F8_E8M0", 1, nullptr, nullptr},
    ElementType{"F8_E4M3FNUZ", 1, nullptr, nullptr},
};

/// Fetches `values.size()` elements piece by piece and passes each to `convert(bytes, values of the piece)`.
template <class T, class Convert>
void in_pieces(const ElementType& type, const Fetch& fetch, std::span<T> values, const Convert& convert) {
  const auto element_bytes = static_cast<std::size_t>(type.bytes);
  const std::size_t step = piece_bytes / element_bytes;
  std::vector<std::byte> piece(std::min(values.size(), step) * element_bytes);
  for (std::size_t begin = 0; begin < values.size(); begin += step) {
    const auto part = values.subspan(begin, std::min(step, values.size() - begin));
    const auto bytes = std::span(piece).first(part.size() * element_bytes);
    fetch(begin * element_bytes, bytes);
    convert(bytes.data(), part);
  }
}

}  // namespace

const ElementType* find_element_type(std::string_view name) {
  const auto found = std::find_if(element_types.begin(), element_types.end(),
                                  [&](const ElementType& type) { return type.name == name; });
  return found == element_types.end() ? nullptr : &*found;
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {  // zero, or fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

std::uint16_t float_to_half(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
  const std::uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: in 0.5, whose ulp is 2^-24, the addition itself rounds to nearest even
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

void read_elements(const std::string& path, const ForeignTensor& tensor, const ElementType& type, const Fetch& fetch,
                   std::span<float> values) {
  if (type.to_float == nullptr) {
    throw UserError("{}: tensor '{}' has elements of type {}, {}", path, printable(tensor.name), tensor.stored_type,
                    type.to_integer != nullptr ? "expected floating-point numbers"
                                               : "which is not supported; store it as F32, F16 or BF16");
  }
  in_pieces(type, fetch, values, type.to_float);
}

std::vector<std::int64_t> read_integer_elements(const std::string& path, const ForeignTensor& tensor,
                                                const ElementType& type, const Fetch& fetch) {
  if (type.to_integer == nullptr) {
    throw UserError("{}: tensor '{}' has elements of type {}, expected integers", path, printable(tensor.name),
                    tensor.stored_type);
  }
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.shape.elements()));
  bool fits = true;
  in_pieces(type, fetch, std::span(values),
            [&](const std::byte* bytes, std::span<std::int64_t> part) { fits = type.to_integer(bytes, part) && fits; });
  if (!fits)
    throw UserError("{}: tensor '{}' contains integers beyond 2^63 - 1, which are not supported", path,
                    printable(tensor.name));
  return values;
}

}  // namespace furlong::foreign
