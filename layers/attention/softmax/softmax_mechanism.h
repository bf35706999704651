#pragma once
#include "layers/attention/mechanism.h"

namespace furlong::layers {

/// Exact softmax attention; generation keeps a key-value cache, of little more than the window where there is one.
MechanismInfo softmax_mechanism();

/// Pairs of n tokens that see each other; window 0: none.
double attended_pairs(bool causal, std::int64_t n, std::int64_t window);
/// Cost of exact attention over `pairs` pairs in one head of width d.
AttentionCost softmax_cost(double pairs, double d);

}  // namespace furlong::layers
