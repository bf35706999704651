#include "formats/dequantize.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "formats/element_type.h"

namespace furlong::foreign {

namespace {

float half_at(const std::byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return half_to_float(bits);
}
unsigned byte_at(const std::byte* from, std::size_t i) { return std::to_integer<unsigned>(from[i]); }
int signed_byte_at(const std::byte* from, std::size_t i) { return static_cast<std::int8_t>(from[i]); }

// Blocks of 32 elements. The low nibbles of the 16 bytes are elements 0 to 15, the high nibbles 16 to 31.

unsigned nibble(const std::byte* nibbles, std::size_t i) {
  return i < 16 ? byte_at(nibbles, i) & 15 : byte_at(nibbles, i - 16) >> 4;
}

void dequantize_q4_0(const std::byte* block, float* values) {
  const float scale = half_at(block);
  for (std::size_t i = 0; i < 32; ++i)
    values[i] = scale * static_cast<float>(static_cast<int>(nibble(block + 2, i)) - 8);
}

void dequantize_q4_1(const std::byte* block, float* values) {
  const float scale = half_at(block), least = half_at(block + 2);
  for (std::size_t i = 0; i < 32; ++i) values[i] = scale * static_cast<float>(nibble(block + 4, i)) + least;
}

/// Returns the fifth bit of element `i`; the bits of 32 elements form one little-endian word.
unsigned fifth_bit(const std::byte* bits, std::size_t i) { return byte_at(bits, i / 8) >> (i % 8) & 1; }

void dequantize_q5_0(const std::byte* block, float* values) {
  const float scale = half_at(block);
  for (std::size_t i = 0; i < 32; ++i) {
    values[i] = scale * static_cast<float>(static_cast<int>(nibble(block + 6, i) | fifth_bit(block + 2, i) << 4) - 16);
  }
}

void dequantize_q5_1(const std::byte* block, float* values) {
  const float scale = half_at(block), least = half_at(block + 2);
  for (std::size_t i = 0; i < 32; ++i)
    values[i] = scale * static_cast<float>(nibble(block + 8, i) | fifth_bit(block + 4, i) << 4) + least;
}

void dequantize_q8_0(const std::byte* block, float* values) {
  const float scale = half_at(block);
  for (std::size_t i = 0; i < 32; ++i) values[i] = scale * static_cast<float>(signed_byte_at(block + 2, i));
}

// Superblocks of 256 elements.

struct ScaleAndMin {
  unsigned scale, min;
};

/// Unpacks pair `i` of eight pairs of 6 bits in 12 bytes. The first four are in the low bits of bytes 0 to 3 and 4 to
/// 7. The others have their low four bits in the nibbles of bytes 8 to 11 and their high two bits at the top of bytes 0
/// to 3 and 4 to 7.
ScaleAndMin unpack_scale(const std::byte* packed, std::size_t i) {
  if (i < 4) return {byte_at(packed, i) & 63, byte_at(packed, i + 4) & 63};
  return {(byte_at(packed, i + 4) & 15) | (byte_at(packed, i - 4) >> 6) << 4,
          byte_at(packed, i + 4) >> 4 | (byte_at(packed, i) >> 6) << 4};
}

/// Eight sub-blocks of 32 elements: the low nibbles of 32 bytes are one sub-block, the high nibbles the next. `fifth`
/// is null for Q4_K; bit k of its byte i belongs to element i of sub-block k.
void dequantize_nibble_superblock(const std::byte* block, const std::byte* fifth, const std::byte* nibbles,
                                  float* values) {
  const float scale_of_scales = half_at(block), scale_of_mins = half_at(block + 2);
  for (std::size_t k = 0; k < 8; ++k) {
    const ScaleAndMin six_bits = unpack_scale(block + 4, k);
    const float scale = scale_of_scales * static_cast<float>(six_bits.scale);
    const float min = scale_of_mins * static_cast<float>(six_bits.min);
    const std::byte* bytes = nibbles + k / 2 * 32;
    for (std::size_t i = 0; i < 32; ++i) {
      unsigned quantum = k % 2 == 0 ? byte_at(bytes, i) & 15 : byte_at(bytes, i) >> 4;
      if (fifth != nullptr) quantum |= (byte_at(fifth, i) >> k & 1) << 4;
      values[32 * k + i] = scale * static_cast<float>(quantum) - min;
    }
  }
}

void dequantize_q4_k(const std::byte* block, float* values) {
  dequantize_nibble_superblock(block, nullptr, block + 16, values);
}
void dequantize_q5_k(const std::byte* block, float* values) {
  dequantize_nibble_superblock(block, block + 16, block + 48, values);
}

/// Low four bits: 64 bytes per half of 128 elements, whose low nibbles are the first 64 elements. High two bits: 32
/// bytes per half, whose bits 2k and 2k + 1 belong to the k-th 32 elements. Each 16 elements have a signed scale.
void dequantize_q6_k(const std::byte* block, float* values) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float scale_of_scales = half_at(block + 208);
  for (std::size_t element = 0; element < 256; ++element) {
    const std::size_t half = element / 128, k = element % 128 / 32, i = element % 32;
    const unsigned low_byte = byte_at(low, 64 * half + 32 * (k % 2) + i);
    const unsigned quantum = (k < 2 ? low_byte & 15 : low_byte >> 4) | (byte_at(high, 32 * half + i) >> 2 * k & 3) << 4;
    const float scale = scale_of_scales * static_cast<float>(signed_byte_at(scales, element / 16));
    values[element] = scale * static_cast<float>(static_cast<int>(quantum) - 32);
  }
}

constexpr std::array types = {
    BlockType{2, "Q4_0", 32, 18, dequantize_q4_0},    BlockType{3, "Q4_1", 32, 20, dequantize_q4_1},
    BlockType{6, "Q5_0", 32, 22, dequantize_q5_0},    BlockType{7, "Q5_1", 32, 24, dequantize_q5_1},
    BlockType{8, "Q8_0", 32, 34, dequantize_q8_0},    BlockType{12, "Q4_K", 256, 144, dequantize_q4_k},
    BlockType{13, "Q5_K", 256, 176, dequantize_q5_k}, BlockType{14, "Q6_K", 256, 210, dequantize_q6_k},
};

}  // namespace

std::span<const BlockType> block_types() { return types; }

const BlockType* find_block_type(std::uint32_t id) {
  const auto found = std::find_if(types.begin(), types.end(), [&](const BlockType& type) { return type.id == id; });
  return found == types.end() ? nullptr : &*found;
}

}  // namespace furlong::foreign
