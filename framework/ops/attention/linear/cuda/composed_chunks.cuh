#pragma once
// The composed kernels of linear attention on GPUs: attention of the queries of each chunk to the keys near them and to
// the states, given features and products; gradients likewise. One warp per row.
#include "framework/ops/attention/linear/cuda/composed_features.cuh"
#include "framework/ops/attention/linear/cuda/composed_pairs.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// The state of the keys (or queries) that row i of a side meets in one direction.
template <class T>
struct MetState {
  const T *maximum, *normalizer, *not_finite;
  T magnitude;

  __device__ static MetState of(const Composed<T>& c, bool of_keys, int direction, const ComposedPlace& place) {
    const ComposedStates<T>& states = of_keys ? c.gathered[direction] : c.states[direction];
    const std::int64_t border = place.head * states.borders + c.border(of_keys, direction, place.t);
    return {states.maximum + border * c.m, states.normalizer + border * c.m, states.not_finite + border * c.v_padded,
            states.scalars[border * 3 + 1]};
  }
};
template <class T>
__device__ inline bool meets_state(const Composed<T>& c, bool of_keys, int direction, const ComposedPlace& place,
                                   int i) {
  return c.scans(of_keys, direction) && c.meets(of_keys, direction, place, i);
}

/// Returns 1 / N, or zero if N is zero, no key was visible, or N is rounding noise compared with `magnitude`, which is
/// Σ_j |φ(q_i)| |φ(k_j)|; for logarithms with a rotated numerator 1, a bound on the numerator's largest term; otherwise
/// 0. Sets `relative` to N / magnitude.
template <class T>
__device__ inline T inverse_of(const Composed<T>& c, T total, T magnitude, T& relative) {
  relative = T(1);
  if (c.rms) return T(1);  // the output kernel divides
  if (magnitude > T(0) && (c.guarded || c.rotates)) {
    relative = (c.guarded ? gpu_abs(total) : total) / magnitude;
    if (relative < (c.guarded ? c.guard : c.min_rotated_denominator)) total = 0;
  }
  // Zero, or a subnormal number, whose inverse may be infinite.
  return gpu_abs(total) < std::numeric_limits<T>::min() ? T(0) : T(1) / total;
}

