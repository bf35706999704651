#pragma once
// Gradients of linear attention in the fused kernels: arguments, shared memory, and gradient output.
#include "framework/ops/attention/linear/cuda/fused_states.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Target of a gradient: written directly, or as one of `parts` that are added up in order.
struct FusedGradient {
  void* data = nullptr;  // null: not needed
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  bool is_bfloat16 = false, accumulates = false, vectors = false;
  float* parts = nullptr;  // [parts, batch, heads, n, width]; null: one part, written directly
  int batch = 0, heads = 0, n = 0, width = 0;
  FusedLostRows lost;  // of the gradient of inputs: of both gradients
};

__device__ __forceinline__ void store_gradient(const FusedGradient& target, int batch, int head, int row, int column,
                                               const float (&values)[8]) {
  const std::int64_t at = batch * target.batch_stride + head * target.head_stride + row * target.row_stride + column;
  float sums[8];
  FURLONG_UNROLL
  for (int i = 0; i < 8; ++i) {
    sums[i] = values[i];
    if (target.accumulates)
      sums[i] += target.is_bfloat16 ? to_compute(static_cast<Bf16*>(target.data)[at + i])
                                    : static_cast<float*>(target.data)[at + i];
  }
  if (target.is_bfloat16) {
    Bf16* to = static_cast<Bf16*>(target.data) + at;
    if (target.vectors) {
      Vector<std::uint32_t, 4> words;
      FURLONG_UNROLL
      for (int i = 0; i < 4; ++i) words[i] = pack_bf16(sums[2 * i], sums[2 * i + 1]);
      store_vector(reinterpret_cast<std::uint32_t*>(to), words);
      return;
    }
    FURLONG_UNROLL
    for (int i = 0; i < 8; ++i) to[i] = from_compute<Bf16>(sums[i]);
    return;
  }
  FURLONG_UNROLL
  for (int i = 0; i < 8; ++i) static_cast<float*>(target.data)[at + i] = sums[i];
}
/// Stores eight entries of one part of a row's gradient.
__device__ __forceinline__ void store_part(const FusedGradient& target, int part, int batch, int head, int row,
                                           int column, const float (&values)[8]) {
  if (target.parts == nullptr) return store_gradient(target, batch, head, row, column, values);
  float* to =
      target.parts +
      (static_cast<std::int64_t>((part * target.batch + batch) * target.heads + head) * target.n + row) * target.width +
      column;
  FURLONG_UNROLL
  for (int i = 0; i < 8; i += 4)
    store_vector(to + i, Vector<float, 4>{{values[i], values[i + 1], values[i + 2], values[i + 3]}});
}

/// Adds up the parts of a gradient, in order.
__global__ void __launch_bounds__(256) fused_sum_parts(FusedGradient target, std::int64_t parts) {
  const std::int64_t vectors = target.width / 8,
                     all = static_cast<std::int64_t>(target.batch) * target.heads * target.n * vectors;
  for (std::int64_t i = global_thread(); i < all; i += grid_stride()) {
    const std::int64_t line = i / vectors, index = line / target.n;
    const int row = static_cast<int>(line % target.n), head = static_cast<int>(index % target.heads),
              batch = static_cast<int>(index / target.heads), column = static_cast<int>(i % vectors) * 8;
    float sums[8] = {};
    for (std::int64_t part = 0; part < parts; ++part) {
      const float* from = target.parts + (part * all + i) * 8;
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const auto four = load_vector<4>(from + 4 * half);
        FURLONG_UNROLL
        for (int e = 0; e < 4; ++e) sums[4 * half + e] += four[e];
      }
    }
    store_gradient(target, batch, head, row, column, sums);
  }
}

/// Shared memory of fused_gradients, in bytes from its start, and the partition of the work: `tiles` feature tiles per
/// block.
template <bool Exact, bool Projected, bool Keys>
struct GradientsLayout {
  static constexpr int parts = Exact ? 1 : 2, plane = fused_chunk * fused_ld;
  int tiles, stages, ld_sum, ld_inputs, ld_d_vectors, ld_vectors, sum, extra, maximum, column_maxima, column_terms,
      row_terms, inputs, d_vectors, normal, weights, row_vectors, column_vectors, random_projection, all;

