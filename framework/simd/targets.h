#pragma once
// Selects the instruction sets for which SIMD files (of the CPU engine and the simulator) are compiled. Include it
// before any Highway header. One binary contains all of them and selects at run time: the build's baseline (on x86-64:
// SSE4.2, see CMakeLists.txt), AVX2 with FMA, and AVX-512 (AVX3: none of the targets with lower bits, which add
// instructions that vary with the version of Highway).
#include <hwy/detect_targets.h>
#if HWY_ARCH_X86
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | (HWY_AVX3 - 1))
#endif