/// Computes the stabilizer, the weights and the denominator of each query. Weights of the state: logarithms: far
/// [m_padded]; values: one factor per row.
template <class T, FeatureForm form>
__global__ void __launch_bounds__(composed_threads, 1) linear_attention_weights_kernel(const Composed<T> c) {
  constexpr bool logarithms = form == FeatureForm::logarithms;
  const ComposedBlock block = ComposedBlock::of(c);
  for_rows(composed_rows, [&](int r) {
    const ComposedPlace& place = block.place;
    const int i = block.row + r;
    const std::int64_t row = c.row(place, i);
    const bool exists = c.is_query(i);
    if (!c.is_own(i) || (!c.paired && !exists)) return;
    const T* const a = c.q.features + row * c.m_padded;
    T top = c.nothing, total = 0, magnitude = 0;
    FURLONG_UNROLL
    for (int direction = 0; direction < 2; ++direction) {
      if (!exists || !meets_state(c, false, direction, place, i)) continue;
      const MetState<T> state = MetState<T>::of(c, false, direction, place);
      T best = c.nothing;
      if constexpr (logarithms) {
        for_columns(c.m, [&](int f) { best = gpu_max(best, a[f] + state.maximum[f]); });
        best = warp_max(best);
      } else {
        best = state.maximum[0];
      }
      if (top < best) top = best;
    }
    if (c.paired) {
      const PairRow<T> pairs(c, place, exists ? i : 0);
      const ComposedPairs visible = pairs.visible;
      const T* const key_size = c.k.size + c.row(place, 0);
      const T* const key_log = c.k.log + c.row(place, 0);
      if (exists) {
        T near = c.nothing;
        if constexpr (logarithms) {
          near = pairs.top();
        } else {
          for (int j = visible.first + lane_index(); j < visible.end; j += 32) {
            if (visible.is_feature(j)) near = gpu_max(near, key_log[j]);
          }
          near = warp_max(near);
        }
        if (top < near) top = near;
        if (visible.soft < visible.soft_end) {
          T best = c.nothing;
          bool lost = false;
          for (int j = visible.soft + lane_index(); j < visible.soft_end; j += 32) {
            const T x = pairs.score(j);
            lost = lost || x != x;
            best = gpu_max(best, x);
          }
          best = warp_max(best);
          if (__any_sync(full_warp, lost)) best = std::numeric_limits<T>::quiet_NaN();
          top = best < top ? top : best;  // propagates NaN
        }
      }
      if (top < c.nothing / 2) top = -c.nothing;  // no visible key: every weight is zero
      const T least = pairs.min_product(), shift = logarithms ? c.q.size[row] - top : -top;
      const auto weight = [&](int j) {
        T kept = 0;
        if (!exists || j < visible.first || j >= visible.end) return kept;
        if (visible.is_soft(j)) {
          kept = exponential(pairs.score(j) - top);
          total += kept;
          if (!logarithms) magnitude += kept;
          return kept;
        }
        const T p = c.product[pairs.pair0 + j];
        if (logarithms && !(p >= least)) return kept;
        const T factor = logarithms ? exponential(key_size[j] - top + c.q.size[row]) : exponential(key_log[j] + shift);
        total = gpu_fma(p, factor, total);
        if (!logarithms) magnitude = gpu_fma(key_size[j] * c.q.size[row], factor, magnitude);
        return pairs.numerator(j) * factor;
      };
      const std::int64_t pair0 = c.pair(place, i, 0);
      for (int j = c.band_begin(place) + 2 * lane_index(); j < c.band_end(place); j += 64) {
        const T x = weight(j), y = weight(j + 1);
        c.weights.put(pair0 + j, x, y);
      }
      if (!exists) return;
      total = warp_sum(total);
      magnitude = warp_sum(magnitude);
      __syncwarp();
      if constexpr (logarithms) {
        pairs.for_direct([&](int j) {
          const T x = pairs.direct_weight(j, top);
          if (lane_index() == 0) c.weights.put(pair0 + j, x);
          total += c.rotates && j != i ? exponential(pairs.log_weight(j) - top) : x;
        });
      }
    }
    if (top < c.nothing / 2) top = -c.nothing;
    FURLONG_UNROLL
    for (int direction = 0; direction < 2; ++direction) {
      if (!c.scans(false, direction)) continue;
      const bool met = c.meets(false, direction, place, i);
      T factor = met ? T(1) : T(0);
      if (met) {
        const MetState<T> state = MetState<T>::of(c, false, direction, place);
        if constexpr (logarithms) {
          const auto element = [&](int f) { return f < c.m ? exponential(a[f] + (state.maximum[f] - top)) : T(0); };
          const Parts<T>& far = c.q.far[direction];
          const std::int64_t at = row * c.m_padded;
          T sum = 0;
          if (c.rotates) {
            sum = row_sum<T>(c.m, [&](int f) { return element(f) * state.normalizer[f]; });
            rotate_row(rotation_of(c, place, i), c.m, false, element, [&](int f, T x) { far.put(at + f, x); });
            for (int f = c.m + lane_index(); f < c.m_padded; f += 32) far.put(at + f, T(0));
          } else {
            for_column_pairs(c.m_padded, [&](int f) {
              const T x = element(f), y = element(f + 1);
              if (f < c.m) sum = gpu_fma(x, state.normalizer[f], sum);
              if (f + 1 < c.m) sum = gpu_fma(y, state.normalizer[f + 1], sum);
              far.put(at + f, x, y);
            });
            sum = warp_sum(sum);
          }
          total += sum;
        } else {
          factor = exponential(state.maximum[0] - top);
          total = gpu_fma(factor, row_dot(a, state.normalizer, c.m), total);
          magnitude = gpu_fma(state.magnitude * factor, c.q.size[row], magnitude);
        }
      }
      if (lane_index() == 0) c.q.factor[direction][row] = factor;
    }
    if (logarithms) magnitude = c.rotates && top < -c.nothing / 2 ? T(1) : T(0);
    T relative;
    const T inverse = inverse_of(c, total, magnitude, relative);
    if (lane_index() != 0) return;
    c.stabilizer[row] = top;
    c.inverse[row] = inverse;
    c.relative[row] = relative;
  });
}

