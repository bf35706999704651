#pragma once
// Products of tiles in shared memory on tensor cores, for softmax attention in bfloat16. A block has four warps. Each
// works on m_tiles × 16 rows of the block's own operand and on all rows of the streamed tile.
//
// Rows of a tile are `width` + 8 elements apart, so that eight rows of ldmatrix start in eight different groups of
// banks, whatever the width.
#include "framework/ops/attention/softmax/cuda/gpu.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

inline constexpr int mma_threads = 128, mma_warps = 4;
using Bf16 = __nv_bfloat16;
template <int width>
inline constexpr int tile_stride = width + 8;
template <int width>
constexpr int tile_elements(int rows) {
  return rows * tile_stride<width>;
}

/// Starts to copy rows [first, first + count) of a head, `columns` wide, to a tile of `rows` rows, with zeros after
/// `count` rows and after `columns`, up to the multiple of 16 that products read. The caller commits and waits.
template <int width, int rows>
__device__ __forceinline__ void load_tile(Bf16* tile, const HeadView<const Bf16>& view, const Bf16* head, int first,
                                          int count, int columns) {
  constexpr int ld = tile_stride<width>;
  const int used = (columns + 15) & ~15, thread = static_cast<int>(threadIdx.x);
  const Bf16* source = head + first * view.row_stride;
  if (view.vectors) {
    constexpr int vectors = width / 8, rows_at_once = mma_threads / vectors;
    const int column = thread % vectors * 8;
    if (column >= used) return;
    const std::int64_t step = rows_at_once * view.row_stride;
    source += thread / vectors * view.row_stride + column;
    for (int row = thread / vectors; row < rows; row += rows_at_once, source += step) {
      const bool inside = row < count && column < columns;
      cp_async16(tile + row * ld + column, inside ? source : view.data, inside ? 16 : 0);
    }
    return;
  }
  FURLONG_UNROLL_ONCE
  for (int i = thread; i < rows * width; i += mma_threads) {
    const int row = i / width, column = i % width;
    if (column >= used) continue;
    tile[row * ld + column] =
        row < count && column < columns ? source[row * view.row_stride + column] : from_compute<Bf16>(0.0f);
  }
}

/// Addresses for ldmatrix in a 16 × 16 block of a tile. address_a: the block's rows are rows of the product (operand
/// A), or are summed over (operand B, transposed on load). address_b: its rows are columns of the product (operand B).
template <int ld>
__device__ __forceinline__ const Bf16* address_a(const Bf16* block, int lane) {
  return block + (lane & 15) * ld + (lane >> 4) * 8;
}
template <int ld>
__device__ __forceinline__ const Bf16* address_b(const Bf16* block, int lane) {
  return block + ((lane >> 4) * 8 + (lane & 7)) * ld + ((lane >> 3) & 1) * 8;
}

/// sums[i, j] += Σ_f a[i, f] b[j, f] over 16 f, with the warp's rows of `a` as operands in registers and all rows of
/// `b`, of which the lane has its address (address_b).
template <int ld, int m_tiles, int n_tiles>
__device__ __forceinline__ void add_step_of_products(float (&sums)[m_tiles][n_tiles][4],
                                                     const std::uint32_t (&a)[m_tiles][4], const Bf16* b) {
  FURLONG_UNROLL
  for (int n = 0; n < n_tiles; n += 2) {
    std::uint32_t columns[4];
    ldmatrix_x4(columns, b + n * 8 * ld);
    const std::uint32_t low[2] = {columns[0], columns[1]}, high[2] = {columns[2], columns[3]};
    FURLONG_UNROLL
    for (int m = 0; m < m_tiles; ++m) {
      mma_m16n8k16(sums[m][n], a[m], low);
      mma_m16n8k16(sums[m][n + 1], a[m], high);
    }
  }
}

/// sums[i, j] += Σ_f a[i, f] b[j, f] over f < depth, for the warp's rows of `a` and all rows of `b`.
template <int width, int m_tiles, int n_tiles>
__device__ __forceinline__ void add_row_products(float (&sums)[m_tiles][n_tiles][4], const Bf16* a, const Bf16* b,
                                                 int depth, int lane) {
  constexpr int ld = tile_stride<width>;
  const Bf16 *a_lane = address_a<ld>(a, lane), *b_lane = address_b<ld>(b, lane);
  const auto step = [&](int f) {
    std::uint32_t rows[m_tiles][4];
    FURLONG_UNROLL
    for (int m = 0; m < m_tiles; ++m) ldmatrix_x4(rows[m], a_lane + m * 16 * ld + f);
    add_step_of_products<ld>(sums, rows, b_lane + f);
  };
  if (width <= 128 && depth > width - 16) {  // the common case, without branches between products
    FURLONG_UNROLL
    for (int f = 0; f < width; f += 16) step(f);
  } else {
    FURLONG_UNROLL_ONCE
    for (int f = 0; f < depth; f += 16) step(f);
  }
}

/// The warp's rows of a tile as operands, in registers.
template <int width, int m_tiles>
struct HeldRows {
  std::uint32_t operands[width / 16][m_tiles][4];

