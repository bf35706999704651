#if __has_include(<cuda_bf16.h>)  // the simulator takes CUDA's types from the toolkit's headers
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "framework/cuda/kernels/kernel.h"

namespace furlong {
namespace {

const Stream simulated{{DeviceType::simulated, 0}};

std::vector<float> random_values(std::uint32_t stream, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = 2 * random_uniform({5, 0, stream}, i) - 1;
  return values;
}

std::vector<bfloat16> rounded(const std::vector<float>& values) {
  std::vector<bfloat16> result;
  for (const float value : values) result.emplace_back(value);
  return result;
}

/// d[16, 8] += a[16, 16] b[16, 8] by one warp; each of 3 warps has its own matrices. Fragments are read from global
/// memory element by element according to the layout, or through shared memory with ldmatrix.
__global__ void product_bf16(const __nv_bfloat16* a_all, const __nv_bfloat16* b_all, float* d_all, bool by_ldmatrix) {
  FURLONG_SHARED(__nv_bfloat16,
                 tile, [3][2][16][24]);  // rows apart by 48 bytes: a multiple of 16 that is not the row's width
  const int warp = warp_index(), lane = lane_index(), g = lane / 4, t = lane % 4;
  const __nv_bfloat16 *a = a_all + warp * 256, *b = b_all + warp * 128;
  float* d = d_all + warp * 128;
  std::uint32_t a_registers[4], b_registers[2];
  if (by_ldmatrix) {
    for (int i = lane; i < 256; i += 32) tile[warp][0][i / 16][i % 16] = a[i];
    for (int i = lane; i < 128; i += 32) tile[warp][1][i / 8][i % 8] = b[i];
    __syncwarp();
    ldmatrix_x4(a_registers, &tile[warp][0][lane % 16][lane / 16 * 8]);
    std::uint32_t b_four[4];  // both halves of b twice
    ldmatrix_x4_transposed(b_four, &tile[warp][1][lane % 16][0]);
    b_registers[0] = b_four[0], b_registers[1] = b_four[1];
  } else {
    for (int r = 0; r < 4; ++r) {
      const __nv_bfloat16* pair = &a[(g + r % 2 * 8) * 16 + 2 * t + r / 2 * 8];
      a_registers[r] = pack_bf16(to_compute(pair[0]), to_compute(pair[1]));
    }
    for (int r = 0; r < 2; ++r) {
      const __nv_bfloat16* pair = &b[(2 * t + 8 * r) * 8 + g];
      b_registers[r] = pack_bf16(to_compute(pair[0]), to_compute(pair[8]));
    }
  }
  float sums[4];
  for (int r = 0; r < 4; ++r) sums[r] = d[(g + r / 2 * 8) * 8 + 2 * t + r % 2];
  mma_m16n8k16(sums, a_registers, b_registers);
  for (int r = 0; r < 4; ++r) d[(g + r / 2 * 8) * 8 + 2 * t + r % 2] = sums[r];
}

/// d - (c + a b) of one 16 x 8 tile, within the error of `depth` additions rounded to nearest and the last one. An H100
/// has less: depth + 1 addends truncated to 25 fraction bits, and their sum to 23. An A100 could have more, if all
/// truncations were the largest possible.
template <class A, class B>
void expect_product(const A* a, const B* b, const float* c, const float* d, int depth) {
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      double expected = c[row * 8 + column], sizes = std::abs(expected);
      for (int k = 0; k < depth; ++k) {
        const double term = static_cast<double>(a[row * depth + k]) * static_cast<double>(b[k * 8 + column]);
        expected += term;
        sizes += std::abs(term);
      }
      EXPECT_NEAR(d[row * 8 + column], expected, (depth + 1) * 0x1p-24 * sizes)
          << "row " << row << ", column " << column;
    }
  }
}

