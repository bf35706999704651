#pragma once
// Element types of foreign files and their conversion to float32 or integers.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/byte_file.h"
#include "formats/tensor_file.h"

namespace furlong::foreign {

/// An element type, named as in safetensors. `to_float` is null for integers and unsupported types; `to_integer` is
/// null for all others. Both convert `values.size()` packed elements from memory of any alignment.
struct ElementType {
  std::string_view name;
  std::int64_t bytes;
  void (*to_float)(const std::byte* elements, std::span<float> values);
  bool (*to_integer)(const std::byte* elements,
                     /// Returns false if a value does not fit int64.
                     std::span<std::int64_t> values);
};

/// Returns the type with this name ("F32", "BF16", "I64", "BOOL", …); nullptr if there is none.
const ElementType* find_element_type(std::string_view name);

/// Converts IEEE 754 binary16. From float32: rounds to nearest even; a NaN stays a NaN.
float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);

/// Reads packed elements in pieces of at most 1 MiB. fetch(offset, piece) must fill `piece` with the elements' bytes
/// from `offset` on. `tensor` and `path` are for messages. Throws UserError if the type cannot be read this way.
using Fetch = std::function<void(std::uint64_t offset, std::span<std::byte> piece)>;
void read_elements(const std::string& path, const ForeignTensor& tensor, const ElementType& type, const Fetch& fetch,
                   std::span<float> values);
std::vector<std::int64_t> read_integer_elements(const std::string& path, const ForeignTensor& tensor,
                                                const ElementType& type, const Fetch& fetch);

}  // namespace furlong::foreign