/// Returns the inverse root mean square of `width` numbers of any magnitude; zero for a row of zeros.
template <class T>
__device__ inline T inverse_root_mean_square(const T* row, int width) {
  T largest = 0;
  for_columns(width, [&](int f) { largest = gpu_max(largest, gpu_abs(row[f])); });
  largest = warp_max(largest);
  if (largest < std::numeric_limits<T>::min()) return T(0);
  const T by = T(1) / largest, square = row_sum<T>(width, [&](int f) { return row[f] * by * (row[f] * by); });
  return T(1) / gpu_sqrt(square / static_cast<T>(width)) / largest;
}

/// Writes the outputs of the span's own chunks, from the products of weights with values and states.
template <class T>
__global__ void __launch_bounds__(composed_threads, 1) linear_attention_outputs_kernel(const Composed<T> c) {
  const ComposedBlock block = ComposedBlock::of(c);
  for_rows(composed_rows, [&](int r) {
    const ComposedPlace& place = block.place;
    const int i = block.row + r;
    if (!c.is_own(i) || !c.is_query(i)) return;
    const std::int64_t row = c.row(place, i);
    T* const out = c.q.near_vectors + row * c.v_padded;
    if (!c.paired) for_columns(c.d_value, [&](int f) { out[f] = 0; });
    FURLONG_UNROLL
    for (int direction = 0; direction < 2; ++direction) {
      const T factor = c.scans(false, direction) ? c.q.factor[direction][row] : T(0);
      if (factor == T(0)) continue;
      const MetState<T> state = MetState<T>::of(c, false, direction, place);
      for_columns(c.d_value, [&](int f) {
        out[f] = gpu_fma(factor, c.q.through[direction][row * c.v_padded + f], out[f]) + state.not_finite[f];
      });
    }
    if (c.paired) {
      const ComposedPairs visible = ComposedPairs::of(c, place, i);
      for (int j0 = visible.first; j0 < visible.end; j0 += 32) {
        const int mine = j0 + lane_index();
        unsigned lanes = __ballot_sync(full_warp, mine < visible.end && c.k.not_finite[c.row(place, mine)] != 0);
        for (; lanes != 0; lanes &= lanes - 1) {
          const int j = j0 + __ffs(static_cast<int>(lanes)) - 1;
          const T weight = c.weights.get(c.pair(place, i, j));
          const std::int64_t at = c.key_address(c.value, place, j);
          for_columns(c.d_value, [&](int f) {
            const T x = c.value.template read<T>(at + f);
            if (!gpu_is_finite(x)) out[f] += weight * x;
          });
        }
      }
    }
    __syncwarp();
    const T by = c.rms ? inverse_root_mean_square(out, c.d_value) : c.inverse[row];
    if (lane_index() == 0 && c.top) {
      *c.per_query(c.top, place, i) = c.stabilizer[row];
      *c.per_query(c.inverse_denominator, place, i) = by;
    }
    const std::int64_t at = c.query_address(c.output, place, i);
    for_columns(c.d_value, [&](int f) { c.output.template write<T>(at + f, out[f] * by); });
  });
}

