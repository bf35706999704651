#pragma once
// What tests ask the simulator's library of products, and tell it.
#include <array>
#include <atomic>

#include "framework/primitives/gemm_plan.h"

namespace furlong::ops {

struct SimulatedGemmLibrary {
  /// Whether it has algorithms for GELU and for gradients in epilogues (what may_be_missing() names).
  std::atomic<bool> has_all{true};
  /// How many products of each kind it has carried out or taken for a recording, by FusedEpilogue.
  std::array<std::atomic<std::int64_t>, n_fused_epilogues> products{};
  /// How many it has refused.
  std::atomic<std::int64_t> refused{0};
};
inline SimulatedGemmLibrary& simulated_gemm_library() {
  static SimulatedGemmLibrary library;
  return library;
}

}  // namespace furlong::ops
