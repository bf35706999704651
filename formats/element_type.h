#pragma once
// Types of single elements in foreign files, and their values as float32 or as integers.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/byte_file.h"
#include "formats/tensor_file.h"

namespace furlong::foreign {

/// A type in safetensors' words. `to_float` is null where elements are integers or of a type that is not read,
/// `to_integer` is null where they are not integers; both take `values.size()` packed elements from memory of any
/// alignment.
struct ElementType {
  std::string_view name;
  std::int64_t bytes;
  void (*to_float)(const std::byte* elements, std::span<float> values);
  bool (*to_integer)(const std::byte* elements,
                     std::span<std::int64_t> values);  ///< false where a value does not fit int64
};

/// The type of that name ("F32", "BF16", "I64", "BOOL", ...); nullptr where there is none.
const ElementType* find_element_type(std::string_view name);

/// IEEE 754 binary16. From float32 to nearest even; a NaN stays one.
float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);

/// Reads packed elements in pieces of at most 1 MiB: fetch(offset, piece) has to fill `piece` from byte `offset` of the
/// elements on. `tensor` and `path` serve the messages. Throw UserError where the type is not one that is read so.
using Fetch = std::function<void(std::uint64_t offset, std::span<std::byte> piece)>;
void read_elements(const std::string& path, const ForeignTensor& tensor, const ElementType& type, const Fetch& fetch,
                   std::span<float> values);
std::vector<std::int64_t> read_integer_elements(const std::string& path, const ForeignTensor& tensor,
                                                const ElementType& type, const Fetch& fetch);

}  // namespace furlong::foreign
