#pragma once
// Gradients of linear attention in the fused kernels. Two sweeps that mirror each other use one kernel. Its *rows* are
// the tokens whose gradient it computes; its *columns* are the tokens they meet.
//   rows queries, columns keys, forward in time: advances the sum S over earlier keys and computes d_query;
//   rows keys, columns queries, backward in time: advances the sum R over later queries and computes d_key and d_value.
// Notation: a = features of rows, b = features of columns, each with its shift (queries: minus the stabilizer top),
// factors μ (queries: 1 / denominator), vectors y (queries: g = d_output, keys: v) and one extra entry each (queries:
// -δ = -g·output, keys: 1):
//   gradient_ij = μ_i μ_j (y_i·y_j + extra),    d a_if = Σ_j 2^(a_if + b_jf) gradient_ij
//            = 2^(a_if + c_f) μ_i (y_i·S_f + extra_i S_f,extra) over the columns in the sum
//              + pair by pair over the columns of its own chunk,
//   d_value_j = Σ_i w_ij μ_i g_i in the same two ways.
// Pairs are computed one feature tile at a time under the maxima of the rows in that tile, so a sum over tiles needs no
// other maxima. If the two maxima are more than 2^86 above the stabilizer, the pair's features are so far below them
// (a pair weighs at most about 1) that they may have underflowed: they are recomputed directly. Otherwise underflow
// takes less than m · 1e-12 of the row.
#include "framework/ops/attention/linear/cuda/fused_backward_memory.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

inline constexpr float fused_most_exponent = 86;

template <bool Exact, bool Projected, bool Keys>
class FusedGradientsBlock : FusedGradientsMemory<Exact, Projected, Keys> {
  using Base = FusedGradientsMemory<Exact, Projected, Keys>;
  using Base::parts, Base::p, Base::row_side, Base::column_side, Base::at, Base::head, Base::row, Base::column, Base::g,
      Base::t, Base::own, Base::chunks, Base::has_sum, Base::load_sum, Base::chunk_begin, Base::chunk_end,
      Base::load_chunk, Base::next_directions, Base::row_weight, Base::prepare_rows, Base::shares_output,
      Base::clear_inputs, Base::column_term, Base::read_block, Base::write_block, Base::write, Base::write_vectors,
      Base::sum, Base::extra, Base::maximum, Base::column_maximum, Base::inputs, Base::vectors_out, Base::normal,
      Base::weights, Base::random_projection, Base::staged, Base::run_start, Base::first_tile, Base::tiles, Base::meet;
  using typename Base::Rows;
  using Sums = float (&)[8][4];
  using ConstSums = const float (&)[8][4];

 public:
  using Base::Base;