/// Computes the gradients of the products of each query's pairs, and the weights of values. Starts d_features of the
/// queries with the gradients of direct pairs.
template <class T, FeatureForm form>
__global__ void __launch_bounds__(composed_threads, 1) linear_attention_pair_gradients_kernel(const Composed<T> c) {
  constexpr bool logarithms = form == FeatureForm::logarithms;
  const ComposedBlock block = ComposedBlock::of(c);
  for_rows(composed_rows, [&](int r) {
    const ComposedPlace& place = block.place;
    const int i = block.row + r;
    const std::int64_t row = c.row(place, i);
    const bool exists = c.is_query(i);
    T* const d_features = c.q.d_features + row * c.m_padded;
    for_columns(c.m_padded, [&](int f) { d_features[f] = 0; });
    if (!c.paired) return;
    const PairRow<T> pairs(c, place, exists ? i : 0);
    const ComposedPairs visible = pairs.visible;
    const T inverse = c.inverse[row], top = c.stabilizer[row], delta = c.delta[row], least = pairs.min_product();
    const std::int64_t pair0 = c.pair(place, i, 0), key0 = c.row(place, 0);
    T sum = 0;
    struct Gradients {
      T weight, product, rotated, score;
    };
    const auto gradients = [&](int j) {
      Gradients x{};
      if (!exists || j < visible.first || j >= visible.end) return x;
      const T g_v = c.g_v[pair0 + j];
      if (visible.is_soft(j)) {
        x.weight = inverse * exponential(pairs.score(j) - top);
        x.score = x.weight * (g_v - delta);
        sum += x.score;
        return x;
      }
      if (logarithms && !(c.product[pair0 + j] >= least)) return x;
      const T factor = inverse * (logarithms ? exponential(c.k.size[key0 + j] - top + c.q.size[row])
                                             : exponential(c.k.log[key0 + j] - top));
      x.weight = pairs.numerator(j) * factor;
      if (c.rotates && j != i) {
        x.rotated = factor * g_v;
        x.product = -(factor * delta);
      } else {
        x.product = factor * (g_v - delta);
      }
      return x;
    };
    for (int j = c.band_begin(place) + 2 * lane_index(); j < c.band_end(place); j += 64) {
      const Gradients x = gradients(j), y = gradients(j + 1);
      c.weights.put(pair0 + j, x.weight, y.weight);
      c.d_product.put(pair0 + j, x.product, y.product);
      if (c.rotates) c.d_rotated.put(pair0 + j, x.rotated, y.rotated);
      if (c.softmax) c.d_score.put(pair0 + j, x.score, y.score);
    }
    __syncwarp();
    sum = warp_sum(sum);
    if (lane_index() == 0) c.d_log[row] = -sum;
    if constexpr (logarithms) {
      if (!exists) return;
      pairs.for_direct([&](int j) {
        const T x = pairs.direct_weight(j, top) * inverse;
        if (lane_index() == 0) c.weights.put(pair0 + j, x);
        pairs.add_direct_gradients(j, true, d_features);
      });
    }
  });
}