  GradientsLayout(int tiles_of_block, int buffers, int d_padded, int d_value) : tiles(tiles_of_block), stages(buffers) {
    int at = 0;
    const auto take = [&](int bytes) {
      const int before = at;
      at += (bytes + 15) / 16 * 16;
      return before;
    };
    ld_sum = d_value + 8, ld_inputs = d_padded + 8, ld_vectors = d_value + 8;
    sum = take(tiles * fused_tile * ld_sum * 4);
    extra = take(tiles * fused_tile * 4);
    maximum = take(tiles * fused_tile * 4);
    column_maxima = take(fused_warps * 64 * 4);
    column_terms = take(7 * 64 * 4);  // maximum in the tile, shift, factor, extra, and three of RowTerms
    row_terms = take(4 * 64 * 4);     // sums over features of either sign, and two of RowTerms
    // With one tile the gradients of a chunk's values are complete before those of its keys start: both use the same
    // memory, with the same row distance.
    const bool shared = Keys && tiles == 1;
    ld_d_vectors = shared && ld_inputs > ld_sum ? ld_inputs : ld_sum;
    ld_inputs = shared && ld_sum > ld_inputs ? ld_sum : ld_inputs;
    inputs = take(fused_chunk * ld_inputs * 4);
    d_vectors = Keys && !shared ? take(fused_chunk * ld_d_vectors * 4) : inputs;
    normal = take(parts * plane * 2);
    weights = take(parts * plane * 2);
    row_vectors = take(stages * parts * fused_chunk * ld_vectors * 2);
    column_vectors = take(stages * parts * fused_chunk * ld_vectors * 2);
    random_projection = take(Projected ? (tiles > 1 ? 2 : 1) * fused_tile * (d_padded + 8) * 2 : 0);
    all = at;
  }
};

/// The block's position, arguments and shared memory, with loads and stores.
template <bool Exact, bool Projected, bool Keys>
class FusedGradientsMemory {
 protected:
  static constexpr int parts = Exact ? 1 : 2;
  using Layout = GradientsLayout<Exact, Projected, Keys>;

  struct Rows {
    RowTerms terms[2];
    RowWeight weights[2];
    bool meets_sum[2];
    float sums_plus[2], sums_minus[2];  // sums of the features' gradients, for either sign
  };

 public:
  __device__ FusedGradientsMemory(const FusedProblem& problem, const FusedSide& rows, const FusedSide& columns,
                                  const FusedGradient& d_inputs, const FusedGradient& d_vectors, const Layout& layout,
                                  unsigned char* shared)
      : p(problem),
        row_side(rows),
        column_side(columns),
        d_input(d_inputs),
        d_vector(d_vectors),
        at(layout),
        memory(shared),
        head(fused_head(problem, static_cast<int>(blockIdx.z))),
        row(problem, head, rows),
        column(problem, head, columns),
        lane(lane_index()),
        g(lane >> 2),
        t(lane & 3),
        own(16 * warp_index()) {}

 protected:
  // ---- loads from global memory ----

  /// Finds the block's segment. Returns whether it has rows to compute.
  __device__ bool find_rows() {
    begin = static_cast<int>(blockIdx.x) * p.segment_chunks * fused_chunk;
    end = gpu_min(row_side.n, begin + p.segment_chunks * fused_chunk);
    chunks = ceil_div(end - begin, fused_chunk);
    if constexpr (Exact) {
      const int all = chunks;
      chunks = d_input.lost.chunks_to_compute(block_line(), begin, end, Keys);
      if constexpr (Keys) begin += (all - chunks) * fused_chunk;
    }
    return chunks > 0;
  }
  __device__ void load_sum(const FusedStates& states, std::int64_t index) {
    const std::int64_t from = index * p.m_padded + first_tile() * fused_tile;
    for (int i = static_cast<int>(threadIdx.x); i < tiles() * fused_tile * p.d_value; i += fused_threads)
      sum()[i / p.d_value * at.ld_sum + i % p.d_value] = states.sum[from * p.d_value + i];
    for (int f = static_cast<int>(threadIdx.x); f < tiles() * fused_tile; f += fused_threads)
      extra()[f] = states.extra[from + f], maximum()[f] = states.maximum[from + f];
  }
  __device__ int chunk_begin(int turn) const { return begin + (Keys ? chunks - 1 - turn : turn) * fused_chunk; }
  __device__ int chunk_end(int turn) const { return gpu_min(end, chunk_begin(turn) + fused_chunk); }
  __device__ void load_chunk(int turn) {
    const int first = chunk_begin(turn);
    load_vectors(vector_rows(row_side, Keys), row, first, first, row_side.n, 0, p.d_value,
                 staged(at.row_vectors, turn));
    if (p.causal)
      load_vectors(vector_rows(column_side, !Keys), column, first, first, row_side.n, 0, p.d_value,
                   staged(at.column_vectors, turn));
  }

