#pragma once
// FURLONG_CPU_ISA limits the instruction sets of the CPU engine: its own vector code and oneDNN's products. With the
// same limit, different machines can compute the same numbers.
#include <string>

namespace furlong::ops {

/// Applies FURLONG_CPU_ISA if it is set. Call once, before any computation. Throws UserError if the name is unknown or
/// this CPU does not support the instruction set.
void limit_cpu_isa();

/// Returns the best instruction set in use: sse4, avx2, avx512, avx512_bf16 or amx; empty on other architectures.
std::string cpu_isa();

}  // namespace furlong::ops
