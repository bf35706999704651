#pragma once
// Measures this machine as a device of furlong plan.
#include "evaluation/plan/plan_device.h"

namespace furlong {

/// Returns the numbers of one of `cluster.per_host` ranks on hosts like this one. Each rank has `threads` cores (0: its
/// share), and its share of memory and bandwidth. Measures, for a few seconds, a large matrix product, a copy and, if
/// ranks share a host, a Gloo all-reduce between two threads. Changes the thread count. Assumes a network of 10 Gb/s
/// per host.
PlanDevice measure_plan_device(DType dtype, const PlanCluster& cluster, int threads);

}  // namespace furlong