  __device__ const Bf16* next_directions(int turn, int tile, bool more) {
    if constexpr (!Projected) return nullptr;
    const int size = fused_tile * (p.d_padded + 8);
    if (tiles() == 1) return random_projection();
    const bool here = tiles() == 2 && turn >= 1;
    if (more && !here)
      load_directions(p, head, first_tile() + (tile + 1) % tiles(), random_projection() + ((turn + 1) & 1) * size);
    return random_projection() + (turn & 1) * size;
  }

  template <bool of_key>
  __device__ __forceinline__ RowWeight row_weight(const FusedSide& side, int line) const {
    if constexpr (of_key) return {0.0f, 1.0f, 1.0f};
    return query_weight(p, head, side, line);
  }
  /// Prepares the warp's rows, with zero gradients.
  __device__ void prepare_rows(int first, int last, Rows& rows) {
    row_terms<Projected>(p, row, first + own, rows.terms);
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int line = first + own + g + 8 * half;
      rows.weights[half] = row_weight<Keys>(row_side, line);
      rows.sums_plus[half] = rows.sums_minus[half] = 0;
      rows.meets_sum[half] = true;
      // Rows that belong to the document of the sum carried into the chunk.
      if (run_start() && line < row_side.n)
        rows.meets_sum[half] = Keys ? last < row_side.n && run_start()[last] <= line : run_start()[line] < first;
    }
    if constexpr (Keys) {
      for (int i = lane; i < 16 * at.ld_d_vectors; i += 32) vectors_out()[own * at.ld_d_vectors + i] = 0;
    }
    if (!shares_output()) clear_inputs();
    __syncwarp();
  }
  /// Returns whether gradients of values and of keys use the same memory.
  __device__ bool shares_output() const { return Keys && vectors_out() == inputs(); }
  __device__ void clear_inputs() const {
    for (int i = lane; i < 16 * at.ld_inputs; i += 32) inputs()[own * at.ld_inputs + i] = 0;
  }
  __device__ float* column_term(int which) const { return floats(at.column_terms) + 64 * which; }

  /// Reads the warp's rows of 16 columns of a float32 tile in shared memory, as accumulators.
  __device__ __forceinline__ void read_block(const float* tile, int ld, int c, float (&block)[2][4]) const {
    FURLONG_UNROLL
    for (int side = 0; side < 2; ++side) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const auto both = load_vector<2>(tile + (own + g + 8 * half) * ld + c + 8 * side + 2 * t);
        block[side][2 * half] = both[0], block[side][2 * half + 1] = both[1];
      }
    }
  }
  __device__ __forceinline__ void write_block(float* tile, int ld, int c, const float (&block)[2][4]) const {
    FURLONG_UNROLL
    for (int side = 0; side < 2; ++side) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half)
        store_vector(tile + (own + g + 8 * half) * ld + c + 8 * side + 2 * t,
                     Vector<float, 2>{{block[side][2 * half], block[side][2 * half + 1]}});
    }
  }

  // ---- gradient output ----

  __device__ void write(int first, Rows& rows) {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float plus = quad_sum(rows.sums_plus[half]), minus = quad_sum(rows.sums_minus[half]);
      const int line = own + g + 8 * half;
      if (t != 0) continue;
      own_terms()[line] = plus, own_terms()[64 + line] = minus;
      own_terms()[128 + line] = rows.terms[half].log_plus, own_terms()[192 + line] = rows.terms[half].log_minus;
    }
    __syncwarp();
    const int to_head = Keys ? head.kv_head : head.head;
    if (d_input.data) {
      for (int i = lane; i < 16 * (p.d / 8); i += 32) {
        const int line = own + i / (p.d / 8), c = i % (p.d / 8) * 8;
        if (!computes(first, line)) continue;
        float values[8];
        input_gradients(first, line, c, values);
        store_part(d_input, part(), head.batch, to_head, first + line, c, values);
      }
    }
    if constexpr (Keys) {
      if (!shares_output()) write_vectors(first);
    }
    __syncwarp();
  }
  __device__ static int block_line() { return static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y); }
  /// Returns whether the gradients of row `line` of the chunk are the block's.
  __device__ __forceinline__ bool computes(int first, int line) const {
    return first + line < row_side.n && (!Exact || d_input.lost.has(block_line(), first, line));
  }
  __device__ int part() const { return static_cast<int>(blockIdx.y + (Keys ? head.head % p.group * gridDim.y : 0)); }
  /// Writes d_value of the warp's keys.
  __device__ void write_vectors(int first) const {
    __syncwarp();
    for (int i = lane; d_vector.data && i < 16 * (p.d_value / 8); i += 32) {
      const int line = own + i / (p.d_value / 8), c = i % (p.d_value / 8) * 8;
      if (!computes(first, line)) continue;
      float values[8];
      FURLONG_UNROLL
      for (int e = 0; e < 8; ++e)
        values[e] = row.exists(first + line) ? vectors_out()[line * at.ld_d_vectors + c + e] : 0.0f;
      store_part(d_vector, part(), head.batch, head.kv_head, first + line, c, values);
    }
  }
  /// Returns entries [c, c + 8) of the gradient of row `line` of the chunk.
  __device__ __forceinline__ void input_gradients(int first, int line, int c, float (&values)[8]) const {
    const float plus = own_terms()[line], minus = own_terms()[64 + line], scale = p.scale * p.scale;
    const bool radial = Keys && shifts_keys(p.form);
    float x[8];
    row.entries(first + line, c, x);
    const bool exists = row.exists(first + line);
    FURLONG_UNROLL
    for (int e = 0; e < 8; ++e) {
      float value = inputs()[line * at.ld_inputs + (c & ~31) + fused_place((c + e) & 31)];
      if constexpr (Projected) {
        value *= head.factor;
        if (radial) value = gpu_fma(-plus * scale, x[e], value);
      } else if (p.form == FusedForm::softmax) {
        value -= exp2_fast(gpu_fma(x[e], log2_of_e, -own_terms()[128 + line])) * plus -
                 exp2_fast(gpu_fma(-x[e], log2_of_e, -own_terms()[192 + line])) * minus;
      }
      if constexpr (!Exact) {
        const int constant = head.head * p.d + c + e;
        if (p.scaling) value = Keys ? value / p.scaling[constant] : value * p.scaling[constant];
        if (Keys && p.query_center) value = gpu_fma((plus + minus) * scale, p.query_center[constant], value);
      }
      values[e] = exists ? value : 0.0f;
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
  __device__ __forceinline__ float* own_terms() const { return floats(at.row_terms); }
  __device__ __forceinline__ float* inputs() const { return floats(at.inputs); }
  __device__ __forceinline__ float* vectors_out() const { return floats(at.d_vectors); }
  __device__ __forceinline__ Tile<parts> normal() const { return tile(at.normal); }
  __device__ __forceinline__ Tile<parts> weights() const { return tile(at.weights); }
  __device__ __forceinline__ Bf16* random_projection() const {
    return reinterpret_cast<Bf16*>(memory + at.random_projection);
  }
  __device__ __forceinline__ Tile<parts> staged(int offset, int turn) const {
    const int plane = fused_chunk * at.ld_vectors;
    return {reinterpret_cast<Bf16*>(memory + offset) + turn % at.stages * parts * plane, at.ld_vectors, plane};
  }
  __device__ __forceinline__ const std::int32_t* run_start() const { return head.run_start(p, row_side.n); }
  /// Returns whether row i of the chunk and column j are a visible pair.
  __device__ __forceinline__ bool meet(int first, int i, int j) const {
    const int query = Keys ? j : i, key = Keys ? i : j;
    if (key > query) return false;
    return run_start() == nullptr || first + query >= row_side.n || run_start()[first + query] <= first + key;
  }
  __device__ __forceinline__ int first_tile() const { return static_cast<int>(blockIdx.y) * at.tiles; }
  __device__ __forceinline__ int tiles() const { return gpu_min(at.tiles, p.m_padded / fused_tile - first_tile()); }
  __device__ __forceinline__ FusedHeadRows vector_rows(const FusedSide& side, bool keys) const {
    return fused_rows_of(side.vectors, head.batch, keys ? head.kv_head : head.head, side.n);
  }

  const FusedProblem& p;
  const FusedSide &row_side, &column_side;
  const FusedGradient &d_input, &d_vector;
  const Layout& at;
  unsigned char* const memory;
  const FusedHead head;
  const FusedInputs<Exact, Keys> row;
  const FusedInputs<Exact, !Keys> column;
  const int lane, g, t, own;
  int begin = 0, end = 0, chunks = 0;
  bool has_sum = false;
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
