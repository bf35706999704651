#pragma once
// Gradients of linear attention in the plain case (fused_plain.cuh) at width 64. Rows, columns and notation are those
// of fused_backward.cuh. A column's features φ are under its own scale κ, the sum S over columns of earlier chunks
// under one scale C for each tile, and a row's features under ρ (queries: with the stabilizer; 1 / denominator is a
// factor of the whole row). With
//   G_ij = 2^(ρ_i + κ_j) (y_i·y_j + extra),  zero where the pair is not visible,
// the gradient of log feature f of row i is
//   φ_if (Σ_j G_ij φ_jf + 2^(ρ_i + C) (y_i·S_f + extra_i S_f,extra)).
// G is computed once per chunk, and again if a scale rises. Gradients of rows stay in registers.
#include "framework/ops/attention/linear/cuda/fused_backward.cuh"
#include "framework/ops/attention/linear/cuda/fused_plain_backward_memory.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

template <FusedForm form, bool Keys>
class PlainGradientsBlock : PlainGradientsMemory<form, Keys> {
  using Base = PlainGradientsMemory<form, Keys>;
  using Base::projected, Base::p, Base::row_side, Base::column_side, Base::at, Base::head, Base::factor, Base::lane,
      Base::g, Base::t, Base::own, Base::row, Base::column, Base::query_base, Base::query_factor, Base::query_extra,
      Base::exponent, Base::pairs, Base::inputs, Base::vectors, Base::sums_plus, Base::sums_minus, Base::has_sum,
      Base::has_lost, Base::left, Base::spoiled, Base::load_chunk, Base::prefetch_chunk, Base::load_rows,
      Base::find_position, Base::load_sum, Base::write, Base::sum_at, Base::sum_words, Base::column_term,
      Base::token_scale, Base::tile_scale, Base::normal, Base::row_vectors, Base::column_vectors, Base::omega,
      Base::sum, Base::extra, Base::first_tile, Base::tiles;
  using Sums = float (&)[8][4];
  using ConstSums = const float (&)[8][4];
  static constexpr bool scaled = projected || Keys;  // columns have factors in the sum: their scale, their denominator

 public:
  using Base::Base;

  __device__ void run(const FusedStates& states, bool has_start) {
    const int segment = static_cast<int>(blockIdx.x), begin = segment * p.segment_chunks * fused_chunk,
              end = gpu_min(row_side.n, begin + p.segment_chunks * fused_chunk),
              chunks = ceil_div(end - begin, fused_chunk);
    has_sum = has_start;
    load_sum(states, states.at(static_cast<int>(blockIdx.z), segment, true), has_start);
    if constexpr (projected) plain_load_projection<64>(p, head, first_tile(), omega(0));
    for (int turn = 0; turn < chunks; ++turn) {
      const int first = begin + (Keys ? chunks - 1 - turn : turn) * fused_chunk;
      chunk(first, turn, turn + 1 < chunks);
    }
  }

 private:
  // ---- one chunk ----

  __device__ __forceinline__ void chunk(int first, int turn, bool goes_on) {
    load_chunk(first);
    if (goes_on) prefetch_chunk(Keys ? first - fused_chunk : first + fused_chunk);
    clear(inputs);
    if constexpr (Keys) clear(vectors);
    sums_plus[0] = sums_plus[1] = sums_minus[0] = sums_minus[1] = 0;
    if constexpr (projected || !Keys) left[0] = left[1] = false;
    FURLONG_ONE_BY_ONE
    for (int tile = 0; tile < tiles(); ++tile) {
      // Registers do not suffice to keep the rows, nor the addresses that follow from the lane.
      find_position();
      load_rows(first);
      cp_async_wait<0>();
      __syncthreads();
      const int step = tiles() == 1 ? 0 : turn * tiles() + tile;
      if constexpr (projected) {
        const bool here = tiles() == 1 || (tiles() == 2 && step >= 1);  // all tiles are loaded
        if (!here && (goes_on || tile + 1 < tiles()))
          plain_load_projection<64>(p, head, first_tile() + (tile + 1 < tiles() ? tile + 1 : 0), omega(step + 1));
      }
      cp_async_commit();
      const bool raised = column_tile(tile, step);
      row_tile(first, tile, step, raised);
      if (goes_on) {
        find_position();
        const float move = scaled ? raise_tile_scale(tile) : 1.0f;
        __syncthreads();
        advance_sum(tile, move);
      }
    }
    write(first);
    has_sum = true;
  }
  // ---- columns ----

