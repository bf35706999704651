#pragma once
// GGUF's quantized types: blocks of 32 or 256 elements, each with its own scale (llama.cpp, ggml-common.h: block_q4_0
// etc.).
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace furlong::foreign {

struct BlockType {
  std::uint32_t id;  ///< type number in GGUF
  std::string_view name;
  std::int64_t elements;  ///< per block
  std::int64_t bytes;     ///< per block
  /// Dequantizes one block into `elements` values. Arithmetic is float32 in the order of the reference (products before
  /// sums, no fused operations), so values are bitwise equal to it.
  void (*dequantize)(const std::byte* block, float* values);
};

/// Returns Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K.
std::span<const BlockType> block_types();
/// Returns the type with this number; nullptr if there is none.
const BlockType* find_block_type(std::uint32_t id);

}  // namespace furlong::foreign
