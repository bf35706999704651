#pragma once
// Sums over segments of the sequence for the fused kernels of linear attention: sums over keys and values, for queries
// after a segment, and in backward sums over queries and their gradients, for keys before it. First each segment's own
// sum, all segments in parallel; then a scan per feature adds the sums of the segments before (for queries: after) each
// segment.
#include "framework/ops/attention/linear/cuda/fused_tile.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Prepares the random projection as operand B: rounded to bfloat16 (which is exact, ω is defined in bfloat16), columns
/// in the order of products, zeros after row m and column d. With two features per projection the second half is -ω.
__global__ void __launch_bounds__(256)
    fused_prepare_directions(const float* random_projection, Bf16* target, float* squares, std::int64_t sets,
                             int n_projections, int d, int m_padded, int d_padded, bool both_signs) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 8 + warp_index();  // one warp per row
  if (row >= sets * m_padded) return;
  const int f = static_cast<int>(row % m_padded), lane = lane_index();
  const int features = both_signs ? 2 * n_projections : n_projections,
            direction = f < n_projections ? f : f - n_projections;
  const float* source = random_projection + (row / m_padded * n_projections + direction) * d;
  float square = 0;
  for (int column = lane; column < d_padded; column += 32) {
    const float w = f < features && column < d ? source[column] : 0.0f;
    const Bf16 rounded = from_compute<Bf16>(f < n_projections ? w : -w);
    target[row * d_padded + (column & ~31) + fused_place(column & 31)] = rounded;
    square = gpu_fma(to_compute(rounded), to_compute(rounded), square);
  }
  square = warp_sum(square);
  if (lane == 0) squares[row] = square;
}

/// Finds the start of each token's document. One block per sequence, 256 tokens at a time.
__global__ void __launch_bounds__(256)
    fused_run_starts(const std::int32_t* documents, std::int32_t* starts, std::int64_t n) {
  FURLONG_SHARED(int, warp_last, [8]);
  const std::int32_t* ids = documents + static_cast<std::int64_t>(blockIdx.x) * n;
  std::int32_t* target = starts + static_cast<std::int64_t>(blockIdx.x) * n;
  int carried = 0;
  for (std::int64_t first = 0; first < n; first += 256) {
    const std::int64_t i = first + threadIdx.x;
    int start = i < n && i > 0 && ids[i] != ids[i - 1] ? static_cast<int>(i) : 0;
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(full_warp, start, step);
      if (lane_index() >= step) start = gpu_max(start, before);
    }
    if (lane_index() == 31) warp_last[warp_index()] = start;
    __syncthreads();
    start = gpu_max(start, carried);
    for (int warp = 0; warp < warp_index(); ++warp) start = gpu_max(start, warp_last[warp]);
    if (i < n) target[i] = start;
    for (int warp = 0; warp < 8; ++warp) carried = gpu_max(carried, warp_last[warp]);
    __syncthreads();
  }
}

/// delta = d_output · output for each query of each head, eight lanes each. Grid: (queries / 32, 1, batch · n_heads).
__global__ void __launch_bounds__(256)
    fused_deltas(FusedRows d_output, FusedRows output, float* delta, int n_heads, int n, int width) {
  const int thread = static_cast<int>(threadIdx.x), i = static_cast<int>(blockIdx.x) * 32 + thread / 8,
            lane = thread % 8;
  const int index = static_cast<int>(blockIdx.z), batch = index / n_heads, head = index % n_heads;
  const FusedHeadRows g = fused_rows_of(d_output, batch, head, n), o = fused_rows_of(output, batch, head, n);
  float sum = 0;
  for (int column = 8 * lane; column < width && i < n; column += 64) {
    float a[8], b[8];
    read_entries(g, i, column, a);
    read_entries(o, i, column, b);
    FURLONG_UNROLL
    for (int e = 0; e < 8; ++e) sum = gpu_fma(a[e], b[e], sum);
  }
  FURLONG_UNROLL
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(full_warp, sum, step);
  if (lane == 0 && i < n) delta[static_cast<std::int64_t>(index) * n + i] = sum;
}

/// Which tokens of a chunk [first, end) contribute to the sum that is carried to the next chunk, and whether the sum so
/// far is kept. Keys continue with the document of the chunk's last token; queries, whose sums run backward in time,
/// with that of its first token.
struct CarriedRun {
  int from, until;  // rows of the chunk
  bool keeps;
};
/// Returns whether the sum so far is kept.
__device__ __forceinline__ bool keeps_sum(const std::int32_t* run_start, bool keys, int first, int end, int n) {
  if (run_start == nullptr) return true;
  return keys ? run_start[end - 1] < first : end < n && run_start[end] <= first;
}
__device__ inline CarriedRun carried_run(const std::int32_t* run_start, bool keys, int first, int end, int n) {
  const bool keeps = keeps_sum(run_start, keys, first, end, n);
  if (run_start == nullptr) return {first, end, keeps};
  if (keys) return {gpu_max(first, run_start[end - 1]), end, keeps};
  int until = end;
  while (until > first && run_start[until - 1] > first) until = run_start[until - 1];
  return {first, until, keeps};
}

