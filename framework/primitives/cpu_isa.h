#pragma once
// FURLONG_CPU_ISA limits the instruction sets of the CPU engine: its own vector code and oneDNN's products. With the
// same limit, different machines can compute the same numbers.
#include <string>

#include "framework/simd/bfloat16_products.h"

namespace furlong::ops {

/// Applies FURLONG_CPU_ISA if it is set. Call once, before any computation. Throws UserError if the name is unknown or
/// this CPU does not support the instruction set.
void limit_cpu_isa();

/// Returns the best instruction set in use: sse4, avx2, avx512, avx512_bf16 or amx; empty on other architectures. The
/// bfloat16 dot products of AVX-512 are used on Intel's CPUs only if FURLONG_CPU_ISA requests them: these CPUs start
/// one in two cycles, and two float32 multiply-adds in each, so that float32 is twice as fast.
std::string cpu_isa();

/// Returns whether products of bfloat16 matrices use bfloat16 instructions; otherwise they are computed in float32.
bool multiplies_bfloat16();

/// Returns the kernels for products of small bfloat16 matrices, or null if such products are faster in float32 or the
/// system does not grant AMX's tiles.
const simd::BFloat16Products* bfloat16_products();

}  // namespace furlong::ops
