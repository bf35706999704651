#pragma once
// Outputs of linear attention in the fused kernels: arguments and shared memory.
#include "framework/ops/attention/linear/cuda/fused_states.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Output targets: output [batch, n, n_heads, d_value]; top (to base 2) and inverse [batch, n_heads, n], null if not
/// needed.
struct FusedOutputs {
  void* output = nullptr;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  bool is_bfloat16 = false;
  float *top = nullptr, *inverse = nullptr;
  FusedLostRows lost;
};

/// Shared memory of fused_outputs, in bytes from its start. A block processes at most 64 columns of v.
template <bool Exact, bool Projected>
struct OutputsLayout {
  static constexpr int parts = Exact ? 1 : 2, plane = fused_chunk * fused_ld;
  int width, stages, ld_sum, sum, extra, maximum, column_maxima, column_factor, key_maximum, key_shift, key_plus,
      key_minus, query_plus, query_minus, bad, normal, weights, vectors, random_projection, all;

  /// `columns`: columns of v per block. `buffers`: 2 to prefetch the tiles of the next chunk and the next 64 rows of
  /// the random projection.
  OutputsLayout(int m_padded, int d_padded, int columns, int buffers) : width(columns), stages(buffers) {
    int at = 0;
    const auto take = [&](int bytes) {
      const int before = at;
      at += (bytes + 15) / 16 * 16;
      return before;
    };
    ld_sum = m_padded + 8;
    sum = take(width * ld_sum * 4);  // transposed: [width, m_padded]
    extra = take(m_padded * 4);
    maximum = take(m_padded * 4);
    column_maxima = take(fused_warps * 64 * 4);
    for (int* row : {&column_factor, &key_maximum, &key_shift, &key_plus, &key_minus, &query_plus, &query_minus})
      *row = take(64 * 4);
    bad = take(64 * 8);
    normal = take(parts * plane * 2);
    weights = take(parts * plane * 2);
    vectors = take(stages * parts * plane * 2);
    random_projection = take(Projected ? (m_padded > fused_tile ? stages : 1) * fused_tile * (d_padded + 8) * 2 : 0);
    all = at;
  }
};

/// The block's position, arguments and shared memory, with loads.
template <bool Exact, bool Projected>
class FusedOutputsMemory {
 protected:
  static constexpr int parts = Exact ? 1 : 2;
  using Layout = OutputsLayout<Exact, Projected>;

 public:
  __device__ FusedOutputsMemory(const FusedProblem& problem, const FusedSide& queries, const FusedSide& keys,
                                const FusedOutputs& outputs, const Layout& layout, unsigned char* shared)
      : p(problem),
        query_side(queries),
        key_side(keys),
        out(outputs),
        at(layout),
        memory(shared),
        head(fused_head(problem, static_cast<int>(blockIdx.z))),
        query(problem, head, queries),
        key(problem, head, keys),
        lane(lane_index()),
        g(lane >> 2),
        t(lane & 3),
        own(16 * warp_index()) {}

 protected:
  // ---- loads from global memory ----

  __device__ void load_sum(const FusedStates& states, std::int64_t index) {
    const float* source = states.sum + index * p.m_padded * p.d_value + slice();
    for (int i = static_cast<int>(threadIdx.x); i < p.m_padded * width(); i += fused_threads) {
      const int f = i / width(), column = i % width();
      sum()[column * at.ld_sum + f] = source[static_cast<std::int64_t>(f) * p.d_value + column];
    }
    for (int f = static_cast<int>(threadIdx.x); f < p.m_padded; f += fused_threads) {
      extra()[f] = states.extra[index * p.m_padded + f];
      maximum()[f] = states.maximum[index * p.m_padded + f];
    }
  }
  __device__ void load_values(int first, int turn) {
    load_vectors(fused_rows_of(key_side.vectors, head.batch, head.kv_head, key_side.n), key, first, first, key_side.n,
                 slice(), width(), values_of(turn));
  }

  /// Returns the tile's random projection in shared memory, and starts to load that of the next tile.
  __device__ const Bf16* next_directions(int turn, int tile, int tiles, bool more) {
    if constexpr (!Projected) return nullptr;
    const int size = fused_tile * (p.d_padded + 8);
    if (tiles == 1 || at.stages == 1) return random_projection();
    const bool here = tiles == 2 && turn >= 1;  // both tiles are already loaded
    if (more && !here) load_directions(p, head, (tile + 1) % tiles, random_projection() + ((turn + 1) & 1) * size);
    return random_projection() + (turn & 1) * size;
  }

  // ---- stores to global memory ----

