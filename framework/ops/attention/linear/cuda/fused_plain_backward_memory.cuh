#pragma once
// Gradients of linear attention in the plain case (fused_plain.cuh) at width 64: arguments, shared memory, loads and
// stores.
#include "framework/ops/attention/linear/cuda/fused_backward_memory.cuh"
#include "framework/ops/attention/linear/cuda/fused_plain.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// Shared memory of fused_plain_gradients, in bytes from its start: `tiles` feature tiles per block.
template <FusedForm form>
struct PlainGradientsLayout {
  static constexpr bool projected = form == FusedForm::projection;
  static constexpr int plane = fused_chunk * fused_ld * 2;
  static constexpr int most_tiles = 8;
  static constexpr int column_terms = 0;                // float [4, 64]: κ, κ - scale, extra, shift
  static constexpr int token_scale = 1024;              // bfloat16 [64]
  static constexpr int tile_scale = token_scale + 128;  // float [4 warps, 8 tiles]
  static constexpr int normal = tile_scale + 128;       // one tile
  static constexpr int row_vectors = normal + plane, column_vectors = row_vectors + plane;
  static constexpr int random_projection = column_vectors + plane;             // two tiles
  static constexpr int sum = random_projection + (projected ? 2 * plane : 0);  // float [tiles, 64, 64]
  static constexpr int sum_tile = fused_tile * 64;
  int tiles, extra, all;
  explicit PlainGradientsLayout(int tiles_of_block)
      : tiles(tiles_of_block), extra(sum + tiles * sum_tile * 4), all(extra + tiles * fused_tile * 4) {}
};

/// The block's position, arguments, registers and shared memory, with loads and stores.
template <FusedForm form, bool Keys>
class PlainGradientsMemory {
 protected:
  using Layout = PlainGradientsLayout<form>;
  static constexpr bool projected = Layout::projected;

 public:
  __device__ PlainGradientsMemory(const FusedProblem& problem, const FusedSide& rows, const FusedSide& columns,
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
        factor(head.factor * log2_of_e) {
    find_position();
  }

 protected:
  // ---- loads from global memory ----

  /// Loads the chunk's rows and vectors. Starts with a barrier, after which no warp reads the previous ones.
  __device__ __forceinline__ void load_chunk(int first) {
    __syncthreads();
    plain_load_vectors(vectors_of(row_side, Keys), first, 0, row_vectors());
    plain_load_vectors(vectors_of(column_side, !Keys), first, 0, column_vectors());
    cp_async_commit();
    load_rows(first);
    row.prepare(p);
    column.prepare(p);
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int line = own + g + 8 * half;
      FusedHead own_head = head;
      own_head.batch = opaque(head.batch);
      const RowWeight weight = query_weight(p, own_head, Keys ? column_side : row_side, first + line);
      if constexpr (!Keys)
        query_base[half] = weight.shift, query_factor[half] = weight.factor, query_extra[half] = weight.extra;
      if (t != 0) continue;
      column_term(1)[line] = !Keys ? 0.0f : weight.factor > 0 ? weight.shift + log2_fast(weight.factor) : fused_nothing;
      column_term(2)[line] = weight.extra, column_term(3)[line] = column.plus[half];
    }
  }
  /// Asks for what load_chunk() reads. Registers do not suffice to read it before it is used.
  __device__ __forceinline__ void prefetch_chunk(int first) const {
    constexpr int sector = 32 / sizeof(Bf16);
    const int thread = opaque(static_cast<int>(threadIdx.x)), line = first + thread / 2;
    const auto ask = [&](const FusedHeadRows& rows) {
      if (line >= rows.n) return;
      const Bf16* half_row = static_cast<const Bf16*>(rows.data) + line * rows.row_stride + thread % 2 * 32;
      prefetch_l2(half_row);
      prefetch_l2(half_row + sector);
    };
    ask(inputs_of(row_side, Keys));
    ask(vectors_of(row_side, Keys));
    ask(inputs_of(column_side, !Keys));
    ask(vectors_of(column_side, !Keys));
    const FusedSide& queries = Keys ? column_side : row_side;
    const int query = first + thread % 8 * 8;
    if (thread >= 24 || query >= queries.n) return;
    const float* terms = thread < 8 ? queries.top : thread < 16 ? queries.inverse : queries.delta;
    prefetch_l2(terms + static_cast<std::int64_t>(opaque(head.batch) * p.n_heads + head.head) * queries.n + query);
  }
  __device__ __forceinline__ void load_rows(int first) {
    row.rows.load(inputs_of(row_side, Keys), opaque(first + own));
    column.rows.load(inputs_of(column_side, !Keys), opaque(first + own));
  }