/// Adds gradients of a row's features that came through states and near pairs to d_features. `scale` is the part of the
/// row's weight in the state that does not depend on the feature: logarithms: its logarithm, values: a factor.
/// d_through holds products of vectors with S; `inner` is what z is multiplied by.
template <class T, FeatureForm form>
__device__ inline void add_feature_gradients(const Composed<T>& c, bool of_keys, const ComposedPlace& place, int i,
                                             T top, T inverse, T inner) {
  constexpr bool logarithms = form == FeatureForm::logarithms;
  const ComposedSide<T>& side = c.side(of_keys);
  const std::int64_t row = c.row(place, i), at = row * c.m_padded;
  const T* const features = side.features + at;
  T* const d_features = side.d_features + at;
  const auto rotate_back = [&](T* x) {
    if (!c.rotates) return;
    rotate_row(
        rotation_of(c, place, i), c.m, true, [&](int f) { return x[f]; }, [&](int f, T value) { x[f] = value; });
    __syncwarp();
  };
  FURLONG_UNROLL
  for (int direction = 0; direction < 2; ++direction) {
    if (!c.scans(of_keys, direction)) continue;
    const bool met = c.meets(of_keys, direction, place, i);
    T factor = met ? T(1) : T(0);
    if (met) {
      const MetState<T> state = MetState<T>::of(c, of_keys, direction, place);
      T* const through = side.d_through[direction] + at;
      rotate_back(through);
      if constexpr (logarithms) {
        const auto weight = [&](int f) { return f < c.m ? exponential(features[f] + (state.maximum[f] - top)) : T(0); };
        const Parts<T>& far = side.far[direction];
        const auto add = [&](int f, T x) {
          if (f < c.m) d_features[f] += x * inverse * gpu_fma(inner, state.normalizer[f], through[f]);
        };
        if (!of_keys || c.rotates) {
          for_columns(c.m, [&](int f) { add(f, weight(f)); });
        } else {
          for_column_pairs(c.m_padded, [&](int f) {
            const T x = weight(f), y = weight(f + 1);
            add(f, x);
            add(f + 1, y);
            far.put(at + f, x, y);
          });
        }
        if (of_keys && c.rotates) {
          rotate_row(rotation_of(c, place, i), c.m, false, weight, [&](int f, T x) { far.put(at + f, x); });
          for (int f = c.m + lane_index(); f < c.m_padded; f += 32) far.put(at + f, T(0));
        }
      } else {
        factor = exponential(state.maximum[0] - top) * inverse;
        for_columns(c.m, [&](int f) {
          d_features[f] = gpu_fma(factor, gpu_fma(inner, state.normalizer[f], through[f]), d_features[f]);
        });
      }
    }
    if (lane_index() == 0) side.factor[direction][row] = factor;
    __syncwarp();
  }
  if (!c.paired) return;
  if (c.rotates) rotate_back(side.d_near_rotated + at);
  for_columns(c.m, [&](int f) {
    const T x = c.rotates ? side.d_near[at + f] + side.d_near_rotated[at + f] : side.d_near[at + f];
    d_features[f] = gpu_fma(logarithms ? exponential(features[f] - side.size[row]) : T(1), x, d_features[f]);
  });
  __syncwarp();
}

/// Computes the gradients of the queries' inputs, or of their projections.
template <class T, FeatureForm form>
__global__ void __launch_bounds__(composed_threads, 1) linear_attention_query_gradients_kernel(const Composed<T> c) {
  FURLONG_SHARED(GpuFeatureRows<T>, map);
  const ComposedBlock block = ComposedBlock::of(c);
  if (block_thread() == 0) c.describe(block.place, map);
  __syncthreads();
  for_rows(composed_rows, [&](int r) {
    const int i = block.row + r;
    const std::int64_t row = c.row(block.place, i);
    if (!c.is_own(i)) return;
    if (c.is_query(i))
      add_feature_gradients<T, form>(c, false, block.place, i, c.stabilizer[row], c.inverse[row], -c.delta[row]);
    finish_features<T, form>(c, map, false, row, c.softmax ? c.d_log[row] : T(0));
  });
}

