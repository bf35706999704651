#pragma once
// FURLONG_CPU_ISA limits the instruction sets of the CPU engine, its own vector code and oneDNN's products alike, so
// that one machine computes the numbers of another.
#include <string>

namespace furlong::ops {

/// Applies FURLONG_CPU_ISA where it is set. Call once, before anything is computed. Throws UserError for a name that is
/// unknown or that this CPU lacks.
void limit_cpu_isa();

/// The name of the best instruction set in use: sse4, avx2, avx512, avx512_bf16 or amx; empty on other architectures.
std::string cpu_isa();

}  // namespace furlong::ops
