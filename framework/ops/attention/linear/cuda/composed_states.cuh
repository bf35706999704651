#pragma once
// The composed kernels of linear attention on GPUs: sums over the rows of each chunk, and the scan of these sums over
// chunks. A product (features)ᵀ · (vectors) between the two computes S. In backward the rows are queries: sums over
// keys of later ones, with weights exp(a_i - top_i) / N_i, g in place of v, and z over -δ_i.
#include "framework/ops/attention/linear/cuda/composed.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// first and end [batch, n]: start and end of the run of equal numbers that each token belongs to. One block per
/// sequence, one thread per part of it.
template <class Integer>
__global__ void __launch_bounds__(256, 1)
    linear_attention_documents_kernel(const std::int32_t* documents, std::int64_t n, Integer* first, Integer* end) {
  FURLONG_SHARED(std::int32_t, latest, [256]);    // the last border in each thread's part, or -1
  FURLONG_SHARED(std::int32_t, earliest, [256]);  // the first border, or n
  const std::int32_t* ids = documents + blockIdx.x * n;
  first += blockIdx.x * n;
  end += blockIdx.x * n;
  const std::int64_t length = ceil_div(n, std::int64_t{blockDim.x}), begin = block_thread() * length,
                     stop = gpu_min(begin + length, n);
  std::int32_t last_border = -1, first_border = static_cast<std::int32_t>(n);
  for (std::int64_t i = begin; i < stop; ++i) {  // a border: the start of a document
    if (i > 0 && ids[i] == ids[i - 1]) continue;
    last_border = static_cast<std::int32_t>(i);
    if (first_border == n) first_border = last_border;
  }
  latest[block_thread()] = last_border;
  earliest[block_thread()] = first_border;
  __syncthreads();
  std::int32_t open = 0, close = static_cast<std::int32_t>(n);
  for (int thread = block_thread() - 1; thread >= 0; --thread) {
    if (latest[thread] < 0) continue;
    open = latest[thread];
    break;
  }
  for (int thread = block_thread() + 1; thread < static_cast<int>(blockDim.x); ++thread) {
    if (earliest[thread] == n) continue;
    close = earliest[thread];
    break;
  }
  for (std::int64_t i = begin; i < stop; ++i) {
    if (i == 0 || ids[i] != ids[i - 1]) open = static_cast<std::int32_t>(i);
    first[i] = open;
  }
  for (std::int64_t i = stop - 1; i >= begin; --i) {
    end[i] = close;
    if (i == 0 || ids[i] != ids[i - 1]) close = static_cast<std::int32_t>(i);
  }
}

