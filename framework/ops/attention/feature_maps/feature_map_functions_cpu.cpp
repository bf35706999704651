#include "framework/cpu/targets.h"
// After targets.h, which says what is compiled.
#include <hwy/targets.h>

#include "framework/core/error.h"
#include "framework/ops/attention/feature_maps/feature_map_kernels.h"

namespace furlong::ops {

template <class T>
FeatureMapFunctions<T> feature_map_functions_cpu(FeatureMap map) {
  // Before the first dispatch of the program, Highway's pointers lead to functions that look at the CPU again on every
  // call.
  if (!hwy::GetChosenTarget().IsInitialized()) hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  switch (map) {
    case FeatureMap::elu1:
      return feature_map_bodies<T, FeatureMap::elu1>();
    case FeatureMap::relu:
      return feature_map_bodies<T, FeatureMap::relu>();
    case FeatureMap::exp:
      return feature_map_bodies<T, FeatureMap::exp>();
    case FeatureMap::favor_positive:
      return feature_map_bodies<T, FeatureMap::favor_positive>();
    case FeatureMap::favor_hyperbolic:
      return feature_map_bodies<T, FeatureMap::favor_hyperbolic>();
    case FeatureMap::favor_trig:
      return feature_map_bodies<T, FeatureMap::favor_trig>();
    case FeatureMap::favor_relu:
      return feature_map_bodies<T, FeatureMap::favor_relu>();
    case FeatureMap::taylor:
      return feature_map_bodies<T, FeatureMap::taylor>();
    case FeatureMap::limit:
      return feature_map_bodies<T, FeatureMap::limit>();
    case FeatureMap::cosine:
      return feature_map_bodies<T, FeatureMap::cosine>();
    case FeatureMap::oprf:
      return feature_map_bodies<T, FeatureMap::oprf>();
    case FeatureMap::hedgehog:
      return feature_map_bodies<T, FeatureMap::hedgehog>();
  }
  throw ContractError("a feature map without CPU bodies");
}
template FeatureMapFunctions<float> feature_map_functions_cpu<float>(FeatureMap map);
template FeatureMapFunctions<double> feature_map_functions_cpu<double>(FeatureMap map);

}  // namespace furlong::ops