TEST(TensorCore, Bfloat16ProductMatchesFloat64) {
  const auto a = rounded(random_values(1, 3 * 256)), b = rounded(random_values(2, 3 * 128));
  const auto c = random_values(3, 3 * 128);
  for (const char* order : {"forward", "reverse", "warp_first", "random:3"}) {
    simulator::Options options;
    simulator::set_order(options, order);
    const simulator::OptionsScope scope(options);
    for (const bool by_ldmatrix : {false, true}) {
      const Tensor on_a = Tensor::from(a, {3, 16, 16}, simulated.device),
                   on_b = Tensor::from(b, {3, 16, 8}, simulated.device);
      const Tensor on_d = Tensor::from(c, {3, 16, 8}, simulated.device);
      launch(simulated, product_bf16, dim3(1), dim3(96), 0, gpu_data<__nv_bfloat16>(on_a),
             gpu_data<__nv_bfloat16>(on_b), gpu_data<float>(on_d), by_ldmatrix);
      const auto d = on_d.to_vector<float>();
      for (int warp = 0; warp < 3; ++warp)
        expect_product(&a[warp * 256], &b[warp * 128], &c[warp * 128], &d[warp * 128], 16);
    }
  }
}

/// c + Σ_k terms[k] factor by one tensor-core product.
float sum_by_tensor_core(float c, const std::vector<std::pair<int, float>>& terms, float factor = 1) {
  std::vector<bfloat16> a(3 * 256, bfloat16(0.0f)), b(3 * 128, bfloat16(0.0f));
  for (const auto& [k, term] : terms) a[static_cast<std::size_t>(k)] = bfloat16(term);  // row 0
  for (std::size_t k = 0; k < 16; ++k) b[8 * k] = bfloat16(factor);                     // column 0
  std::vector<float> sums(3 * 128, 0.0f);
  sums[0] = c;
  const Tensor on_a = Tensor::from(a, {3, 16, 16}, simulated.device),
               on_b = Tensor::from(b, {3, 16, 8}, simulated.device);
  const Tensor on_d = Tensor::from(sums, {3, 16, 8}, simulated.device);
  launch(simulated, product_bf16, dim3(1), dim3(96), 0, gpu_data<__nv_bfloat16>(on_a), gpu_data<__nv_bfloat16>(on_b),
         gpu_data<float>(on_d), false);
  return on_d.to_vector<float>()[0];
}

TEST(TensorCore, SumsAreTruncatedAsOnHardware) {
  struct Case {
    float c;
    std::vector<std::pair<int, float>> terms;  // place and value
    float sm_90, sm_80;
    float factor = 1;
  };
  const float after_one = 1 + 0x1p-23f, largest = std::numeric_limits<float>::max();
  const std::vector<Case> cases = {
      {1, {{0, 0x1.8p-24f}}, 1, 1},  // to nearest: after_one
      {-1, {{0, -0x1.8p-24f}}, -1, -1},
      {1, {{3, 0x1p-24f}, {5, 0x1p-24f}}, after_one, after_one},
      {1, {{0, 0x1p-24f}, {8, 0x1p-24f}}, after_one, 1},  // sm_80 adds eight products at once
      {1, {{0, 0x1p-25f}, {1, 0x1p-25f}, {2, 0x1p-25f}, {3, 0x1p-25f}}, after_one, 1},
      {1, {{0, 0x1p-26f}, {1, 0x1p-26f}, {2, 0x1p-26f}, {3, 0x1p-26f}}, 1, 1},
      {1, {{0, -1.0f}, {1, 0x1p-25f}}, 0x1p-25f, 0},  // the largest exponent counts, although these terms cancel
      {0, {{2, 0x1p-120f}, {9, -0x1.8p-121f}}, 0x1p-122f, 0x1p-122f},
      {0, {}, 0, 0},
      {5, {{0, HUGE_VALF}}, HUGE_VALF, HUGE_VALF},
      {largest, {{7, 0x1.8p103f}}, largest, largest},  // to nearest: infinity
      {-largest, {{7, -0x1p104f}}, -HUGE_VALF, -HUGE_VALF},
      // Subnormal numbers: factors, sums, sums that are truncated to fewer bits
      {0x1p-149f, {{1, 0x1p-133f}}, 0x1.0001p-133f, 0x1.0001p-133f},
      {0, {{4, 0x1.8p-129f}}, 0x1p-149f, 0x1p-149f, 0x1p-20f},  // to nearest: 0x1p-148
      {0, {{4, -0x1.8p-129f}}, -0x1p-149f, -0x1p-149f, 0x1p-20f},
      {0, {{4, 0x1.8p-130f}}, 0, 0, 0x1p-20f},
  };
  for (const Case& c : cases) {
    simulator::Options options;
    EXPECT_EQ(options.tensor_cores, simulator::TensorCores::sm_90);
    for (const bool sm_90 : {true, false}) {
      options.tensor_cores = sm_90 ? simulator::TensorCores::sm_90 : simulator::TensorCores::sm_80;
      const simulator::OptionsScope scope(options);
      EXPECT_EQ(sum_by_tensor_core(c.c, c.terms, c.factor), sm_90 ? c.sm_90 : c.sm_80) << c.c << ", sm_90: " << sm_90;
      EXPECT_TRUE(std::isnan(sum_by_tensor_core(-HUGE_VALF, {{0, HUGE_VALF}})));
    }
  }
}