  /// Returns whether the output of row i of the chunk is the kernel's.
  __device__ __forceinline__ bool computes(int first, int i) const {
    return first + i < query_side.n && (!Exact || out.lost.has(static_cast<int>(blockIdx.z), first, i));
  }
  /// Writes the warp's rows of outputs, divided by their denominators, and the values that backward needs.
  __device__ __forceinline__ void write(int first, const float (&top)[2], bool has_bad, const float (&outputs)[8][4],
                                        const float (&denominators)[4]) {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = own + g + 8 * half;
      const int row = first + i;
      const float denominator = __shfl_sync(full_warp, denominators[2 * half], lane & ~3);
      if (!computes(first, i)) continue;
      const float inverse = gpu_abs(denominator) < std::numeric_limits<float>::min() ? 0.0f : 1 / denominator;
      const std::int64_t line = static_cast<std::int64_t>(head.batch * p.n_heads + head.head) * query_side.n + row;
      if (slice() == 0 && t == 0 && out.top) out.top[line] = top[half];
      if (slice() == 0 && t == 0 && out.inverse) out.inverse[line] = inverse;
      const std::int64_t target =
          head.batch * out.batch_stride + row * out.row_stride + head.head * out.head_stride + slice();
      const int start = run_start() ? static_cast<int>(gpu_max(run_start()[row], first) - first) : 0;
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        const int column = 8 * n + 2 * t;
        if (column >= width()) continue;
        float value[2];
        FURLONG_UNROLL
        for (int e = 0; e < 2; ++e) {
          value[e] = outputs[n][2 * half + e] * inverse;
          // Visible keys start to i of the chunk include a value that is not finite.
          if (has_bad && (bad()[column + e] & (~std::uint64_t{0} >> (63 - i))) >> start != 0)
            value[e] = __int_as_float(0x7fffffff);
        }
        if (out.is_bfloat16) {
          *reinterpret_cast<std::uint32_t*>(static_cast<Bf16*>(out.output) + target + column) =
              pack_bf16(value[0], value[1]);
        } else {
          store_vector(static_cast<float*>(out.output) + target + column, Vector<float, 2>{{value[0], value[1]}});
        }
      }
    }
  }

  // ---- shared memory: offsets are kernel arguments and use no registers ----

  __device__ __forceinline__ float* floats(int offset) const { return reinterpret_cast<float*>(memory + offset); }
  __device__ __forceinline__ Tile<parts> tile(int offset) const {
    return {reinterpret_cast<Bf16*>(memory + offset), fused_ld, Layout::plane};
  }
  __device__ __forceinline__ float* sum() const { return floats(at.sum); }
  __device__ __forceinline__ float* extra() const { return floats(at.extra); }
  __device__ __forceinline__ float* maximum() const { return floats(at.maximum); }
  __device__ __forceinline__ float* column_maximum() const { return floats(at.column_maxima); }
  __device__ __forceinline__ float* column_factor() const { return floats(at.column_factor); }
  __device__ __forceinline__ float* key_maximum() const { return floats(at.key_maximum); }
  __device__ __forceinline__ float* key_shift() const { return floats(at.key_shift); }
  __device__ __forceinline__ float* key_plus() const { return floats(at.key_plus); }
  __device__ __forceinline__ float* key_minus() const { return floats(at.key_minus); }
  __device__ __forceinline__ float* query_plus() const { return floats(at.query_plus); }
  __device__ __forceinline__ float* query_minus() const { return floats(at.query_minus); }
  __device__ __forceinline__ std::uint64_t* bad() const { return reinterpret_cast<std::uint64_t*>(memory + at.bad); }
  __device__ __forceinline__ Tile<parts> normal() const { return tile(at.normal); }
  __device__ __forceinline__ Tile<parts> weights() const { return tile(at.weights); }
  __device__ __forceinline__ Bf16* random_projection() const {
    return reinterpret_cast<Bf16*>(memory + at.random_projection);
  }
  __device__ __forceinline__ Tile<parts> values_of(int turn) const {
    const Tile<parts> first = tile(at.vectors);
    return {first.data + turn % at.stages * parts * Layout::plane, first.ld, first.plane};
  }
  __device__ __forceinline__ const std::int32_t* run_start() const { return head.run_start(p, key_side.n); }
  __device__ __forceinline__ int slice() const { return static_cast<int>(blockIdx.y) * at.width; }
  __device__ __forceinline__ int width() const { return gpu_min(at.width, p.d_value - slice()); }

  const FusedProblem& p;
  const FusedSide &query_side, &key_side;
  const FusedOutputs& out;
  const Layout& at;
  unsigned char* const memory;
  const FusedHead head;
  const FusedInputs<Exact, false> query;
  const FusedInputs<Exact, true> key;
  const int lane, g, t, own;
  bool has_sum = false;
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