/// Numbers that a row of queries adds to a sum besides its features; {0, 1, 1} for keys.
struct RowWeight {
  float shift;   // added to its logarithms: minus the stabilizer
  float factor;  // 1 / denominator
  float extra;   // its entry of the extra column: minus delta
};
__device__ __forceinline__ RowWeight query_weight(const FusedProblem& p, const FusedHead& head, const FusedSide& side,
                                                  int row) {
  if (row >= side.n) return {fused_nothing, 0.0f, 0.0f};
  const std::int64_t at = static_cast<std::int64_t>(head.batch * p.n_heads + head.head) * side.n + row;
  return {-side.top[at], side.inverse[at], -side.delta[at]};
}

/// Shared memory of fused_local_states, in bytes from its start.
template <bool Exact, bool Projected>
struct LocalStatesLayout {
  static constexpr int parts = Exact ? 1 : 2, plane = fused_chunk * fused_ld;
  static constexpr int maxima = 0;                   // float [4 + 1, 64]: of each warp's rows, and the running maxima
  static constexpr int extra = maxima + 5 * 64 * 4;  // float [64]
  static constexpr int features = extra + 64 * 4;    // tile
  static constexpr int vectors = features + parts * plane * 2;  // two tiles
  static constexpr int random_projection = vectors + 2 * parts * plane * 2;
  static std::size_t bytes(int d_padded) {
    return random_projection + (Projected ? std::size_t{2} * fused_tile * static_cast<std::size_t>(d_padded + 8) : 0);
  }
};

