#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Exact softmax attention. Generation uses a key-value cache; with a window the cache is little longer than the
/// window.
MechanismInfo softmax_mechanism();

/// Returns the number of (query, key) pairs among n tokens that attend to each other. `window` 0: no window.
double attended_pairs(bool causal, std::int64_t n, std::int64_t window);
/// Returns the cost of exact attention over `pairs` pairs in one head of width d.
AttentionCost softmax_cost(double pairs, double d);

}  // namespace furlong::layers