  __device__ __forceinline__ void find_position() {
    const int thread = opaque(static_cast<int>(threadIdx.x));
    lane = thread & 31, g = lane >> 2, t = lane & 3, own = thread / 32 * 16;
  }

  // ---- gradients of the chunk ----

  __device__ __forceinline__ void write(int first) {
    __syncthreads();  // all warps have read the vectors; their memory holds gradients now
    row.rows.load(inputs_of(row_side, Keys), opaque(first + own));
    if constexpr (Keys && !projected) left[0] = left[1] = spoiled() != 0;
    const std::uint32_t lost[2] = {__ballot_sync(full_warp, left[0]), __ballot_sync(full_warp, left[1])};
    d_input.lost.record(static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y), first, lost);
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float plus = quad_sum(sums_plus[half]), minus = quad_sum(sums_minus[half]);
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        const std::uint32_t word = row.rows.word(n / 4, half, n % 4);
        float value[2];
        FURLONG_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float x = e == 0 ? low_bf16(word) : high_bf16(word);
          value[e] = inputs[n][2 * half + e];
          if constexpr (projected) value[e] *= head.factor;
          if constexpr (projected && Keys) value[e] = gpu_fma(-plus * p.scale * p.scale, x, value[e]);
          if constexpr (form == FusedForm::softmax)
            value[e] -= exp2_fast(gpu_fma(x, log2_of_e, -row.plus[half])) * plus -
                        exp2_fast(gpu_fma(x, -log2_of_e, -row.minus[half])) * minus;
        }
        store_vector(gradient_row(g + 8 * half) + 32 * (n / 4) + 8 * t + 2 * (n % 4),
                     Vector<float, 2>{{value[0], value[1]}});
      }
    }
    write_rows(d_input, first, lost);
    if constexpr (Keys) {
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        FURLONG_UNROLL
        for (int half = 0; half < 2; ++half)
          store_vector(gradient_row(g + 8 * half) + 8 * n + 2 * t,
                       Vector<float, 2>{{vectors[n][2 * half], vectors[n][2 * half + 1]}});
      }
      write_rows(d_vector, first, lost);
    }
  }
  /// Writes the gradients of the warp's rows from shared memory, except the lost ones.
  __device__ __forceinline__ void write_rows(const FusedGradient& target, int first,
                                             const std::uint32_t (&lost)[2]) const {
    __syncwarp();
    const int part = static_cast<int>(blockIdx.y + (Keys ? head.head % p.group * gridDim.y : 0));
    FURLONG_ONE_BY_ONE
    for (int i = lane; i < 16 * 8 && target.data; i += 32) {
      const int line = first + own + i / 8;
      if (line >= row_side.n || ((i < 64 ? lost[0] : lost[1]) >> 4 * (i / 8 % 8) & 1u) != 0) continue;
      float values[8];
      FURLONG_UNROLL
      for (int e = 0; e < 8; ++e) values[e] = gradient_row(i / 8)[i % 8 * 8 + e];
      store_part(target, part, opaque(head.batch), Keys ? head.kv_head : head.head, line, i % 8 * 8, values);
    }
    __syncwarp();
  }
  /// Returns the gradient of the warp's row: 64 entries, rows 72 apart, in the memory of the vectors.
  __device__ __forceinline__ float* gradient_row(int of_warp) const {
    return floats(Layout::row_vectors) + (own + of_warp) * fused_ld;
  }
  __device__ __forceinline__ FusedHeadRows vectors_of(const FusedSide& side, bool keys) const {
    return plain_rows_of(side.vectors, head.batch, keys ? head.kv_head : head.head, side.n);
  }
  __device__ __forceinline__ FusedHeadRows inputs_of(const FusedSide& side, bool keys) const {
    return plain_rows_of(side.rows, head.batch, keys ? head.kv_head : head.head, side.n);
  }
  /// Loads the sum over other segments, which has a maximum for each feature; zeros if there is none.
  __device__ void load_sum(const FusedStates& states, std::int64_t index, bool exists) const {
    for (int tile = 0; tile < tiles(); ++tile) {
      const std::int64_t from = index * p.m_padded + (first_tile() + tile) * fused_tile;
      float scale = projected ? fused_nothing : 0.0f;
      if (projected && exists)
        scale = ::ceilf(warp_max(gpu_max(states.maximum[from + lane], states.maximum[from + lane + 32])));
      if (lane == 0) tile_scale()[tile] = scale;
      if constexpr (Keys && !projected) {
        const float most = exists ? gpu_max(states.maximum[from + lane], states.maximum[from + lane + 32]) : 0.0f;
        const bool any = __any_sync(full_warp, most > plain_most_exponent);
        if (lane == 0) spoiled() = any || (tile > 0 && spoiled() != 0) ? 1 : 0;
      }
      for (int i = static_cast<int>(threadIdx.x); i < Layout::sum_tile; i += fused_threads) {
        const int f = i / 64, c = i % 64;
        const float move = exists ? exp2_fast(states.maximum[from + f] - scale) : 0.0f;
        sum(tile)[sum_at(f, c >> 5, c & 7) + ((c >> 3) & 3)] = exists ? states.sum[from * 64 + i] * move : 0.0f;
        if (c == 0) extra(tile)[f] = exists ? states.extra[from + f] * move : 0.0f;
      }
    }
  }

  // ---- shared memory ----

  /// Returns where row f of the sum has columns 32 group + g, + 8, + 16 and + 24: next to each other. The order of the
  /// eight fours of a group depends on the row, so that accesses along rows and along columns have no bank conflicts.
  __device__ __forceinline__ static int sum_at(int f, int group, int g) {
    return f * 64 + 32 * group + 4 * (g ^ (f & 7));
  }
  __device__ __forceinline__ Vector<std::uint32_t, 4> sum_words(int tile, int f, int group, int g) const {
    return load_vector<4>(reinterpret_cast<const std::uint32_t*>(sum(tile) + sum_at(f, group, g)));
  }
  __device__ __forceinline__ float* floats(int offset) const { return reinterpret_cast<float*>(memory + offset); }
  __device__ __forceinline__ float* column_term(int which) const { return floats(Layout::column_terms) + 64 * which; }
  __device__ __forceinline__ Bf16* token_scale() const { return reinterpret_cast<Bf16*>(memory + Layout::token_scale); }
  /// Each warp has its own copy.
  __device__ __forceinline__ float* tile_scale() const {
    return floats(Layout::tile_scale) + warp_index() * Layout::most_tiles;
  }
  /// Not projected, so that no tile has a scale: whether all rows are left to the general kernel.
  __device__ __forceinline__ float& spoiled() const { return tile_scale()[Layout::most_tiles - 1]; }
  __device__ __forceinline__ Tile<1> bf16_tile(int offset) const {
    return {reinterpret_cast<Bf16*>(memory + offset), fused_ld, 0};
  }
  __device__ __forceinline__ Tile<1> normal() const { return bf16_tile(Layout::normal); }
  __device__ __forceinline__ Tile<1> row_vectors() const { return bf16_tile(Layout::row_vectors); }
  __device__ __forceinline__ Tile<1> column_vectors() const { return bf16_tile(Layout::column_vectors); }
  __device__ __forceinline__ Bf16* omega(int step) const {
    return reinterpret_cast<Bf16*>(memory + Layout::random_projection + (step & 1) * Layout::plane);
  }
  __device__ __forceinline__ float* sum(int tile) const { return floats(Layout::sum) + tile * Layout::sum_tile; }
  __device__ __forceinline__ float* extra(int tile) const { return floats(at.extra) + tile * fused_tile; }
  __device__ __forceinline__ int first_tile() const { return static_cast<int>(blockIdx.y) * at.tiles; }
  __device__ __forceinline__ int tiles() const {
    if constexpr (form == FusedForm::elu1) return 1;
    return gpu_min(at.tiles, p.m_padded / fused_tile - first_tile());
  }

  const FusedProblem& p;
  const FusedSide &row_side, &column_side;
  const FusedGradient &d_input, &d_vector;
  const Layout& at;
  unsigned char* const memory;
  const FusedHead head;
  const float factor;
  int lane, g, t, own;
  PlainSide<form, 64, Keys> row;
  PlainSide<form, 64, !Keys> column;
  // Sweep over queries: of the rows, minus the stabilizer, 1 / denominator, and -δ.
  float query_base[2], query_factor[2], query_extra[2];
  float exponent[2];                  // ρ
  OperandA<1> pairs[4];               // G
  float inputs[8][4], vectors[8][4];  // gradients of rows
  float sums_plus[2], sums_minus[2];  // of the gradients of features
  bool has_sum = false, has_lost = false;
  bool left[2];  // rows g and g + 8 are left to the general kernel
};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