/// Computes each segment's own sum S[f, c] = Σ_j 2^(b_jf - maximum_f) μ_j v_jc, the same sum over the extra column,
/// and the maximum, for one feature tile and at most 64 columns. Grid: (segments, tiles · column slices, batch ·
/// n_heads).
template <bool Exact, bool Projected, bool Keys>
__global__ void __launch_bounds__(fused_threads, Exact ? 3 : 2)
    fused_local_states(FusedProblem p, FusedSide side, FusedStates states) {
  constexpr int parts = Exact ? 1 : 2;
  using Layout = LocalStatesLayout<Exact, Projected>;
  FURLONG_DYNAMIC_SHARED(unsigned char, memory);
  float* maxima = reinterpret_cast<float*>(memory + Layout::maxima);
  float* running = maxima + 4 * 64;
  float* extra = reinterpret_cast<float*>(memory + Layout::extra);
  Bf16* random_projection = reinterpret_cast<Bf16*>(memory + Layout::random_projection);
  const Tile<parts> weights{reinterpret_cast<Bf16*>(memory + Layout::features), fused_ld, Layout::plane};
  const auto vectors = [&](int turn) {
    return Tile<parts>{reinterpret_cast<Bf16*>(memory + Layout::vectors) + (turn & 1) * parts * Layout::plane, fused_ld,
                       Layout::plane};
  };

  const int lane = lane_index(), warp = warp_index(), g = lane >> 2, t = lane & 3, own = 16 * warp;
  const int tiles = p.m_padded / fused_tile, tile = static_cast<int>(blockIdx.y) % tiles,
            slice = static_cast<int>(blockIdx.y) / tiles * 64;
  const int width = gpu_min(64, p.d_value - slice);
  const int index = static_cast<int>(blockIdx.z), segment = static_cast<int>(blockIdx.x);
  const FusedHead head = fused_head(p, index);
  const FusedInputs<Exact, Keys> inputs(p, head, side);
  const FusedHeadRows vector_rows = fused_rows_of(side.vectors, head.batch, Keys ? head.kv_head : head.head, side.n);
  const int begin = segment * p.segment_chunks * fused_chunk,
            end = gpu_min(side.n, begin + p.segment_chunks * fused_chunk);
  const int chunks = ceil_div(end - begin, fused_chunk);
  const auto chunk_at = [&](int turn) { return begin + (Keys ? turn : chunks - 1 - turn) * fused_chunk; };
  const auto load = [&](int turn) {
    const int first = chunk_at(turn);
    const CarriedRun run =
        carried_run(head.run_start(p, side.n), Keys, first, gpu_min(end, first + fused_chunk), side.n);
    load_vectors(vector_rows, inputs, first, run.from, run.until, slice, width, vectors(turn));
    cp_async_commit();
  };

  float sums[8][4], extra_sums[1][4];
  clear(sums);
  clear(extra_sums);
  if constexpr (Projected) load_directions(p, head, tile, random_projection);
  load(0);
  if (threadIdx.x < 64) running[threadIdx.x] = fused_nothing;
  for (int turn = 0; turn < chunks; ++turn) {
    cp_async_wait<0>();
    __syncthreads();
    if (turn + 1 < chunks) load(turn + 1);
    const int first = chunk_at(turn);
    const CarriedRun run =
        carried_run(head.run_start(p, side.n), Keys, first, gpu_min(end, first + fused_chunk), side.n);
    RowTerms terms[2];
    row_terms<Projected>(p, inputs, first + own, terms);
    float features[8][4], row_shift[2], shift[2], factor[2];
    bool counts[2];
    features_of_rows<Projected>(p, head, inputs, first + own, tile, random_projection, terms, features);
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first + own + g + 8 * half;
      const RowWeight weight = Keys ? RowWeight{0.0f, 1.0f, 1.0f} : query_weight(p, head, side, row);
      counts[half] = row >= run.from && row < run.until;
      row_shift[half] = terms[half].shift, shift[half] = weight.shift;
      factor[half] = counts[half] ? weight.factor : 0.0f;
      if (t == 0) extra[own + g + 8 * half] = counts[half] ? weight.extra : 0.0f;
    }
    column_maxima(p, features, row_shift, shift, counts, maxima + 64 * warp);
    __syncthreads();
    const auto raised = [&](int place) {
      float most = run.keeps ? running[place] : fused_nothing;
      FURLONG_UNROLL
      for (int other = 0; other < fused_warps; ++other) most = gpu_max(most, maxima[64 * other + place]);
      return most;
    };
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      const int place = 8 * n + 2 * t;
      const float low = raised(place), high = raised(place + 1);
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        // Stabilizer and maximum may be large and nearly cancel, so they are subtracted first.
        const float a =
            counts[half] ? weighted(p, features[n][2 * half], row_shift[half], shift[half] - low) * factor[half] : 0.0f;
        const float b = counts[half]
                            ? weighted(p, features[n][2 * half + 1], row_shift[half], shift[half] - high) * factor[half]
                            : 0.0f;
        weights.put(own + g + 8 * half, place, a, b);
      }
    }
    __syncthreads();
    float before[2];
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int place = own + g + 8 * half;
      const float after = raised(place);
      before[half] = exp2_fast(running[place] - after);  // of a sum that is kept: 0 · NaN must not reach a document
      __syncwarp();
      if (t == 0) running[place] = after;
    }
    float added[8][4], extra_added[1][4];
    clear(added);
    clear(extra_added);
    add_outer_products<parts>(weights, vectors(turn), extra, own, width, added, extra_added[0]);
    FURLONG_UNROLL
    for (int e = 0; e < 4; ++e) {
      // Rounded to nearest here, because additions inside a tensor-core product are not.
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n)
        sums[n][e] = run.keeps ? gpu_fma(sums[n][e], before[e >> 1], added[n][e]) : added[n][e];
      extra_sums[0][e] = run.keeps ? gpu_fma(extra_sums[0][e], before[e >> 1], extra_added[0][e]) : extra_added[0][e];
    }
  }
  __syncwarp();
  const std::int64_t row = states.at(index, segment, true) * p.m_padded + tile * fused_tile + own + g;
  FURLONG_UNROLL
  for (int half = 0; half < 2; ++half) {
    float* target = states.sum + (row + 8 * half) * p.d_value + slice;
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      if (8 * n >= width) continue;
      target[8 * n + 2 * t] = sums[n][2 * half];
      target[8 * n + 2 * t + 1] = sums[n][2 * half + 1];
    }
    if (slice == 0 && t == 0) {
      states.extra[row + 8 * half] = extra_sums[0][2 * half];
      states.maximum[row + 8 * half] = running[own + g + 8 * half];
    }
  }
}

/// Initial and final state of a scan, in the map's own feature order: [batch, n_heads, m, ..]. Null: none. Maxima are
/// natural logarithms.
struct FusedCarried {
  const float *start_sum = nullptr, *start_extra = nullptr, *start_maximum = nullptr;
  float *final_sum = nullptr, *final_extra = nullptr, *final_maximum = nullptr, *final_magnitude = nullptr;
};