/// Computes the gradients of the keys' inputs, or of their projections, and the weights of the gathered queries.
template <class T, FeatureForm form>
__global__ void __launch_bounds__(composed_threads, 1) linear_attention_key_gradients_kernel(const Composed<T> c) {
  constexpr bool logarithms = form == FeatureForm::logarithms;
  FURLONG_SHARED(GpuFeatureRows<T>, map);
  const ComposedBlock block = ComposedBlock::of(c);
  if (block_thread() == 0) c.describe(block.place, map);
  __syncthreads();
  for_rows(composed_rows, [&](int r) {
    const ComposedPlace& place = block.place;
    const int j = block.row + r;
    const std::int64_t row = c.row(place, j);
    if (!c.is_own(j)) return;
    T* const d_features = c.k.d_features + row * c.m_padded;
    const T* const features = c.k.features + row * c.m_padded;
    for_columns(c.m_padded, [&](int f) { d_features[f] = 0; });
    __syncwarp();
    T exact = 0, sum = 0;
    if (c.is_key(j)) {
      const T log = logarithms ? T(0) : -c.k.log[row];
      add_feature_gradients<T, form>(c, true, place, j, log, T(1), T(1));
      // The queries whose band contains the key.
      const int first = gpu_max(place.t - c.after, 0) * c.chunk,
                end = c.paired ? gpu_min(place.t + c.before + 1, c.chunks) * c.chunk : first;
      for (int i0 = first; i0 < end && (logarithms || c.softmax); i0 += 32) {
        const int i = i0 + lane_index();
        const bool exists = i < end && c.is_query(i);
        if (c.softmax && exists) exact += c.d_score.get(c.pair(place, i, j));
        if (!logarithms) continue;
        const auto pair_row = [&](int query) {
          return PairRow<T>(c, {place.head, place.sequence, place.query_head, place.key_head, query / c.chunk}, query);
        };
        const bool direct = exists && pair_row(i).is_direct(j);
        for (unsigned lanes = __ballot_sync(full_warp, direct); lanes != 0; lanes &= lanes - 1)
          pair_row(i0 + __ffs(static_cast<int>(lanes)) - 1).add_direct_gradients(j, false, d_features);
      }
      exact = warp_sum(exact);
      // The weights of feature pairs and of keys in the state have the factor exp(weight): for values also exp of the
      // map's row logarithm. Exact pairs depend on the key's own weight alone.
      sum = logarithms ? (c.weighted ? row_sum<T>(c.m, [&](int f) { return d_features[f]; }) : T(0))
                       : row_dot(features, d_features, c.m);
      if (lane_index() == 0) c.k.d_weight[row] = sum + exact;
      __syncwarp();
    }
    finish_features<T, form>(c, map, true, row, logarithms ? T(0) : sum);
  });
}

/// denominators [heads, 2] of the span's own queries: rows without a denominator, and the least relative denominator.
/// One warp per head. `more`: adds to earlier spans.
template <class T>
__global__ void __launch_bounds__(256, 1)
    linear_attention_report_kernel(const Composed<T> c, T* denominators, bool more) {
  for (std::int64_t head = global_thread() / 32; head < c.heads(); head += grid_stride() / 32) {
    T lost = 0, least = 1;
    for (int i = c.begin * c.chunk + lane_index(); i < c.end * c.chunk; i += 32) {
      if (!c.is_query(i)) continue;
      const std::int64_t row = head * c.rows + i;
      if (c.inverse[row] == T(0)) lost += 1;
      least = gpu_min(least, c.relative[row]);
    }
    lost = warp_sum(lost);
    least = -warp_max(-least);
    if (lane_index() != 0) continue;
    denominators[2 * head] = more ? denominators[2 * head] + lost : lost;
    denominators[2 * head + 1] = more ? gpu_min(denominators[2 * head + 1], least) : least;
  }
}
/// d_gate [heads] of the span's own queries. One warp per head.
template <class T>
__global__ void __launch_bounds__(256, 1) linear_attention_gate_kernel(const Composed<T> c, T* d_gate, bool more) {
  for (std::int64_t head = global_thread() / 32; head < c.heads(); head += grid_stride() / 32) {
    double sum = 0;
    for (int i = c.begin * c.chunk + lane_index(); i < c.end * c.chunk; i += 32) {
      if (c.is_query(i)) sum -= static_cast<double>(c.d_log[head * c.rows + i]);
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) d_gate[head] = static_cast<T>(more ? static_cast<double>(d_gate[head]) + sum : sum);
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
