#pragma once
// Options and counters of the simulator's GEMM library, for tests.
#include <array>
#include <atomic>

#include "framework/primitives/gemm_plan.h"

namespace furlong::ops {

struct SimulatedGemmLibrary {
  /// Whether it has algorithms for GELU and for gradients in epilogues (see may_be_missing()).
  std::atomic<bool> has_all{true};
  /// Number of products run or recorded, by FusedEpilogue.
  std::array<std::atomic<std::int64_t>, n_fused_epilogues> products{};
  /// Number of products refused.
  std::atomic<std::int64_t> refused{0};
};
inline SimulatedGemmLibrary& simulated_gemm_library() {
  static SimulatedGemmLibrary library;
  return library;
}

}  // namespace furlong::ops