/// Replaces each segment's own sum by the sum over the segments before it (`keys`) or after it, in order; if not
/// causal, replaces the first one by the total. One warp per feature, which reads eight segments before it adds them
/// up, because each read takes longer than all additions. Grid: (m_padded / 4, 1, batch · n_heads).
template <bool Projected>
__global__ void __launch_bounds__(fused_threads, 5)
    fused_scan_states(FusedProblem p, bool keys, int n, FusedStates states, FusedCarried carried) {
  constexpr int ahead = 8;
  const int f = static_cast<int>(blockIdx.x) * fused_warps + warp_index(), index = static_cast<int>(blockIdx.z);
  const int length = p.segment_chunks * fused_chunk, lane = lane_index();
  const int feature = feature_at<Projected>(f / fused_tile, f % fused_tile);
  const std::int64_t own = static_cast<std::int64_t>(index) * p.m + feature;
  const bool starts = carried.start_sum != nullptr && feature < p.m,
             ends = carried.final_sum != nullptr && feature < p.m;
  const std::int32_t* run_start =
      p.run_start ? p.run_start + static_cast<std::int64_t>(index / p.n_heads) * n : nullptr;
  const auto segment_at = [&](int step) { return keys ? step : p.segments - 1 - step; };
  const auto row_of = [&](int segment) { return states.at(index, segment, true) * p.m_padded + f; };
  const float start_maximum = starts ? carried.start_maximum[own] * log2_of_e : fused_nothing;
  // Calls body(row, the segment's maximum, whether it keeps the sum so far, its `width` numbers) for all segments in
  // order. `stride`: numbers of `source` per row.
  const auto each_segment = [&](auto width, const float* source, std::int64_t stride, const auto& body) {
    for (int first = 0; first < p.segments; first += ahead) {
      Vector<float, width()> numbers[ahead];
      float maxima[ahead];
      FURLONG_UNROLL
      for (int i = 0; i < ahead; ++i) {
        const std::int64_t row = row_of(segment_at(gpu_min(first + i, p.segments - 1)));
        numbers[i] = load_vector<width()>(source + row * stride);
        maxima[i] = states.maximum[row];
      }
      FURLONG_UNROLL
      for (int i = 0; i < ahead; ++i) {
        if (first + i >= p.segments) break;
        const int segment = segment_at(first + i), begin = segment * length;
        body(row_of(segment), maxima[i], keeps_sum(run_start, keys, begin, gpu_min(n, begin + length), n), numbers[i]);
      }
    }
  };
  // `width` columns of the sum from `column` on, or the extra column.
  const auto scan = [&](auto width, int column, std::int64_t stride, float* target, const float* start, float* final) {
    Vector<float, width()> sum;
    float maximum = start_maximum;
    FURLONG_UNROLL
    for (int e = 0; e < width(); ++e) sum[e] = starts ? start[own * stride + column + e] : 0.0f;
    each_segment(width, target + column, stride,
                 [&](std::int64_t row, float local_maximum, bool keeps, const auto& local) {
                   if (p.causal) store_vector(target + row * stride + column, sum);
                   const float before = keeps ? maximum : fused_nothing;
                   maximum = gpu_max(before, local_maximum);
                   const float old = exp2_fast(before - maximum), added = exp2_fast(local_maximum - maximum);
                   FURLONG_UNROLL
                   for (int e = 0; e < width(); ++e)  // a sum that is not kept may be NaN
                     sum[e] = keeps ? gpu_fma(sum[e], old, local[e] * added) : local[e] * added;
                 });
    if (!p.causal) store_vector(target + row_of(0) * stride + column, sum);
    FURLONG_UNROLL
    for (int e = 0; e < width() && ends; ++e) final[own * stride + column + e] = sum[e];
  };
  using One = std::integral_constant<int, 1>;
  for (int column = 4 * lane; column < p.d_value; column += 128)
    scan(std::integral_constant<int, 4>{}, column, p.d_value, states.sum, carried.start_sum, carried.final_sum);
  if (lane == 31) scan(One{}, 0, 1, states.extra, carried.start_extra, carried.final_extra);
  __syncwarp();
  if (lane != 0) return;
  float maximum = start_maximum;
  each_segment(One{}, states.maximum, 1, [&](std::int64_t row, float local, bool keeps, const auto&) {
    if (p.causal) states.maximum[row] = maximum;
    maximum = gpu_max(keeps ? maximum : fused_nothing, local);
  });
  if (!p.causal) states.maximum[row_of(0)] = maximum;
  if (ends) carried.final_maximum[own] = maximum * log_of_2;
  if (ends && feature == 0) carried.final_magnitude[index] = 0;
}

/// Reports, for each head, the rows whose denominator was lost, and the least relative denominator, which is 1:
/// positive features lose a row only if its denominator vanishes.
__global__ void __launch_bounds__(256) fused_report(const float* inverse, float* report, int n) {
  float lost = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 256)
    lost += inverse[static_cast<std::int64_t>(blockIdx.x) * n + i] == 0 ? 1.0f : 0.0f;
  lost = block_sum(lost);
  if (threadIdx.x == 0) report[2 * blockIdx.x] = lost, report[2 * blockIdx.x + 1] = 1.0f;
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
