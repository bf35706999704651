#pragma once
// GGUF's quantised types: blocks of 32 or 256 elements, each with its own scale (llama.cpp, ggml-common.h: block_q4_0
// and so on).
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace furlong::foreign {

struct BlockType {
  std::uint32_t id;  ///< in GGUF
  std::string_view name;
  std::int64_t elements;  ///< of a block
  std::int64_t bytes;     ///< of a block
  /// One block; `values` has `elements` places. float32 arithmetic in the order of the reference (products before sums,
  /// nothing fused), so that the values are the same bit for bit.
  void (*dequantize)(const std::byte* block, float* values);
};

/// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K.
std::span<const BlockType> block_types();
/// nullptr where there is none of that number.
const BlockType* find_block_type(std::uint32_t id);

}  // namespace furlong::foreign
