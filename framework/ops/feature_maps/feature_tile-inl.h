// What every feature map's tile functions are given. Per-target include guard; see framework/cpu/simd-inl.h.
#if defined(FURLONG_FEATURE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_FEATURE_TILE_INL_H_
#undef FURLONG_FEATURE_TILE_INL_H_
#else
#define FURLONG_FEATURE_TILE_INL_H_
#endif

#include "framework/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {
using namespace furlong::cpu::HWY_NAMESPACE;

template <class T>
struct FeatureTile {
  std::int64_t d = 0, m = 0;                 // width of a head, number of features
  std::int64_t ld_x = 0, ld_m = 0;           // elements from one row to the next of [rows, d] and [rows, m] tiles
  const T* directions = nullptr;             // ω [m, d], rows d apart
  const T* directions_transposed = nullptr;  // ωᵀ [d, m], rows ld_m apart
  T scale = 1;                               // d^(-1/4)
};

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
