#pragma once
// The machine that furlong plan runs on, measured, as a device to plan for.
#include "evaluation/plan/plan_device.h"

namespace furlong {

/// One of `cluster.per_host` processes on hosts like this one, each with its share of the cores (or `threads` of them;
/// 0: its share), of the memory and of their bandwidth. Takes a few seconds: a large product, a copy, and where
/// processes share a host an all-reduce over Gloo between two threads of this process. Leaves the thread count changed.
/// The network between hosts is assumed: 10 Gb/s a host.
PlanDevice measure_plan_device(DType dtype, const PlanCluster& cluster, int threads);

}  // namespace furlong