/// Computes c, z and M of each chunk, and the operands of S: weights of the rows in the state, in place of features
/// (logarithms) or of vectors (values). One block per chunk of a head. Only rows of the document that continues in the
/// direction of the scan count, and only positions before `limit`.
template <class T, FeatureForm form>
__global__ void __launch_bounds__(composed_threads, 1)
    linear_attention_sums_kernel(const Composed<T> c, const ComposedSide<T> side, const ComposedStates<T> states,
                                 bool of_keys, int direction, std::int64_t limit) {
  FURLONG_SHARED(T, factors, [128]);
  const int t = static_cast<int>(blockIdx.x) % c.chunks;
  const ComposedPlace place = c.place(static_cast<int>(blockIdx.x) / c.chunks, t);
  const std::int64_t border = place.head * states.borders + t + (direction == 0 ? 1 : 0),
                     origin = c.first + t * c.chunk;
  std::int64_t low = gpu_max(origin, of_keys ? 0 : c.query_offset),
               high = gpu_min(origin + c.chunk, of_keys ? gpu_min(c.n_key, limit) : c.query_offset + c.n_query);
  bool fresh = false;
  if (low < high && c.document_first) {
    if (direction == 0) {
      const std::int64_t start = c.document_begin(place.sequence, high - 1);
      fresh = start >= origin;
      low = gpu_max(low, start);
    } else {
      const std::int64_t stop = c.document_stop(place.sequence, low);
      fresh = stop <= origin + c.chunk;
      high = gpu_min(high, stop);
    }
  }
  const int begin = static_cast<int>(low - c.first), end = gpu_max(begin, static_cast<int>(high - c.first));
  const std::int64_t row0 = c.row(place, 0);
  if (block_thread() == 0) {
    int* const rows = states.rows + blockIdx.x * 2;
    rows[0] = begin;
    rows[1] = end;
    states.scalars[border * 3] = 0;
    states.scalars[border * 3 + 2] = fresh ? T(1) : T(0);
  }
  T *const normalizer = states.normalizer + border * c.m, *const own = states.own + border * c.m;
  if constexpr (form == FeatureForm::logarithms) {
    const auto less = [&](int i) { return of_keys ? T(0) : c.stabilizer[row0 + i]; };
    const auto raised = [&](T top, int f) {
      for (int i = begin; i < end; ++i) top = gpu_max(top, side.features[(row0 + i) * c.m_padded + f] - less(i));
      return top;
    };
    const auto weight = [&](int i, int f, T top) {
      const T x = exponential(side.features[(row0 + i) * c.m_padded + f] - (less(i) + top));
      return of_keys ? x : x * c.inverse[row0 + i];
    };
    const auto term = [&](int i, T x) { return of_keys ? x : -c.delta[row0 + i] * x; };
    const auto finish = [&](int f, T top, T sum) {
      if (f >= c.m) return;
      own[f] = top;
      normalizer[f] = sum;
    };
    // Both features of a rotated pair have the larger maximum. Otherwise a thread has two neighbors, to write pairs.
    const int half = c.half(), pairs = c.rotates ? half : c.m_padded / 2;
    for (int p = block_thread(); p < pairs; p += composed_threads) {
      const int f = c.rotates ? p : 2 * p, other = c.rotates ? half + p : f + 1;
      T top = f < c.m ? raised(c.nothing, f) : T(0), other_top = other < c.m ? raised(c.nothing, other) : T(0);
      if (c.rotates) top = other_top = gpu_max(top, other_top);
      T sum = 0, other_sum = 0;
      for (int i = begin; i < end; ++i) {
        const T x = f < c.m ? weight(i, f, top) : T(0), y = other < c.m ? weight(i, other, other_top) : T(0);
        sum += term(i, x);
        other_sum += term(i, y);
        const std::int64_t at = (row0 + i) * c.m_padded;
        if (c.rotates) {
          const T *turn = rotation_of(c, place, i), cosine = turn[p], sine = turn[half + p];
          side.sums.put(at + f, gpu_fma(-y, sine, x * cosine));
          side.sums.put(at + other, gpu_fma(x, sine, y * cosine));
        } else {
          side.sums.put(at + f, x, y);
        }
      }
      finish(f, top, sum);
      finish(other, other_top, other_sum);
    }
    for (int f = 2 * half + block_thread(); c.rotates && f < c.m_padded; f += composed_threads) {  // not rotated
      const T top = f < c.m ? raised(c.nothing, f) : T(0);
      T sum = 0;
      for (int i = begin; i < end; ++i) {
        const T x = f < c.m ? weight(i, f, top) : T(0);
        sum += term(i, x);
        side.sums.put((row0 + i) * c.m_padded + f, x);
      }
      finish(f, top, sum);
    }
  } else {
    const auto log = [&](int i) { return of_keys ? side.log[row0 + i] : -c.stabilizer[row0 + i]; };
    T top = c.nothing, sizes = 0;
    for (int i = begin + lane_index(); i < end; i += 32) top = gpu_max(top, log(i));
    top = warp_max(top);
    for (int i = begin + block_thread(); i < end; i += composed_threads) {
      const T x = exponential(log(i) - top);
      factors[i - begin] = of_keys ? x : x * c.inverse[row0 + i];
    }
    __syncthreads();
    if (of_keys) {
      for (int i = begin + lane_index(); i < end; i += 32)
        sizes = gpu_fma(factors[i - begin], side.size[row0 + i], sizes);
      sizes = warp_sum(sizes);
      if (block_thread() == 0) states.scalars[border * 3] = sizes;
    }
    for_rows(end - begin, [&](int r) {
      for_column_pairs(c.v_padded, [&](int f) {
        const std::int64_t at = (row0 + begin + r) * c.v_padded + f;
        side.weighted.put(at, factors[r] * side.vectors.get(at), factors[r] * side.vectors.get(at + 1));
      });
    });
    for (int f = block_thread(); f < c.m; f += composed_threads) {
      T sum = 0;
      for (int i = begin; i < end; ++i) {
        const T x = factors[i - begin] * side.features[(row0 + i) * c.m_padded + f];
        sum = of_keys ? sum + x : gpu_fma(-c.delta[row0 + i], x, sum);
      }
      own[f] = top;
      normalizer[f] = sum;
    }
  }
  for (int f = block_thread(); f < c.v_padded; f += composed_threads) {
    T sum = 0;
    for (int i = begin; of_keys && i < end; ++i) {
      if (side.not_finite[row0 + i] == 0 || f >= c.d_value || c.is_masked(place, i)) continue;
      const T x = c.value.template read<T>(c.key_address(c.value, place, i) + f);
      if (!gpu_is_finite(x)) sum += x;
    }
    states.not_finite[border * c.v_padded + f] = sum;
  }
}