__global__ void product_tf32(const float* a, const float* b, float* d) {
  const int lane = lane_index(), g = lane / 4, t = lane % 4;
  const auto bits = [](float x) { return __float_as_uint(x); };
  const std::uint32_t a_registers[4] = {bits(a[g * 8 + t]), bits(a[(g + 8) * 8 + t]), bits(a[g * 8 + t + 4]),
                                        bits(a[(g + 8) * 8 + t + 4])};
  const std::uint32_t b_registers[2] = {bits(b[t * 8 + g]), bits(b[(t + 4) * 8 + g])};
  float sums[4];
  for (int r = 0; r < 4; ++r) sums[r] = d[(g + r / 2 * 8) * 8 + 2 * t + r % 2];
  mma_m16n8k8(sums, a_registers, b_registers);
  for (int r = 0; r < 4; ++r) d[(g + r / 2 * 8) * 8 + 2 * t + r % 2] = sums[r];
}

TEST(TensorCore, Tf32SumsAreTruncatedAsOnHardware) {
  struct Case {
    std::vector<std::pair<std::size_t, float>> terms;  // added to 1
    float sm_90, sm_80;
  };
  const float after_one = 1 + 0x1p-23f;
  const std::vector<Case> cases = {
      {{{0, 0x1.8p-24f}}, 1, 1},
      {{{0, 0x1p-24f}, {3, 0x1p-24f}}, after_one, after_one},
      {{{0, 0x1p-24f}, {4, 0x1p-24f}}, after_one, 1},  // sm_80 adds four products at once
      {{{0, 0x1p-25f}, {1, 0x1p-25f}, {2, 0x1p-25f}, {3, 0x1p-25f}}, after_one, 1},
  };
  for (const Case& c : cases) {
    std::vector<float> a(128, 0.0f), b(64, 0.0f), sums(128, 0.0f);
    for (const auto& [k, term] : c.terms) a[k] = term;  // row 0
    for (std::size_t k = 0; k < 8; ++k) b[8 * k] = 1;   // column 0
    sums[0] = 1;
    for (const bool sm_90 : {true, false}) {
      simulator::Options options;
      options.tensor_cores = sm_90 ? simulator::TensorCores::sm_90 : simulator::TensorCores::sm_80;
      const simulator::OptionsScope scope(options);
      const Tensor on_d = Tensor::from(sums, {16, 8}, simulated.device);
      launch(simulated, product_tf32, dim3(1), dim3(32), 0, gpu_data<float>(Tensor::from(a, {16, 8}, simulated.device)),
             gpu_data<float>(Tensor::from(b, {8, 8}, simulated.device)), gpu_data<float>(on_d));
      EXPECT_EQ(on_d.to_vector<float>()[0], sm_90 ? c.sm_90 : c.sm_80) << c.terms.size() << ", sm_90: " << sm_90;
    }
  }
}

TEST(TensorCore, Tf32ProductMatchesFloat64OfTruncatedInputs) {
  const auto a = random_values(4, 128), b = random_values(5, 64), c = random_values(6, 128);
  const auto cut = [](float x) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffffe000u); };
  std::vector<float> a_cut, b_cut;
  for (const float x : a) a_cut.push_back(cut(x));
  for (const float x : b) b_cut.push_back(cut(x));
  const Tensor on_a = Tensor::from(a, {16, 8}, simulated.device), on_b = Tensor::from(b, {8, 8}, simulated.device);
  const Tensor on_d = Tensor::from(c, {16, 8}, simulated.device);
  launch(simulated, product_tf32, dim3(1), dim3(32), 0, gpu_data<float>(on_a), gpu_data<float>(on_b),
         gpu_data<float>(on_d));
  const auto d = on_d.to_vector<float>();
  expect_product(a_cut.data(), b_cut.data(), c.data(), d.data(), 8);
}