  /// Writes features of the warp's columns and their terms to shared memory. Ends with a barrier. Returns whether a
  /// column's scale has risen.
  __device__ __forceinline__ bool column_tile(int tile, int step) {
    [[maybe_unused]] float features[8][4];
    bool raised = tile == 0;
    if constexpr (projected) {
      float moves[2];
      column.project(omega(step), features);
      raised = column.raise(features, factor, moves);
      column.exponentiate(factor, features);
    }
    if constexpr (Keys && !projected) {
      // The sum has no scale: a query with a vanishing denominator is too large for it, and for its chunk's pairs.
      if (tile == 0 && __syncthreads_or(column_term(1)[own + (lane & 15)] > plain_most_exponent) && lane == 0)
        spoiled() = 1;
    }
    if (t == 0 && raised) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int line = own + g + 8 * half;
        column_term(0)[line] = (projected ? column.scale[half] : 0.0f) + column_term(1)[line];
      }
    }
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        const std::uint32_t word = projected ? pack_bf16(features[n][2 * half], features[n][2 * half + 1])
                                             : column.rounded_values(first_tile() + tile, half, n);
        normal().put_word(own + g + 8 * half, 8 * n + 2 * t, 0, word);
      }
    }
    return __syncthreads_or(raised);
  }
  /// Raises the tile's scale to the largest of its columns, and writes the factors that move the warp's columns to it.
  /// Returns the factor that moves the sum.
  __device__ __forceinline__ float raise_tile_scale(int tile) {
    const float before = tile_scale()[tile];
    float after = 0;
    if constexpr (projected)
      after = gpu_max(before, warp_max(gpu_max(column_term(0)[lane], column_term(0)[lane + 32])));
    if (lane < 16) token_scale()[own + lane] = from_compute<Bf16>(exp2_fast(column_term(0)[own + lane] - after));
    __syncwarp();
    if (lane == 0) tile_scale()[tile] = after;
    return projected ? exp2_fast(before - after) : 1.0f;
  }
  /// Adds the chunk's columns to the sums of the tile's features [own, own + 16).
  __device__ __forceinline__ void advance_sum(int tile, float move) {
    float added[8][4], added_extra[4] = {};
    clear(added);
    const Tile<1> y = column_vectors();
    FURLONG_UNROLL
    for (int k = 0; k < fused_chunk; k += 16) {
      OperandA<1> a = normal().a_transposed(k, own);
      FURLONG_UNROLL
      for (int word = 0; word < 4 && scaled; ++word) {
        const std::uint32_t scale =
            *reinterpret_cast<const std::uint32_t*>(token_scale() + k + 8 * (word >> 1) + 2 * t);
        a.parts[0][word] = multiply_words(a.parts[0][word], scale);
      }
      FURLONG_UNROLL
      for (int n = 0; n < 8; n += 2) {
        OperandB<1> b[2];
        y.b_transposed(k, 8 * n, b);
        multiply(added[n], a, b[0]);
        multiply(added[n + 1], a, b[1]);
      }
      OperandB<2> extra_column;  // in all columns
      FURLONG_UNROLL
      for (int word = 0; word < 2; ++word) {
        const int j = k + 8 * word + 2 * t;
        extra_column.set(word, Keys ? column_term(2)[j] : 1.0f, Keys ? column_term(2)[j + 1] : 1.0f);
      }
      mma_m16n8k16(added_extra, a.parts[0], extra_column.parts[0]);
      if constexpr (Keys) mma_m16n8k16(added_extra, a.parts[0], extra_column.parts[1]);
    }
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int f = own + g + 8 * half;
      FURLONG_UNROLL
      for (int e = 0; e < 2; ++e) {
        FURLONG_UNROLL
        for (int group = 0; group < 2; ++group) {
          float* target = sum(tile) + sum_at(f, group, 2 * t + e);
          auto four = load_vector<4>(target);
          FURLONG_UNROLL
          for (int i = 0; i < 4; ++i) four[i] = gpu_fma(four[i], move, added[4 * group + i][2 * half + e]);
          store_vector(target, four);
        }
      }
      if (t == 0) extra(tile)[f] = gpu_fma(extra(tile)[f], move, added_extra[2 * half]);
    }
  }

  // ---- rows ----

  __device__ __forceinline__ void row_tile(int first, int tile, int step, bool raised) {
    float features[8][4], gradients[8][4], moves[2];
    if constexpr (projected) {
      row.project(omega(step), features);
      if (row.raise(features, factor, moves)) raised = true;
      row.exponentiate(factor, features);
    } else {
      row.values(first_tile() + tile, features);
    }
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      exponent[half] = (projected ? row.scale[half] : 0.0f) + (Keys ? 0.0f : query_base[half]);
      if constexpr (projected || !Keys) left[half] = left[half] || sum_exponent(tile, half) > plain_most_exponent;
    }
    if (raised) compute_pairs();
    OperandA<1> rounded[4];
    FURLONG_UNROLL
    for (int k = 0; k < 4; ++k) rounded[k].from_accumulators(features, k);
    if constexpr (Keys) {
      gather_pairs(rounded);
      if (has_sum) gather_sum(tile, features);
    }
    clear(gradients);
    FURLONG_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (Keys ? 16 * k < own : 16 * k > own) continue;  // no visible pair
      FURLONG_UNROLL
      for (int n = 0; n < 8; n += 2) {
        OperandB<1> b[2];
        normal().b_transposed(16 * k, 8 * n, b);
        multiply(gradients[n], pairs[k], b[0]);
        multiply(gradients[n + 1], pairs[k], b[1]);
      }
    }
    if (has_sum) through_sum(tile, gradients);
    multiply_by(rounded, gradients);
    if constexpr (projected) {
      if (__any_sync(full_warp, has_lost)) directly(first, tile, gradients);
    }
    to_inputs(tile, step, gradients);
  }
  /// Turns gradients of features into those of their logarithms; of elu1, into those of its inputs.
  __device__ __forceinline__ void multiply_by(const OperandA<1> (&features)[4], Sums gradients) const {
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) {
        const std::uint32_t word = features[n >> 1].parts[0][2 * (n & 1) + (e >> 1)];
        const float feature = e & 1 ? high_bf16(word) : low_bf16(word);
        gradients[n][e] *= form == FusedForm::elu1 ? gpu_min(feature, 1.0f) : feature;
        if constexpr (!Keys) gradients[n][e] *= query_factor[e >> 1];
      }
    }
  }
  /// Returns whether the pair of row i of the chunk and column j is visible.
  __device__ __forceinline__ static bool meet(int i, int j) { return Keys ? j >= i : j <= i; }
  /// Returns 2^(ρ_i + κ_j) of accumulator e and column j; 0 if the pair is not visible or its features in a tile may
  /// have underflowed.
  __device__ __forceinline__ float pair_factor(int e, int j) const {
    const float both = exponent[e >> 1] + column_term(0)[j];
    const bool counts = meet(own + g + 8 * (e >> 1), j) && !(projected && both > fused_most_exponent);
    return counts ? exp2_fast(both) : 0.0f;
  }
  /// Computes G.
  __device__ __forceinline__ void compute_pairs() {
    has_lost = false;
    OperandA<1> y[4];
    FURLONG_UNROLL
    for (int c = 0; c < 4; ++c) y[c] = row_vectors().a(own, 16 * c);
    FURLONG_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (Keys ? 16 * k < own : 16 * k > own) continue;
      float products[2][4];
      clear(products);
      FURLONG_UNROLL
      for (int c = 0; c < 4; ++c) {
        OperandB<1> b[2];
        column_vectors().b(16 * k, 16 * c, b);
        multiply(products[0], y[c], b[0]);
        multiply(products[1], y[c], b[1]);
      }
      FURLONG_UNROLL
      for (int side = 0; side < 2; ++side) {
        FURLONG_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int j = 16 * k + 8 * side + 2 * t + (e & 1);
          const float by = pair_factor(e, j);
          has_lost = has_lost || is_lost(e >> 1, j);
          products[side][e] =
              by != 0 ? by * (products[side][e] + (Keys ? column_term(2)[j] : query_extra[e >> 1])) : 0.0f;
        }
      }
      pairs[k].from_accumulators(products, 0);
    }
  }
  __device__ __forceinline__ bool is_lost(int half, int j) const {
    return projected && meet(own + g + 8 * half, j) && exponent[half] + column_term(0)[j] > fused_most_exponent;
  }
  /// Adds the contributions of the chunk's queries to d_value of the warp's keys: Σ_i w_ij g_i for the tile's features.
  __device__ __forceinline__ void gather_pairs(const OperandA<1> (&features)[4]) {
    FURLONG_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (16 * k < own) continue;
      float weights[2][4];
      clear(weights);
      FURLONG_UNROLL
      for (int f = 0; f < 4; ++f) {
        OperandB<1> b[2];
        normal().b(16 * k, 16 * f, b);
        multiply(weights[0], features[f], b[0]);
        multiply(weights[1], features[f], b[1]);
      }
      FURLONG_UNROLL
      for (int side = 0; side < 2; ++side) {
        FURLONG_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float by = pair_factor(e, 16 * k + 8 * side + 2 * t + (e & 1));
          weights[side][e] = by != 0 ? by * weights[side][e] : 0.0f;
        }
      }
      OperandA<1> w;
      w.from_accumulators(weights, 0);
      FURLONG_UNROLL
      for (int n = 0; n < 8; n += 2) {
        OperandB<1> b[2];
        column_vectors().b_transposed(16 * k, 8 * n, b);
        multiply(vectors[n], w, b[0]);
        multiply(vectors[n + 1], w, b[1]);
      }
    }
  }
  /// Returns ρ + C of row g + 8 half.
  __device__ __forceinline__ float sum_exponent(int tile, int half) const {
    return exponent[half] + (projected ? tile_scale()[tile] : 0.0f);
  }
  /// gradients += 2^(ρ + C) (y · S + extra S_extra). The factor, a power of two, scales y.
  __device__ __forceinline__ void through_sum(int tile, Sums gradients) const {
    const float by[2] = {exp2_fast(sum_exponent(tile, 0)), exp2_fast(sum_exponent(tile, 1))};
    FURLONG_UNROLL
    for (int group = 0; group < 2; ++group) {
      std::uint32_t a[4][4];  // [2 k + h]: columns 32 group + 16 k + 8 h + 2 t and the next, in TF32
      FURLONG_UNROLL
      for (int k = 0; k < 2; ++k) {
        const OperandA<1> y = row_vectors().a(own, 32 * group + 16 * k);
        FURLONG_UNROLL
        for (int word = 0; word < 4; ++word) {
          const int half = word & 1;
          a[2 * k + (word >> 1)][half] = __float_as_uint(low_bf16(y.parts[0][word]) * by[half]);
          a[2 * k + (word >> 1)][2 + half] = __float_as_uint(high_bf16(y.parts[0][word]) * by[half]);
        }
      }
      FURLONG_UNROLL
      for (int n = 0; n < 8; n += 2) {
        Vector<std::uint32_t, 4> s[2][2];
        FURLONG_UNROLL
        for (int side = 0; side < 2; ++side) {
          FURLONG_UNROLL
          for (int e = 0; e < 2; ++e) s[side][e] = sum_words(tile, 8 * (n + side) + g, group, 2 * t + e);
        }
        FURLONG_UNROLL
        for (int i = 0; i < 4; ++i) {
          FURLONG_UNROLL
          for (int side = 0; side < 2; ++side) {
            const std::uint32_t b[2] = {s[side][0][i], s[side][1][i]};
            mma_m16n8k8(gradients[n + side], a[i], b);
          }
        }
      }
    }
    const float of_extra[2] = {by[0] * (Keys ? 1.0f : query_extra[0]), by[1] * (Keys ? 1.0f : query_extra[1])};
    FURLONG_UNROLL
    for (int n = 0; n < 8; ++n) {
      const auto z = load_vector<2>(extra(tile) + 8 * n + 2 * t);
      FURLONG_UNROLL
      for (int e = 0; e < 4; ++e) gradients[n][e] = gpu_fma(of_extra[e >> 1], z[e & 1], gradients[n][e]);
    }
  }
  /// d_value += 2^(ρ + C) φ S.
  __device__ __forceinline__ void gather_sum(int tile, ConstSums features) {
    const float by[2] = {exp2_fast(sum_exponent(tile, 0)), exp2_fast(sum_exponent(tile, 1))};
    FURLONG_UNROLL
    for (int step = 0; step < 8; ++step) {
      const std::uint32_t a[4] = {
          __float_as_uint(features[step][0] * by[0]), __float_as_uint(features[step][2] * by[1]),
          __float_as_uint(features[step][1] * by[0]), __float_as_uint(features[step][3] * by[1])};
      FURLONG_UNROLL
      for (int group = 0; group < 2; ++group) {
        const auto low = sum_words(tile, 8 * step + 2 * t, group, g),
                   high = sum_words(tile, 8 * step + 2 * t + 1, group, g);
        FURLONG_UNROLL
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t b[2] = {low[i], high[i]};
          mma_m16n8k8(vectors[4 * group + i], a, b);
        }
      }
    }
  }
  /// Recomputes, from the logarithms, pairs whose features in this tile may have underflowed. Rare and slow.
  __device__ void directly(int first, int tile, Sums gradients) {
    const FusedInputs<true, Keys> row_inputs(p, head, row_side);
    const FusedInputs<true, !Keys> column_inputs(p, head, column_side);
    FURLONG_ONE_BY_ONE
    for (int j = 0; j < fused_chunk; ++j) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const bool wanted = is_lost(half, j) && !left[half];
        if (!__any_sync(full_warp, wanted)) continue;
        const int i = own + g + 8 * half;
        float product = 0, total = 0;
        for (int c = t; c < 64; c += 4)
          product = gpu_fma(row_vectors().value(i, c), column_vectors().value(j, c), product);
        const float gradient = quad_sum(product) + (Keys ? column_term(2)[j] : query_extra[half]);
        const RowTerms row_terms{row.plus[half], 0.0f, 0.0f}, terms{column_term(3)[j], 0.0f, 0.0f};
        FURLONG_ONE_BY_ONE
        for (int feature = 0; feature < 16; ++feature) {
          const int place = 8 * (feature >> 1) + 2 * t + (feature & 1), of_tile = first_tile() + tile;
          const float a = feature_of_row<true>(p, head, row_inputs, row_terms, first + i, of_tile, place),
                      b = feature_of_row<true>(p, head, column_inputs, terms, first + j, of_tile, place);
          // Two large numbers that nearly cancel are added first.
          const float by = Keys ? 1.0f : query_factor[half];
          const float weight =
              wanted ? by * exp2_fast(Keys ? (b + column_term(1)[j]) + a : (a + query_base[half]) + b) : 0.0f;
          total += weight;
          FURLONG_UNROLL
          for (int n = 0; n < 16; ++n) {  // accumulators cannot be indexed at run time
            if (n == feature && wanted) gradients[n >> 1][2 * half + (n & 1)] += weight * gradient;
          }
        }
        if constexpr (Keys) {
          total = quad_sum(total);
          FURLONG_UNROLL
          for (int n = 0; n < 16; ++n) {
            if (wanted)
              vectors[n >> 1][2 * half + (n & 1)] += total * column_vectors().value(j, 8 * (n >> 1) + 2 * t + (n & 1));
          }
        }
      }
    }
  }

  /// Adds gradients of features to those of the inputs, whose entries have the order of products.
  __device__ __forceinline__ void to_inputs(int tile, int step, ConstSums gradients) {
    const bool negative = form == FusedForm::softmax && first_tile() + tile == 1;
    if constexpr (form != FusedForm::elu1) {
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        FURLONG_UNROLL
        for (int e = 0; e < 4; ++e) {
          sums_plus[e >> 1] += negative ? 0.0f : gradients[n][e];
          sums_minus[e >> 1] += negative ? gradients[n][e] : 0.0f;
        }
      }
    }
    if constexpr (projected) {
      const Tile<1> w{omega(step), 64 + 8, 0};
      OperandA<1> a[4];
      FURLONG_UNROLL
      for (int k = 0; k < 4; ++k) a[k].from_accumulators(gradients, k);
      FURLONG_UNROLL
      for (int n = 0; n < 8; n += 2) {
        FURLONG_UNROLL
        for (int k = 0; k < 4; ++k) {
          OperandB<1> b[2];
          w.b_transposed(16 * k, 8 * n, b);
          multiply(inputs[n], a[k], b[0]);
          multiply(inputs[n + 1], a[k], b[1]);
        }
      }
    } else {
      FURLONG_UNROLL
      for (int n = 0; n < 8; ++n) {
        FURLONG_UNROLL
        for (int e = 0; e < 4; ++e) inputs[n][e] += negative ? -gradients[n][e] : gradients[n][e];
      }
    }
  }
};

/// Grid: (segments, feature tiles / tiles per block, batch · n_heads), as fused_gradients. The sweep of elu1 over
/// queries has few enough sums for three blocks per multiprocessor.
template <FusedForm form, bool Keys>
__global__ void __launch_bounds__(fused_threads, form == FusedForm::elu1 && !Keys ? 3 : 2)
    fused_plain_gradients(FusedProblem p, FusedSide rows, FusedSide columns, FusedStates states, bool has_start,
                          PlainGradientsLayout<form> layout, FusedGradient d_inputs, FusedGradient d_vectors) {
  FURLONG_DYNAMIC_SHARED(unsigned char, memory);
  PlainGradientsBlock<form, Keys>(p, rows, columns, d_inputs, d_vectors, layout, memory).run(states, has_start);
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
