#pragma once
// How NAME_cpu.cpp hands its functions over. Such a file defines, for each instruction set, a class template with two
// static functions like those of FeatureMapFunctions; FURLONG_FEATURE_MAP_BODIES wraps them in functions that are no
// templates, which is what Highway can export, and FURLONG_FEATURE_MAP_EXPORT defines feature_map_bodies for the map.
#include "framework/ops/attention/feature_maps/feature_map_cpu.h"

namespace furlong::ops {

template <class T, FeatureMap map>
FeatureMapFunctions<T> feature_map_bodies();

#define FURLONG_DECLARE_FEATURE_MAP(map)                                   \
  template <>                                                              \
  FeatureMapFunctions<float> feature_map_bodies<float, FeatureMap::map>(); \
  template <>                                                              \
  FeatureMapFunctions<double> feature_map_bodies<double, FeatureMap::map>();
FURLONG_DECLARE_FEATURE_MAP(elu1)
FURLONG_DECLARE_FEATURE_MAP(relu)
FURLONG_DECLARE_FEATURE_MAP(exp)
FURLONG_DECLARE_FEATURE_MAP(favor_positive)
FURLONG_DECLARE_FEATURE_MAP(favor_hyperbolic)
FURLONG_DECLARE_FEATURE_MAP(favor_trig)
FURLONG_DECLARE_FEATURE_MAP(favor_relu)
FURLONG_DECLARE_FEATURE_MAP(taylor)
FURLONG_DECLARE_FEATURE_MAP(limit)
FURLONG_DECLARE_FEATURE_MAP(cosine)
FURLONG_DECLARE_FEATURE_MAP(oprf)
FURLONG_DECLARE_FEATURE_MAP(hedgehog)
#undef FURLONG_DECLARE_FEATURE_MAP

}  // namespace furlong::ops

#define FURLONG_FEATURE_MAP_BODY(Map, T, Name)                                                                        \
  void Map##Features##Name(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, T* features,       \
                           T* row_log) {                                                                              \
    Map<T>::features(tile, x, rows, is_key, features, row_log);                                                       \
  }                                                                                                                   \
  void Map##Backward##Name(const FeatureTile<T>& tile, const T* x, std::int64_t rows, bool is_key, const T* features, \
                           T* d_features, const T* d_row_log, T* d_x) {                                               \
    Map<T>::backward(tile, x, rows, is_key, features, d_features, d_row_log, d_x);                                    \
  }
/// Once for each instruction set, after class template Map.
#define FURLONG_FEATURE_MAP_BODIES(Map)     \
  FURLONG_FEATURE_MAP_BODY(Map, float, F32) \
  FURLONG_FEATURE_MAP_BODY(Map, double, F64)

#define FURLONG_FEATURE_MAP_EXPORT_TYPE(Map, T, Name, map)                                           \
  HWY_EXPORT(Map##Features##Name);                                                                   \
  HWY_EXPORT(Map##Backward##Name);                                                                   \
  template <>                                                                                        \
  FeatureMapFunctions<T> feature_map_bodies<T, FeatureMap::map>() {                                  \
    return {&HWY_DYNAMIC_DISPATCH(Map##Features##Name), &HWY_DYNAMIC_DISPATCH(Map##Backward##Name)}; \
  }
/// Once a file, in namespace furlong::ops under HWY_ONCE.
#define FURLONG_FEATURE_MAP_EXPORT(Map, map)            \
  FURLONG_FEATURE_MAP_EXPORT_TYPE(Map, float, F32, map) \
  FURLONG_FEATURE_MAP_EXPORT_TYPE(Map, double, F64, map)