  /// Loads columns [0, depth), up to a multiple of 16.
  __device__ __forceinline__ void load(const Bf16* rows, int depth, int lane) {
    constexpr int ld = tile_stride<width>;
    const Bf16* own = address_a<ld>(rows, lane);
    FURLONG_UNROLL
    for (int f = 0; f < width; f += 16) {
      FURLONG_UNROLL
      for (int m = 0; m < m_tiles && f < depth; ++m) ldmatrix_x4(operands[f / 16][m], own + m * 16 * ld + f);
    }
  }
};
/// As above, with rows `a` in registers.
template <int width, int m_tiles, int n_tiles>
__device__ __forceinline__ void add_row_products(float (&sums)[m_tiles][n_tiles][4], const HeldRows<width, m_tiles>& a,
                                                 const Bf16* b, int depth, int lane) {
  constexpr int ld = tile_stride<width>;
  const Bf16* b_lane = address_b<ld>(b, lane);
  const auto add = [&](auto exact) {
    FURLONG_UNROLL
    for (int f = 0; f < width; f += 16) {
      if (!exact.value && f >= depth) continue;
      add_step_of_products<ld>(sums, a.operands[f / 16], b_lane + f);
    }
  };
  if (depth > width - 16) {
    add(std::true_type{});
  } else {
    add(std::false_type{});
  }
}

/// sums[i, f] += Σ_j weights[i, j] b[j, f] over f < columns, with the warp's rows of `weights` as operands in registers
/// (pack_operand) and all rows of `b`.
template <int width, int m_tiles, int k_tiles>
__device__ __forceinline__ void add_weighted_rows(float (&sums)[m_tiles][width / 8][4],
                                                  const std::uint32_t (&weights)[m_tiles][k_tiles][4], const Bf16* b,
                                                  int columns, int lane) {
  constexpr int ld = tile_stride<width>;
  const Bf16* b_lane = address_a<ld>(b, lane);  // transposed on load
  const auto add = [&](auto exact) {
    FURLONG_UNROLL
    for (int k = 0; k < k_tiles; ++k) {
      FURLONG_UNROLL
      for (int n = 0; n < width / 8; n += 2) {
        if (!exact.value && n * 8 >= columns) continue;
        std::uint32_t rows[4];
        ldmatrix_x4_transposed(rows, b_lane + k * 16 * ld + n * 8);
        const std::uint32_t low[2] = {rows[0], rows[1]}, high[2] = {rows[2], rows[3]};
        FURLONG_UNROLL
        for (int m = 0; m < m_tiles; ++m) {
          mma_m16n8k16(sums[m][n], weights[m][k], low);
          mma_m16n8k16(sums[m][n + 1], weights[m][k], high);
        }
      }
    }
  };
  if (width <= 128 && columns > width - 16) {
    add(std::true_type{});
  } else {
    add(std::false_type{});
  }
}

/// Sets scores of keys that are not visible to `hidden`. Without branches: they would take longer than the scores.
template <int keys, int m_tiles>
__device__ __forceinline__ void hide_scores(float (&scores)[m_tiles][keys / 8][4], const SoftmaxProblem<Bf16>& p,
                                            const KeyTile<keys>& tile, int row_position, int lane, float hidden) {
  FURLONG_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const VisibleRange visible = visible_keys(p, row_position + m * 16 + half * 8, tile.first, keys);
      FURLONG_UNROLL
      for (int n = 0; n < keys / 8; ++n) {
        FURLONG_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int j = n * 8 + lane % 4 * 2 + e;
          const bool seen = ((tile.kept[n / 4] >> (j & 31)) & 1) & (visible.begin <= j) & (j < visible.end);
          float& score = scores[m][n][2 * half + e];
          score = seen ? score : hidden;
        }
      }
    }
  }
}

/// Packs sums of one product as operand A of the next, rounded to bfloat16: both have the same register layout.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void pack_operand(std::uint32_t (&operand)[m_tiles][n_tiles / 2][4],
                                             const float (&sums)[m_tiles][n_tiles][4]) {
  FURLONG_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    FURLONG_UNROLL
    for (int k = 0; k < n_tiles / 2; ++k) {
      operand[m][k][0] = pack_bf16(sums[m][2 * k][0], sums[m][2 * k][1]);
      operand[m][k][1] = pack_bf16(sums[m][2 * k][2], sums[m][2 * k][3]);
      operand[m][k][2] = pack_bf16(sums[m][2 * k + 1][0], sums[m][2 * k + 1][1]);
      operand[m][k][3] = pack_bf16(sums[m][2 * k + 1][2], sums[m][2 * k + 1][3]);
    }
  }
}

/// Overwrites or adds to rows [first, end) of a head's gradient, as the view says, with the warp's rows of sums times
/// `factor`.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void store_gradient_rows(const GradientView& view, std::int64_t head, int first, int end,
                                                    int columns, const float (&sums)[m_tiles][n_tiles][4], float factor,
                                                    int lane) {
  with_gradient<float>(view, head, [&](auto* rows) {
    FURLONG_UNROLL
    for (int m = 0; m < m_tiles; ++m) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = first + m * 16 + half * 8 + lane / 4;
        auto* const target = rows + row * view.row_stride;
        FURLONG_UNROLL
        for (int n = 0; n < n_tiles; ++n) {
          const int column = n * 8 + lane % 4 * 2;
          if (row < end && column < columns)
            store_pair(view, target + column, sums[m][n][2 * half] * factor, sums[m][n][2 * half + 1] * factor,
                       column + 1 < columns);
        }
      }
    }
  });
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
