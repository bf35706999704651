// Compares with a float64 reference that reads each block as a stream of bits laid out in tables, as the format's
// description does. The result is exact: a half has 11 mantissa bits, a scale at most 7 and a quantum at most 6. Their
// product is exact in float32, so only the last addition rounds.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "formats/dequantize.h"
#include "formats/element_type.h"

namespace furlong::foreign {
namespace {

using Block = std::vector<unsigned>;  // bytes

double half(const Block& block, std::size_t at) {
  const unsigned bits = block[at] | block[at + 1] << 8;
  const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}
int signed_byte(unsigned byte) { return byte < 128 ? static_cast<int>(byte) : static_cast<int>(byte) - 256; }

/// Element order of blocks of 32: byte j of the nibbles holds elements j and j + 16.
std::vector<int> nibbles32(const Block& block, std::size_t at) {
  std::vector<int> quanta(32);
  for (std::size_t j = 0; j < 16; ++j) {
    quanta[j] = static_cast<int>(block[at + j] % 16);
    quanta[j + 16] = static_cast<int>(block[at + j] / 16);
  }
  return quanta;
}
void add_fifth_bits(std::vector<int>& quanta, const Block& block, std::size_t at) {
  const std::uint32_t word = block[at] | block[at + 1] << 8 | block[at + 2] << 16 | block[at + 3] << 24;
  for (std::size_t j = 0; j < 32; ++j) quanta[j] += (word & (1u << j)) != 0 ? 16 : 0;
}

std::vector<double> small_block(const std::string& name, const Block& block) {
  std::vector<double> values;
  if (name == "Q8_0") {
    for (std::size_t j = 0; j < 32; ++j) values.push_back(half(block, 0) * signed_byte(block[2 + j]));
    return values;
  }
  const bool has_min = name.back() == '1', five = name[1] == '5';
  const std::size_t after_scales = has_min ? 4 : 2;
  auto quanta = nibbles32(block, after_scales + (five ? 4 : 0));
  if (five) add_fifth_bits(quanta, block, after_scales);
  for (const int quantum : quanta)
    values.push_back(half(block, 0) * (has_min ? quantum : quantum - (five ? 16 : 8)) +
                     (has_min ? half(block, 2) : 0.0));
  return values;
}

/// Q4_K and Q5_K: 256 elements in four groups of 64; a group has 32 bytes of nibbles, first the low ones.
std::vector<double> nibble_superblock(bool five, const Block& block) {
  const std::size_t packed = 4, nibbles = five ? 48 : 16, fifth = 16;
  std::vector<int> scales(8), mins(8);
  for (std::size_t j = 0; j < 4; ++j) {
    scales[j] = static_cast<int>(block[packed + j] % 64);
    mins[j] = static_cast<int>(block[packed + 4 + j] % 64);
    scales[j + 4] = static_cast<int>(block[packed + 8 + j] % 16 + block[packed + j] / 64 * 16);
    mins[j + 4] = static_cast<int>(block[packed + 8 + j] / 16 + block[packed + 4 + j] / 64 * 16);
  }
  std::vector<double> values;
  for (std::size_t group = 0; group < 4; ++group) {
    for (std::size_t part = 0; part < 2; ++part) {
      const std::size_t sub = 2 * group + part;
      for (std::size_t j = 0; j < 32; ++j) {
        const unsigned byte = block[nibbles + 32 * group + j];
        int quantum = static_cast<int>(part == 0 ? byte % 16 : byte / 16);
        if (five && (block[fifth + j] & 1u << sub) != 0) quantum += 16;
        values.push_back(half(block, 0) * scales[sub] * quantum - half(block, 2) * mins[sub]);
      }
    }
  }
  return values;
}

/// Q6_K, as in the reference's loop: 32 steps per half, each of which gives four elements.
std::vector<double> six_bit_superblock(const Block& block) {
  std::vector<double> values(256);
  const double scale = half(block, 208);
  for (std::size_t n = 0; n < 2; ++n) {
    for (std::size_t l = 0; l < 32; ++l) {
      const unsigned low1 = block[64 * n + l], low2 = block[64 * n + l + 32], high = block[128 + 32 * n + l];
      const unsigned quanta[4] = {low1 % 16 + (high & 3) * 16, low2 % 16 + (high >> 2 & 3) * 16,
                                  low1 / 16 + (high >> 4 & 3) * 16, low2 / 16 + (high >> 6) * 16};
      for (std::size_t k = 0; k < 4; ++k) {
        values[128 * n + 32 * k + l] =
            scale * signed_byte(block[192 + 8 * n + 2 * k + l / 16]) * (static_cast<int>(quanta[k]) - 32);
      }
    }
  }
  return values;
}

std::vector<double> reference(const std::string& name, const Block& block) {
  if (name == "Q4_K" || name == "Q5_K") return nibble_superblock(name == "Q5_K", block);
  if (name == "Q6_K") return six_bit_superblock(block);
  return small_block(name, block);
}

/// Offsets of half-precision numbers in a block.
std::vector<std::size_t> halves_of(const std::string& name) {
  if (name == "Q6_K") return {208};
  return name.back() == '0' ? std::vector<std::size_t>{0} : std::vector<std::size_t>{0, 2};
}

class Dequantize : public ::testing::TestWithParam<BlockType> {};

TEST_P(Dequantize, EqualsTheReferenceBitwise) {
  const BlockType& type = GetParam();
  const std::string name(type.name);
  std::mt19937 random(1234);
  for (int repeat = 0; repeat < 500; ++repeat) {
    Block block(static_cast<std::size_t>(type.bytes));
    for (unsigned& byte : block) byte = random() % 256;
    for (const std::size_t at : halves_of(name)) {
      if ((block[at + 1] & 0x7c) == 0x7c) block[at + 1] ^= 0x40;  // not infinite or NaN
    }
    std::vector<std::byte> bytes;
    for (const unsigned byte : block) bytes.push_back(static_cast<std::byte>(byte));
    std::vector<float> values(static_cast<std::size_t>(type.elements));
    type.dequantize(bytes.data(), values.data());
    const std::vector<double> expected = reference(name, block);
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], static_cast<float>(expected[i])) << name << " element " << i;
  }
}

std::vector<BlockType> all_types() { return {block_types().begin(), block_types().end()}; }
INSTANTIATE_TEST_SUITE_P(Types, Dequantize, ::testing::ValuesIn(all_types()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BlockTypes, FindsTypesByNumber) {
  EXPECT_EQ(find_block_type(12)->name, "Q4_K");
  EXPECT_EQ(find_block_type(10), nullptr);
  EXPECT_EQ(block_types().size(), 8u);
}

}  // namespace
}  // namespace furlong::foreign
