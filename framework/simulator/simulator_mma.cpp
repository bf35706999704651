// Tensor-core products with the register layouts of the PTX ISA (tensor_core.h). The last lane to arrive computes the
// product once for the warp.
#include "framework/simulator/simulator.h"

namespace furlong::simulator {
namespace {

/// Both factors as matrices; Depth is the inner dimension of the product.
template <int Depth>
struct Operands {
  float a[16][Depth], b[Depth][8];
};

void load(const LaneData* lanes, Operands<16>& operands) {
  const auto low = [](std::uint32_t pair) { return std::bit_cast<float>(pair << 16); };
  const auto high = [](std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); };
  for (int lane = 0; lane < 32; ++lane) {
    const MmaData data = lanes[lane].as<MmaData>();
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      float* place = &operands.a[g + 8 * (r % 2)][2 * t + 8 * (r / 2)];
      place[0] = low(data.a[r]);
      place[1] = high(data.a[r]);
    }
    for (int r = 0; r < 2; ++r) {
      operands.b[2 * t + 8 * r][g] = low(data.b[r]);
      operands.b[2 * t + 8 * r + 1][g] = high(data.b[r]);
    }
  }
}

void load(const LaneData* lanes, Operands<8>& operands) {
  const auto tf32 = [](std::uint32_t word) {
    return std::bit_cast<float>(word & 0xffffe000u);
  };  // the remaining registers are ignored
  for (int lane = 0; lane < 32; ++lane) {
    const MmaData data = lanes[lane].as<MmaData>();
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) operands.a[g + 8 * (r % 2)][t + 4 * (r / 2)] = tf32(data.a[r]);
    for (int r = 0; r < 2; ++r) operands.b[t + 4 * r][g] = tf32(data.b[r]);
  }
}

template <int Depth>
void multiply(LaneData* lanes) {
  Operands<Depth> operands;
  load(lanes, operands);
  float sums[16][8] = {};
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < Depth; ++k) {
      const float factor = operands.a[row][k];
      for (int column = 0; column < 8; ++column)
        sums[row][column] += factor * operands.b[k][column];  // products are exact in float32
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    float d[4];
    std::memcpy(d, lanes[lane].bytes, sizeof(d));
    for (int r = 0; r < 4; ++r) d[r] += sums[g + 8 * (r / 2)][2 * t + r % 2];
    std::memcpy(lanes[lane].bytes, d, sizeof(d));
  }
}

}  // namespace

void mma_bf16_16x8x16(LaneData* lanes) { multiply<16>(lanes); }
void mma_tf32_16x8x8(LaneData* lanes) { multiply<8>(lanes); }

}  // namespace furlong::simulator