  __device__ void run(const FusedStates& states, bool has_start) {
    if (!this->find_rows()) return;
    has_sum = has_start;
    if (has_start) load_sum(states, states.at(static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.x), p.causal));
    if constexpr (Projected) load_directions(p, head, first_tile(), random_projection());
    for (int turn = 0; turn < chunks; ++turn) chunk(turn);
  }

 private:
  // ---- one chunk ----

  __device__ void chunk(int turn) {
    const int first = chunk_begin(turn), last = chunk_end(turn);
    const bool goes_on = p.causal && turn + 1 < chunks;
    const CarriedRun run =
        p.causal ? carried_run(run_start(), !Keys, first, last, row_side.n) : CarriedRun{first, last, true};
    if (at.stages == 1 || turn == 0) {
      __syncthreads();  // all warps have read the tiles of the previous chunk
      load_chunk(turn);
      cp_async_commit();
    }
    Rows own_rows;
    prepare_rows(first, last, own_rows);
    RowTerms column_row_terms[2];
    if (p.causal) row_terms<Projected>(p, column, first + own, column_row_terms);
    for (int tile = 0; tile < tiles(); ++tile) {
      cp_async_wait<0>();
      __syncthreads();
      const Bf16* omega = next_directions(turn * tiles() + tile, tile, tile + 1 < tiles() || turn + 1 < chunks);
      if (tile == 0 && at.stages > 1 && turn + 1 < chunks) load_chunk(turn + 1);
      cp_async_commit();
      if (p.causal) column_tile(first, tile, omega, column_row_terms, run, goes_on);
      row_tile(turn, first, tile, omega, own_rows);
      if (goes_on) {
        __syncthreads();
        advance_sum(turn, tile, run);
      }
    }
    has_sum = has_sum || goes_on;
    write(first, own_rows);
  }

  // ---- columns ----

  __device__ __forceinline__ void column_tile(int first, int tile, const Bf16* omega, const RowTerms (&terms)[2],
                                              const CarriedRun& run, bool goes_on) {
    float features[8][4], row_shift[2], shift[2], factor[2];
    bool counts[2];
    features_of_rows<Projected>(p, head, column, first + own, first_tile() + tile, omega, terms, features);
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int line = own + g + 8 * half;
      const RowWeight weight = this->template row_weight<!Keys>(column_side, first + line);
      float most = terms[half].shift;
      if (!p.values) {
        most = fused_nothing;
        FURLONG_UNROLL
        for (int n8 = 0; n8 < 8; ++n8)
          most = gpu_max(most, gpu_max(features[n8][2 * half], features[n8][2 * half + 1]));
        most = quad_max(most);
      }
      if (t == 0) {
        column_term(0)[line] = most, column_term(1)[line] = weight.shift, column_term(2)[line] = weight.factor;
        column_term(3)[line] = weight.extra;
        column_term(4)[line] = terms[half].shift, column_term(5)[line] = terms[half].log_plus,
        column_term(6)[line] = terms[half].log_minus;
      }
      row_shift[half] = terms[half].shift, shift[half] = weight.shift;
      counts[half] = first + line >= run.from && first + line < run.until;
      factor[half] = counts[half] ? weight.factor : 0.0f;
      FURLONG_UNROLL
      for (int n8 = 0; n8 < 8; ++n8) {
        const float low = features[n8][2 * half], high = features[n8][2 * half + 1];
        normal().put(line, 8 * n8 + 2 * t, p.values ? low : exp2_fast(low - most),
                     p.values ? high : exp2_fast(high - most));
      }
    }
    column_maxima(p, features, row_shift, shift, counts, column_maximum() + 4 * own);
    __syncthreads();
    if (!goes_on) return;
    FURLONG_UNROLL
    for (int n8 = 0; n8 < 8; ++n8) {
      const int place = 8 * n8 + 2 * t;
      const float low = raised(tile, place, run.keeps), high = raised(tile, place + 1, run.keeps);
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        weights().put(
            own + g + 8 * half, place,
            counts[half] ? weighted(p, features[n8][2 * half], row_shift[half], shift[half] - low) * factor[half]
                         : 0.0f,
            counts[half] ? weighted(p, features[n8][2 * half + 1], row_shift[half], shift[half] - high) * factor[half]
                         : 0.0f);
      }
    }
  }
  __device__ __forceinline__ float raised(int tile, int place, bool keeps) const {
    float most = keeps && has_sum ? maximum()[tile * fused_tile + place] : fused_nothing;
    FURLONG_UNROLL
    for (int warp = 0; warp < fused_warps; ++warp) most = gpu_max(most, column_maximum()[64 * warp + place]);
    return most;
  }
  /// Advances the sums of the tile's features [own, own + 16) by this chunk's columns.
  __device__ void advance_sum(int turn, int tile, const CarriedRun& run) {
    const bool keeps = run.keeps && has_sum;
    float before[2], after[2];
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int place = own + g + 8 * half;
      after[half] = raised(tile, place, run.keeps);
      before[half] = keeps ? exp2_fast(maximum()[tile * fused_tile + place] - after[half]) : 0.0f;
    }
    __syncwarp();
    for (int slice = 0; slice < p.d_value; slice += 64) {
      const int width = gpu_min(64, p.d_value - slice);
      Tile<parts> vectors = staged(at.column_vectors, turn);
      vectors.data += slice;
      float added[8][4], extra_added[1][4];
      clear(added);
      clear(extra_added);
      add_outer_products<parts>(weights(), vectors, column_term(3), own, width, added, extra_added[0]);
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int f = tile * fused_tile + own + g + 8 * half;
        FURLONG_UNROLL
        for (int n8 = 0; n8 < 8; ++n8) {
          if (8 * n8 >= width) continue;
          auto* target = reinterpret_cast<Vector<float, 2>*>(sum() + f * at.ld_sum + slice + 8 * n8 + 2 * t);
          Vector<float, 2> both{{0.0f, 0.0f}};
          if (keeps) both = *target;
          both[0] = gpu_fma(both[0], before[half], added[n8][2 * half]);
          both[1] = gpu_fma(both[1], before[half], added[n8][2 * half + 1]);
          *target = both;
        }
        if (slice == 0 && t == 0) {
          extra()[f] = gpu_fma(keeps ? extra()[f] : 0.0f, before[half], extra_added[0][2 * half]);
          maximum()[f] = after[half];
        }
      }
    }
  }

  // ---- rows ----

  __device__ __forceinline__ void row_tile(int turn, int first, int tile, const Bf16* omega, Rows& rows) {
    float features[8][4], gradients[8][4];
    features_of_rows<Projected>(p, head, row, first + own, first_tile() + tile, omega, rows.terms, features);
    clear(gradients);
    if (p.causal) through_pairs(turn, first, tile, rows, features, gradients);
    if (has_sum) through_sum(turn, tile, rows, features, gradients);
    if constexpr (Keys) {
      if (shares_output()) {
        write_vectors(first);
        __syncwarp();
        clear_inputs();
        __syncwarp();
      }
    }
    to_inputs(tile, omega, rows, features, gradients);
  }

  /// gradients += 2^(feature + c) μ (y · S + extra · S_extra); keys also gather 2^(feature + c) S. Split processes
  /// half of the features at a time, because registers do not suffice for all.
  __device__ __forceinline__ void through_sum(int turn, int tile, const Rows& rows, ConstSums features,
                                              Sums gradients) {
    constexpr int blocks = Exact ? 8 : 4;
    FURLONG_UNROLL
    for (int from = 0; from < 8; from += blocks) through_sum_of<blocks>(turn, tile, from, rows, features, gradients);
  }
  /// Processes `Blocks` blocks of 8 features.
  template <int Blocks>
  __device__ __forceinline__ void through_sum_of(int turn, int tile, int from, const Rows& rows, ConstSums features,
                                                 Sums gradients) {
    const int first_feature = tile * fused_tile + 8 * from;
    const float* of_block = sum() + first_feature * at.ld_sum;
    const Tile<parts> y = staged(at.row_vectors, turn);
    float products[Blocks][4];
    clear(products);
    FURLONG_ONE_BY_ONE
    for (int k = 0; k < p.d_value; k += 16) {
      const OperandA<parts> a = y.a(own, k);
      FURLONG_UNROLL
      for (int block = 0; block < Blocks; ++block) {
        const float* entries = of_block + (8 * block + g) * at.ld_sum + k + 2 * t;
        const auto low = load_vector<2>(entries), high = load_vector<2>(entries + 8);
        OperandB<2> b;
        b.set(0, low[0], low[1]);
        b.set(1, high[0], high[1]);
        multiply(products[block], a, b);
      }
    }
    FURLONG_UNROLL
    for (int block = 0; block < Blocks; ++block) {
      FURLONG_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int half = i >> 1, f = first_feature + 8 * block + 2 * t + (i & 1);
        const float shift = maximum()[f] + rows.weights[half].shift, row_shift = rows.terms[half].shift;
        const float gradient =
            rows.weights[half].factor * gpu_fma(rows.weights[half].extra, extra()[f], products[block][i]);
        const float e = rows.meets_sum[half] ? weighted(p, features[from + block][i], row_shift, shift) : 0.0f;
        const float by = !p.values ? e : rows.meets_sum[half] ? exp2_fast(row_shift + shift) : 0.0f;
        gradients[from + block][i] += rows.meets_sum[half] ? by * gradient : 0.0f;
        products[block][i] = e;
      }
    }
    if constexpr (Keys) gather_sum(of_block, products);
  }
  template <int Blocks>
  __device__ __forceinline__ void gather_sum(const float* of_block, const float (&e)[Blocks][4]) {
    OperandA<parts> a[Blocks / 2];
    FURLONG_UNROLL
    for (int k = 0; k < Blocks / 2; ++k) a[k].from_accumulators(e, k);
    FURLONG_ONE_BY_ONE
    for (int c = 0; c < p.d_value; c += 16) {
      float block[2][4];
      read_block(vectors_out(), at.ld_d_vectors, c, block);
      FURLONG_UNROLL
      for (int k = 0; k < Blocks / 2; ++k) {
        FURLONG_UNROLL
        for (int side = 0; side < 2; ++side) {
          const float* from = of_block + (16 * k + 2 * t) * at.ld_sum + c + 8 * side + g;
          OperandB<2> b;
          b.set(0, from[0], from[at.ld_sum]);
          b.set(1, from[8 * at.ld_sum], from[9 * at.ld_sum]);
          multiply(block[side], a[k], b);
        }
      }
      write_block(vectors_out(), at.ld_d_vectors, c, block);
    }
  }
  /// Returns the sum of the maxima of the row and of the column relative to the stabilizer. Two large
  /// numbers that nearly cancel are subtracted first.
  __device__ __forceinline__ float exponent_of(float row_most, float row_shift, int j) const {
    return Keys ? (row_most + column_term(1)[j]) + column_term(0)[j] : (column_term(0)[j] + row_shift) + row_most;
  }
  __device__ __forceinline__ float gradient_of(const RowWeight& weight, int j, float product) const {
    return Keys ? column_term(2)[j] * (product + column_term(3)[j]) : weight.factor * (product + weight.extra);
  }

  /// Returns 2^(feature - maximum of the row) of 16 features.
  __device__ __forceinline__ OperandA<parts> normal_operand(ConstSums features, const float (&most)[2], int k) const {
    OperandA<parts> a;
    FURLONG_UNROLL
    for (int word = 0; word < 4; ++word) {
      const int n8 = 2 * k + (word >> 1), half = word & 1;
      const float low = features[n8][2 * half], high = features[n8][2 * half + 1];
      a.set(word, p.values ? low : exp2_fast(low - most[half]), p.values ? high : exp2_fast(high - most[half]));
    }
    return a;
  }
  /// Computes gradients, zero before, from the columns of the chunk itself.
  __device__ __forceinline__ void through_pairs(int turn, int first, int tile, const Rows& rows, ConstSums features,
                                                Sums gradients) {
    const Tile<parts> y = staged(at.row_vectors, turn), other = staged(at.column_vectors, turn);
    float most[2];
    FURLONG_UNROLL
    for (int half = 0; half < 2; ++half) {
      most[half] = rows.terms[half].shift;
      if (p.values) continue;
      most[half] = fused_nothing;
      FURLONG_UNROLL
      for (int n8 = 0; n8 < 8; ++n8)
        most[half] = gpu_max(most[half], gpu_max(features[n8][2 * half], features[n8][2 * half + 1]));
      most[half] = quad_max(most[half]);
    }
    // Split has too few registers to store them.
    [[maybe_unused]] OperandA<parts> normal_rows[4];
    if constexpr (Keys && Exact) {
      FURLONG_UNROLL
      for (int k = 0; k < 4; ++k) normal_rows[k] = normal_operand(features, most, k);
    }
    bool direct = false;
    FURLONG_ONE_BY_ONE
    for (int c = 0; c < fused_chunk; c += 16) {
      if (Keys ? c < own : c > own) continue;  // no visible pair
      float products[2][4], pair_weights[2][4];
      clear(products);
      clear(pair_weights);
      FURLONG_ONE_BY_ONE
      for (int k = 0; k < p.d_value; k += 16) {
        OperandB<parts> b[2];
        other.b(c, k, b);
        const OperandA<parts> a = y.a(own, k);
        multiply(products[0], a, b[0]);
        multiply(products[1], a, b[1]);
      }
      if constexpr (Keys) {
        FURLONG_UNROLL
        for (int k = 0; k < 4; ++k) {
          OperandB<parts> b[2];
          normal().b(c, 16 * k, b);
          if constexpr (!Exact) normal_rows[k] = normal_operand(features, most, k);
          multiply(pair_weights[0], normal_rows[k], b[0]);
          multiply(pair_weights[1], normal_rows[k], b[1]);
        }
      }
      FURLONG_UNROLL
      for (int side = 0; side < 2; ++side) {
        FURLONG_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int half = i >> 1, j = c + 8 * side + 2 * t + (i & 1);
          const float exponent = exponent_of(most[half], rows.weights[half].shift, j);
          const bool visible = meet(first, own + g + 8 * half, j), lost = !p.values && exponent > fused_most_exponent;
          direct = direct || (visible && lost);
          const float factor = visible && !lost ? exp2_fast(exponent) : 0.0f;
          products[side][i] = visible && !lost ? factor * gradient_of(rows.weights[half], j, products[side][i]) : 0.0f;
          if constexpr (Keys)
            pair_weights[side][i] = visible && !lost ? pair_weights[side][i] * factor * column_term(2)[j] : 0.0f;
        }
      }
      OperandA<parts> a;
      a.from_accumulators(products, 0);
      FURLONG_UNROLL
      for (int n8 = 0; n8 < 8; n8 += 2) {
        OperandB<parts> b[2];
        normal().b_transposed(c, 8 * n8, b);
        multiply(gradients[n8], a, b[0]);
        multiply(gradients[n8 + 1], a, b[1]);
      }
      if constexpr (Keys) gather_pairs(other, c, pair_weights);
    }
    FURLONG_UNROLL
    for (int n8 = 0; n8 < 8; ++n8) {
      FURLONG_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (!p.values) gradients[n8][i] *= exp2_fast(features[n8][i] - most[i >> 1]);
      }
    }
    const bool computed[2] = {this->computes(first, own + g), this->computes(first, own + g + 8)};
    if (!__any_sync(full_warp, direct && (computed[0] || computed[1]))) return;
    __syncwarp();  // gather_pairs has written to vectors_out, to which other lanes add
    directly(turn, first, tile, rows, computed, most, features, gradients);
  }
  /// Adds the contributions of 16 queries to d_value of the warp's keys.
  __device__ __forceinline__ void gather_pairs(const Tile<parts>& other, int c, const float (&pair_weights)[2][4]) {
    OperandA<parts> a;
    a.from_accumulators(pair_weights, 0);
    FURLONG_ONE_BY_ONE
    for (int width = 0; width < p.d_value; width += 16) {
      float block[2][4];
      read_block(vectors_out(), at.ld_d_vectors, width, block);
      OperandB<parts> b[2];
      other.b_transposed(c, width, b);
      multiply(block[0], a, b[0]);
      multiply(block[1], a, b[1]);
      write_block(vectors_out(), at.ld_d_vectors, width, block);
    }
  }

  /// Recomputes, from the logarithms, pairs whose features in this tile may have underflowed, of the rows that the
  /// kernel computes. Rare and slow.
  __device__ void directly(int turn, int first, int tile, const Rows& rows, const bool (&computed)[2],
                           const float (&most)[2], ConstSums features, Sums gradients) {
    const Tile<parts> y = staged(at.row_vectors, turn), other = staged(at.column_vectors, turn);
    for (int j = 0; j < fused_chunk; ++j) {
      FURLONG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int i = own + g + 8 * half;
        const bool wanted = computed[half] && meet(first, i, j) &&
                            exponent_of(most[half], rows.weights[half].shift, j) > fused_most_exponent;
        if (!__any_sync(full_warp, wanted)) continue;
        float product = 0, total = 0;
        for (int c = t; c < p.d_value; c += 4) product = gpu_fma(y.value(i, c), other.value(j, c), product);
        const float gradient = gradient_of(rows.weights[half], j, quad_sum(product));
        const RowTerms terms{column_term(4)[j], column_term(5)[j], column_term(6)[j]};
        FURLONG_ONE_BY_ONE
        for (int feature = 0; feature < 16; ++feature) {
          const int place = 8 * (feature >> 1) + 2 * t + (feature & 1);
          const float b = feature_of_row<Projected>(p, head, column, terms, first + j, first_tile() + tile, place);
          FURLONG_UNROLL
          for (int i = 0; i < 16; ++i) {  // accumulators cannot be indexed at run time
            if (i != feature) continue;
            const float a = features[i >> 1][2 * half + (i & 1)];
            const float weight = exp2_fast(Keys ? (a + column_term(1)[j]) + b : (b + rows.weights[half].shift) + a);
            total += wanted ? weight : 0.0f;
            gradients[i >> 1][2 * half + (i & 1)] += wanted ? weight * gradient : 0.0f;
          }
        }
        if constexpr (Keys) {
          total = quad_sum(total) * column_term(2)[j];
          for (int c = t; c < p.d_value && wanted; c += 4)
            vectors_out()[i * at.ld_d_vectors + c] += total * other.value(j, c);
          __syncwarp();
        }
      }
    }
  }

  /// Transforms gradients of features to gradients of the inputs.
  __device__ __forceinline__ void to_inputs(int tile, const Bf16* omega, Rows& rows, ConstSums features,
                                            Sums gradients) {
    with_fused_form<Projected>(p.form, [&](auto form) {
      FURLONG_UNROLL
      for (int n8 = 0; n8 < 8; ++n8) {
        FURLONG_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int half = i >> 1, feature = feature_at<Projected>(first_tile() + tile, 8 * n8 + 2 * t + (i & 1));
          float& gradient = gradients[n8][i];
          if (feature >= p.m) gradient = 0;
          const bool minus = form() == FusedForm::softmax && feature >= p.d;
          rows.sums_plus[half] += minus ? 0.0f : gradient;
          rows.sums_minus[half] += minus ? gradient : 0.0f;
          gradient =
              gradient_of_input<form()>(p, features[n8][i], rows.terms[half].shift, minus ? -gradient : gradient);
        }
      }
    });
    if constexpr (Projected) {
      OperandA<parts> a[4];
      FURLONG_UNROLL
      for (int k = 0; k < 4; ++k) a[k].from_accumulators(gradients, k);
      const Tile<1> w{const_cast<Bf16*>(omega), p.d_padded + 8, 0};
      FURLONG_ONE_BY_ONE
      for (int c = 0; c < p.d_padded; c += 16) {
        float block[2][4];
        read_block(inputs(), at.ld_inputs, c, block);
        FURLONG_UNROLL
        for (int k = 0; k < 4; ++k) {
          OperandB<1> b[2];
          w.b_transposed(16 * k, c, b);
          multiply(block[0], a[k], b[0]);
          multiply(block[1], a[k], b[1]);
        }
        write_block(inputs(), at.ld_inputs, c, block);
      }
    } else {
      // The two halves of softmax features may belong to one entry.
      FURLONG_UNROLL
      for (int pass = 0; pass < 2; ++pass) {
        FURLONG_UNROLL
        for (int n8 = 0; n8 < 8; ++n8) {
          const int feature = feature_at<false>(first_tile() + tile, 8 * n8 + 2 * t),
                    c = feature >= p.d ? feature - p.d : feature;
          if (feature >= p.m || (feature >= p.d) != (pass == 1)) continue;
          FURLONG_UNROLL
          for (int half = 0; half < 2; ++half) {
            float* to = inputs() + (own + g + 8 * half) * at.ld_inputs + (c & ~31) + fused_place(c & 31);
            to[0] += gradients[n8][2 * half], to[1] += gradients[n8][2 * half + 1];
          }
        }
        __syncwarp();
      }
    }
  }
};

/// Grid: (segments, feature tiles / tiles per block, batch · n_heads). `has_start`: `states` holds the state at the
/// start of each segment. Keys: rows are keys, and the gradients of their vectors go to d_vectors.
template <bool Exact, bool Projected, bool Keys>
__global__ void __launch_bounds__(fused_threads, Exact ? 2 : 1)
    fused_gradients(FusedProblem p, FusedSide rows, FusedSide columns, FusedStates states, bool has_start,
                    GradientsLayout<Exact, Projected, Keys> layout, FusedGradient d_inputs, FusedGradient d_vectors) {
  FURLONG_DYNAMIC_SHARED(unsigned char, memory);
  FusedGradientsBlock<Exact, Projected, Keys>(p, rows, columns, d_inputs, d_vectors, layout, memory)
      .run(states, has_start);
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
