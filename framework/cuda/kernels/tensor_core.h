#pragma once
// Tensor-core products of one warp, with their register layouts (PTX ISA, "Matrix multiply-accumulate operation using
// mma instruction" and "ldmatrix"). Part of kernel.h. All 32 lanes must call each function together. Below, g = lane /
// 4 and t = lane % 4.
#include "framework/cuda/kernels/kernel.h"

namespace furlong {
inline namespace FURLONG_GPU {

/// d[16, 8] += a[16, 16] b[16, 8], bfloat16 with float32 sums. Each register of a and b holds two bfloat16 numbers; the
/// one with the lower index is in the lower half:
///   a[0]: a(g, 2t..2t+1)   a[1]: a(g+8, 2t..2t+1)   a[2]: a(g, 2t+8..2t+9)   a[3]: a(g+8, 2t+8..2t+9)
///   b[0]: b(2t..2t+1, g)   b[1]: b(2t+8..2t+9, g)
///   d[0], d[1]: d(g, 2t..2t+1)   d[2], d[3]: d(g+8, 2t..2t+1)
__device__ inline void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif !defined(__CUDACC__)
  simulator::mma(d, a, b, "mma.m16n8k16", simulator::mma_bf16_16x8x16, std::source_location::current());
#endif
}

/// d[16, 8] += a[16, 8] b[8, 8] in TF32 with float32 sums. TF32 has 10 fraction bits; the other bits of a and b are
/// ignored:
///   a[0]: a(g, t)   a[1]: a(g+8, t)   a[2]: a(g, t+4)   a[3]: a(g+8, t+4)
///   b[0]: b(t, g)   b[1]: b(t+4, g)   d: as above
__device__ inline void mma_m16n8k8(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif !defined(__CUDACC__)
  simulator::mma(d, a, b, "mma.m16n8k8", simulator::mma_tf32_16x8x8, std::source_location::current());
#endif
}

/// Packs two bfloat16 numbers into one register, each rounded to nearest even, `low` (the lower index) in the lower
/// half. low_bf16 and high_bf16 unpack them.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t word;
  memcpy(&word, &pair, sizeof(word));
  return word;
}
__device__ inline float low_bf16(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane i gives the address of row i % 8 of matrix i /
/// 8: 16 bytes, 16-byte aligned. Register r then holds elements 2t, 2t+1 of row g of matrix r; transposed, element g of
/// rows 2t and 2t+1.
__device__ inline void ldmatrix_x4(std::uint32_t (&registers)[4], const void* row) {
#if defined(__CUDA_ARCH__)
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
#elif !defined(__CUDACC__)
  simulator::ldmatrix<4, false>(registers, row, std::source_location::current());
#endif
}
__device__ inline void ldmatrix_x4_transposed(std::uint32_t (&registers)[4], const void* row) {
#if defined(__CUDA_ARCH__)
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
#elif !defined(__CUDACC__)
  simulator::ldmatrix<4, true>(registers, row, std::source_location::current());
#endif
}

}  // namespace FURLONG_GPU
}  // namespace furlong