__global__ void load_matrices(const std::int32_t* elements, std::int32_t* out) {
  FURLONG_SHARED(std::uint16_t, tile, [32][16]);  // four matrices, one below the other, in rows of twice their width
  for (int row = 0; row < 32; ++row) {
    if (lane_index() < 16) tile[row][lane_index()] = static_cast<std::uint16_t>(elements[row * 16 + lane_index()]);
  }
  __syncwarp();
  std::uint32_t plain[4], transposed[4];
  ldmatrix_x4(plain, &tile[lane_index()][8]);
  ldmatrix_x4_transposed(transposed, &tile[lane_index()][8]);
  std::int32_t* mine = out + 8 * lane_index();
  for (int r = 0; r < 4; ++r)
    mine[r] = static_cast<std::int32_t>(plain[r]), mine[4 + r] = static_cast<std::int32_t>(transposed[r]);
}

TEST(TensorCore, LdmatrixDistributesRowsOrColumns) {
  std::vector<std::int32_t> elements(32 * 16);
  for (int i = 0; i < 32 * 16; ++i) elements[i] = i * 7 + 1;
  const Tensor on_elements = Tensor::from(elements, {32, 16}, simulated.device),
               out = Tensor::zeros({32, 8}, DType::int32, simulated.device);
  launch(simulated, load_matrices, dim3(1), dim3(32), 0, gpu_data<std::int32_t>(on_elements),
         gpu_data<std::int32_t>(out));
  const auto got = out.to_vector<std::int32_t>();
  const auto element = [&](int matrix, int row, int column) { return elements[(8 * matrix + row) * 16 + 8 + column]; };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int matrix = 0; matrix < 4; ++matrix) {
      const int plain = element(matrix, g, 2 * t) | element(matrix, g, 2 * t + 1) << 16;
      const int transposed = element(matrix, 2 * t, g) | element(matrix, 2 * t + 1, g) << 16;
      EXPECT_EQ(got[8 * lane + matrix], plain);
      EXPECT_EQ(got[8 * lane + 4 + matrix], transposed);
    }
  }
}

__global__ void pack(const float* values, std::int32_t* pairs, float* halves) {
  const std::uint32_t pair = pack_bf16(values[2 * threadIdx.x], values[2 * threadIdx.x + 1]);
  pairs[threadIdx.x] = static_cast<std::int32_t>(pair);
  halves[2 * threadIdx.x] = low_bf16(pair);
  halves[2 * threadIdx.x + 1] = high_bf16(pair);
}

TEST(TensorCore, Bfloat16PairsRoundToNearestEven) {
  auto values = random_values(7, 64);
  values[0] = 1.00390625f;  // halfway between 1 and the next, 1.0078125: to even
  values[1] = 1.01171875f;  // halfway, upwards to even
  values[2] = std::numeric_limits<float>::infinity();
  values[3] = 3.4e38f;  // beyond the greatest
  const Tensor on_values = Tensor::from(values, {64}, simulated.device),
               pairs = Tensor::zeros({32}, DType::int32, simulated.device);
  const Tensor halves = Tensor::zeros({64}, DType::float32, simulated.device);
  launch(simulated, pack, dim3(1), dim3(32), 0, gpu_data<float>(on_values), gpu_data<std::int32_t>(pairs),
         gpu_data<float>(halves));
  const auto got = pairs.to_vector<std::int32_t>();
  const auto got_halves = halves.to_vector<float>();
  for (int i = 0; i < 32; ++i) {
    const bfloat16 low(values[2 * i]), high(values[2 * i + 1]);
    EXPECT_EQ(static_cast<std::uint32_t>(got[i]), low.bits | static_cast<std::uint32_t>(high.bits) << 16);
    EXPECT_EQ(got_halves[2 * i], static_cast<float>(low));
    EXPECT_EQ(got_halves[2 * i + 1], static_cast<float>(high));
  }
}

}  // namespace
}  // namespace furlong
#endif