/// Turns the sums of chunks into states: adds them up from the first border (direction 0) or from the last, each under
/// the running maximum so far. Splits S into parts. A thread has one feature and eight columns of S.
template <class T>
__global__ void __launch_bounds__(256, 1)
    linear_attention_scan_kernel(const Composed<T> c, const ComposedStates<T> states, int direction) {
  constexpr int vector = 16 / sizeof(T), vectors = 8 / vector;
  const int columns = c.v_padded / 8, of_head = c.m_padded * columns, step = direction == 0 ? 1 : -1;
  for (std::int64_t at = global_thread(); at < static_cast<std::int64_t>(c.heads()) * of_head; at += grid_stride()) {
    const int head = static_cast<int>(at / of_head), rest = static_cast<int>(at - std::int64_t{head} * of_head),
              f = rest / columns, column = (rest - f * columns) * 8;
    const bool real = f < c.m, has_normalizer = real && column == 0;
    std::int64_t border = head * states.borders + (direction == 0 ? 0 : c.chunks);
    std::int64_t element = (border * c.m_padded + f) * c.v_padded + column, feature = border * c.m + f;
    const std::int64_t next_element = static_cast<std::int64_t>(step) * c.m_padded * c.v_padded;
    Vector<T, vector> value[vectors], lost[vectors] = {}, bad[vectors] = {};
    FURLONG_UNROLL
    for (int v = 0; v < vectors; ++v) {
      value[v] = load_vector<vector>(states.sum + element + v * vector);
      if (f == 0) bad[v] = load_vector<vector>(states.not_finite + border * c.v_padded + column + v * vector);
    }
    T maximum = real ? states.maximum[feature] : T(0), magnitude = states.scalars[border * 3 + 1],
      normalizer = has_normalizer ? states.normalizer[feature] : T(0), normalizer_lost = 0;
    for (int k = 0; k < c.chunks; ++k) {
      border += step;
      element += next_element;
      feature += static_cast<std::int64_t>(step) * c.m;
      const bool fresh = states.scalars[border * 3 + 2] != T(0);  // the sum so far is of another document
      const T own = real ? states.own[feature] : T(0), after = fresh ? own : gpu_max(maximum, own),
              factor = exponential(maximum - after), own_factor = exponential(own - after);
      const auto add = [&](T& sum, T& error, T mine) {
        const T before = fresh ? T(0) : sum * factor;
        if (!c.compensated) {
          sum = gpu_fma(mine, own_factor, before);
          return;
        }
        const T more = mine * own_factor - (fresh ? T(0) : error * factor);
        sum = before + more;
        error = (sum - before) - more;  // Kahan 1965
      };
      FURLONG_UNROLL
      for (int v = 0; v < vectors; ++v) {
        const Vector<T, vector> mine = load_vector<vector>(states.sum + element + v * vector);
        FURLONG_UNROLL
        for (int j = 0; j < vector; ++j) add(value[v][j], lost[v][j], mine[j]);
        store_vector<vector>(states.sum + element + v * vector, value[v]);
        FURLONG_UNROLL
        for (int j = 0; j < vector; j += 2) states.parts.put(element + v * vector + j, value[v][j], value[v][j + 1]);
      }
      if (has_normalizer) {
        add(normalizer, normalizer_lost, states.normalizer[feature]);
        states.normalizer[feature] = normalizer;
        states.maximum[feature] = after;
      }
      if (f == 0) {
        FURLONG_UNROLL
        for (int v = 0; v < vectors; ++v) {
          T* const not_finite = states.not_finite + border * c.v_padded + column + v * vector;
          const Vector<T, vector> more = load_vector<vector>(not_finite);
          FURLONG_UNROLL
          for (int j = 0; j < vector; ++j) bad[v][j] = fresh ? more[j] : bad[v][j] + more[j];
          store_vector<vector>(not_finite, bad[v]);
        }
        magnitude = (fresh ? T(0) : magnitude * factor) + states.scalars[border * 3] * own_factor;
        if (column == 0) states.scalars[border * 3 + 1] = magnitude;
      }
      maximum = after;
    }
  }
}

/// Copies a state of every head: to and from borders and the caller's states, which have no padding. Without a source:
/// the empty state, whose maximum gives it weight zero. `parts` of the target, if not null, are split again.
template <class T>
__global__ void __launch_bounds__(256, 1)
    linear_attention_border_kernel(const Composed<T> c, typename ComposedStates<T>::Border source,
                                   typename ComposedStates<T>::Border target, Parts<T> parts) {
  const bool padded = target.not_finite != nullptr;
  const std::int64_t of_head = static_cast<std::int64_t>(c.m_padded) * c.v_padded;
  for (std::int64_t at = global_thread(); at < c.heads() * of_head; at += grid_stride()) {
    const std::int64_t head = at / of_head, f = at % of_head / c.v_padded, j = at % c.v_padded;
    const bool real = f < c.m && j < c.d_value;
    T x = source.sum && real ? source.sum[head * source.sum_head + f * source.sum_row + j] : T(0);
    const T bad = source.not_finite && real ? source.not_finite[head * source.value_head + j] : T(0);
    if (!padded) x += bad;
    const std::int64_t to = head * target.sum_head + f * target.sum_row + j;
    if (padded || real) target.sum[to] = x;
    if (parts.data) parts.put(to, x);
    if (padded && f == 0) target.not_finite[head * target.value_head + j] = bad;
    if (j != 0 || f >= c.m) continue;
    target.normalizer[head * target.feature_head + f] =
        source.normalizer ? source.normalizer[head * source.feature_head + f] : T(0);
    target.maximum[head * target.feature_head + f] =
        source.maximum ? source.maximum[head * source.feature_head + f] : c.nothing;
    if (f == 0)
      target.magnitude[head * target.magnitude_head] =
          source.magnitude ? source.magnitude[head * source.magnitude_head] : T(0);
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
