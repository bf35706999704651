// Values get a column of ones, so that numerators and denominators are one product each: with φ the features and v' =
// [v, 1],
//   [N_i, D_i] = Σ_j φ(q_i)·φ(k_j) v'_j      output_i = N_i / D_i
// and in backward g'_i = [g_i, -g_i·output_i] / D_i is the gradient of the left side. Causal sums are split into
// chunks: pairs inside a chunk are multiplied out, keys of earlier chunks and (in backward) queries of later ones come
// as sums over m × (d_value + 1).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/attention/compat/compat_attention_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/core/parallel.h"
#include "framework/ops/attention/compat/compat_attention_features-inl.h"
#include "framework/primitives/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

template <class T>
struct CompatTile {
  static constexpr std::int64_t chunk = CompatAttentionSizes::chunk;
  T *q, *k, *d_x, *scaled, *v, *out, *g, *d_v, *phi_q, *phi_k, *slope, *d_phi, *u, *pairs, *d_pairs, *state,
      *state_transposed, *transposed;

  CompatTile(const CompatAttentionSizes& sizes, T* memory) {
    const auto take = [&memory](std::int64_t elements) {
      T* const at = memory;
      memory += (elements + 15) / 16 * 16;
      return at;
    };
    for (T** rows : {&q, &k, &d_x, &scaled}) *rows = take(chunk * sizes.ld_d);
    for (T** rows : {&v, &out, &g, &d_v}) *rows = take(chunk * sizes.ld_v);
    for (T** rows : {&phi_q, &phi_k, &slope, &d_phi}) *rows = take(chunk * sizes.ld_m);
    u = take(chunk * sizes.ld_u);
    pairs = take(chunk * chunk);
    d_pairs = take(chunk * chunk);
    state = take(sizes.ld_m * sizes.ld_v);
    state_transposed = take(sizes.ld_m * sizes.ld_v);
    transposed = take(chunk * std::max(sizes.ld_m, sizes.ld_v));
  }
};

/// Storage type X, compute type T = compute_t<X>.
template <class X>
class CompatAttentionBody {
  using T = compute_t<X>;
  using Tile = CompatTile<T>;
  static constexpr std::int64_t chunk = CompatAttentionSizes::chunk;

 public:
  explicit CompatAttentionBody(const CompatAttentionArguments& arguments)
      : arguments_(arguments), shape_(arguments.shape), sizes_(arguments.sizes), features_(prepare_features()) {}

  void forward() {
    parallel_tasks(shape_.batch * shape_.n_kv_heads, [&](std::int64_t task) {
      Tile tile(sizes_, thread_memory());
      const std::int64_t b = task / shape_.n_kv_heads, kv_head = task % shape_.n_kv_heads;
      const CompatMaximum<T> key_maximum = maximum_of(tile, arguments_.key, b, kv_head, true);
      for (std::int64_t member = 0; member < shape_.heads_per_kv(); ++member)
        forward_head(tile, b, kv_head, kv_head * shape_.heads_per_kv() + member, key_maximum);
    });
  }

  void backward(const CompatAttentionGradients& gradients) {
    parallel_tasks(shape_.batch * shape_.n_kv_heads, [&](std::int64_t task) {
      Tile tile(sizes_, thread_memory());
      T* const d_key = thread_memory() + sizes_.tile_elements();
      T* const d_value = d_key + shape_.n_key * sizes_.ld_d;
      std::fill_n(d_key, sizes_.sums_elements(shape_.n_key), T{0});
      const std::int64_t b = task / shape_.n_kv_heads, kv_head = task % shape_.n_kv_heads;
      const CompatMaximum<T> key_maximum = maximum_of(tile, arguments_.key, b, kv_head, true);
      for (std::int64_t member = 0; member < shape_.heads_per_kv(); ++member) {
        const Head head{b, kv_head, kv_head * shape_.heads_per_kv() + member, key_maximum};
        sweep_queries(tile, gradients, head);
        sweep_keys(tile, gradients, head, d_key, d_value);
      }
      write(gradients.d_key, b, kv_head, 0, shape_.n_key, sizes_.d, d_key, sizes_.ld_d);
      write(gradients.d_value, b, kv_head, 0, shape_.n_key, shape_.d_value, d_value, sizes_.ld_v);
    });
  }

 private:
  struct Head {
    std::int64_t b, kv_head, head;
    CompatMaximum<T> key_maximum;
  };

  CompatFeatures<T> prepare_features() const {
    if (!arguments_.directions.defined()) return CompatFeatures<T>(arguments_.definition, sizes_, nullptr, nullptr);
    const T* directions = arguments_.directions.data<T>();
    T* padded = arguments_.shared.template data<T>();
    T* transposed = padded + sizes_.n_directions * sizes_.ld_d;
    for (std::int64_t f = 0; f < sizes_.n_directions; ++f)
      std::copy_n(directions + f * sizes_.d, sizes_.d, padded + f * sizes_.ld_d);
    transpose<T>(sizes_.n_directions, sizes_.d, directions, sizes_.d, transposed, sizes_.ld_u);
    return CompatFeatures<T>(arguments_.definition, sizes_, padded, transposed);
  }
  T* thread_memory() const {
    return arguments_.scratch.template data<T>() + thread_index() * arguments_.scratch.extent(1);
  }

  static void read(const Tensor& tensor, std::int64_t b, std::int64_t head, std::int64_t start, std::int64_t rows,
                   T* tile, std::int64_t ld) {
    const HeadRows<X> source = head_rows<X>(tensor, b, head);
    for (std::int64_t i = 0; i < rows; ++i) {
      const X* line = source.data + (start + i) * source.stride;
      for_lanes<X>(tensor.extent(3), [&](std::int64_t j, std::int64_t n)
                                         HWY_ATTR { store_n<T>(load_n(line + j, n), tile + i * ld + j, n); });
    }
  }
  static void write_rows(const Tensor& tensor, bool accumulate, std::int64_t b, std::int64_t head, std::int64_t start,
                         std::int64_t rows, std::int64_t width, const T* tile, std::int64_t ld) {
    const HeadRows<X> target = head_rows<X>(tensor, b, head);
    for (std::int64_t i = 0; i < rows; ++i) {
      X* line = target.data + (start + i) * target.stride;
      for_lanes<X>(width, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
        const auto value = load_n(tile + i * ld + j, n);
        store_n<X>(accumulate ? hn::Add(value, load_n(line + j, n)) : value, line + j, n);
      });
    }
  }
  static void write(const GradientTarget& target, std::int64_t b, std::int64_t head, std::int64_t start,
                    std::int64_t rows, std::int64_t width, const T* tile, std::int64_t ld) {
    if (target.wanted()) write_rows(target.tensor, target.accumulates(), b, head, start, rows, width, tile, ld);
  }
  static void add_rows(T* target, const T* source, std::int64_t rows, std::int64_t width, std::int64_t ld) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for_lanes<T>(width, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
        store_n(hn::Add(load_n(target + i * ld + j, n), load_n(source + i * ld + j, n)), target + i * ld + j, n);
      });
    }
  }

  const std::int32_t* mask_of(std::int64_t b) const {
    return arguments_.key_mask.defined() ? arguments_.key_mask.data<std::int32_t>() + b * shape_.n_key : nullptr;
  }
  T* inverse_denominators(std::int64_t b, std::int64_t head) const {
    const Tensor& tensor = arguments_.inverse_denominator;
    return tensor.defined() ? tensor.data<T>() + (b * shape_.n_heads + head) * shape_.n_query : nullptr;
  }

  CompatMaximum<T> maximum_of(Tile& tile, const Tensor& tensor, std::int64_t b, std::int64_t head, bool is_key) const {
    CompatMaximum<T> maximum;
    if (!features_.needs_maximum(is_key)) return maximum;
    for (std::int64_t start = 0; start < tensor.extent(1); start += chunk) {
      const std::int64_t rows = std::min(chunk, tensor.extent(1) - start);
      read(tensor, b, head, start, rows, tile.k, sizes_.ld_d);
      features_.find_maximum(tile.k, start, rows, tile.u, tile.scaled, maximum);
    }
    return maximum;
  }

  void load_queries(Tile& tile, std::int64_t b, std::int64_t head, const CompatMaximum<T>& maximum, std::int64_t start,
                    std::int64_t rows, T* slope) const {
    read(arguments_.query, b, head, start, rows, tile.q, sizes_.ld_d);
    features_(tile.q, rows, false, maximum, tile.u, tile.scaled, tile.phi_q, slope);
  }
  /// φ(k) and v' = [v, 1] of a chunk, masked as the library does it.
  void load_keys(Tile& tile, std::int64_t b, std::int64_t kv_head, const CompatMaximum<T>& maximum, std::int64_t start,
                 std::int64_t rows, T* slope) const {
    read(arguments_.key, b, kv_head, start, rows, tile.k, sizes_.ld_d);
    read(arguments_.value, b, kv_head, start, rows, tile.v, sizes_.ld_v);
    features_(tile.k, rows, true, maximum, tile.u, tile.scaled, tile.phi_k, slope);
    const std::int32_t* mask = mask_of(b);
    for (std::int64_t i = 0; i < rows; ++i) {
      tile.v[i * sizes_.ld_v + shape_.d_value] = T{1};
      if (!mask || mask[start + i] != 0) continue;
      if (!arguments_.definition.mask_features) {
        std::fill_n(tile.v + i * sizes_.ld_v, shape_.d_value, T{0});
        continue;
      }
      std::fill_n(tile.phi_k + i * sizes_.ld_m, sizes_.m, T{0});
      if (slope) std::fill_n(slope + i * sizes_.ld_m, sizes_.m, T{0});
    }
  }

  void clear_state(Tile& tile, bool with_epsilon) const {
    std::fill_n(tile.state, sizes_.ld_m * sizes_.ld_v, T{0});
    std::fill_n(tile.state_transposed, sizes_.ld_m * sizes_.ld_v, T{0});
    if (!with_epsilon) return;
    const T epsilon = static_cast<T>(arguments_.definition.sum_epsilon);
    for (std::int64_t f = 0; f < sizes_.m; ++f) tile.state[f * sizes_.ld_v + shape_.d_value] = epsilon;
    std::fill_n(tile.state_transposed + shape_.d_value * sizes_.ld_m, sizes_.m, epsilon);
  }
  /// state [m, d_value + 1] += featuresᵀ rows
  void advance(Tile& tile, const T* features, const T* columns, std::int64_t rows) const {
    small_gemm_tn<T>(sizes_.m, sizes_.columns, rows, features, sizes_.ld_m, columns, sizes_.ld_v, tile.state,
                     sizes_.ld_v, true);
  }
  void advance_transposed(Tile& tile, const T* features, const T* columns, std::int64_t rows) const {
    small_gemm_tn<T>(sizes_.columns, sizes_.m, rows, columns, sizes_.ld_v, features, sizes_.ld_m, tile.state_transposed,
                     sizes_.ld_m, true);
  }
  /// target [rows, rows] = a bᵀ where column <= row, zero elsewhere.
  void lower_products(Tile& tile, const T* a, const T* b, std::int64_t ld, std::int64_t depth, std::int64_t rows,
                      T* target) const {
    small_gemm_nt<T>(rows, rows, depth, a, ld, b, ld, target, chunk, false, tile.transposed);
    for (std::int64_t i = 0; i < rows; ++i) std::fill(target + i * chunk + i + 1, target + i * chunk + rows, T{0});
  }

  template <class Body>
  static void for_chunks(std::int64_t n, const Body& body) {
    for (std::int64_t start = 0; start < n; start += chunk) body(start, std::min(chunk, n - start));
  }

  void forward_head(Tile& tile, std::int64_t b, std::int64_t kv_head, std::int64_t head,
                    const CompatMaximum<T>& key_maximum) const {
    const CompatMaximum<T> query_maximum = maximum_of(tile, arguments_.query, b, head, false);
    const bool causal = arguments_.causal;
    clear_state(tile, true);
    if (!causal) {
      for_chunks(shape_.n_key, [&](std::int64_t start, std::int64_t rows) {
        load_keys(tile, b, kv_head, key_maximum, start, rows, nullptr);
        advance(tile, tile.phi_k, tile.v, rows);
      });
    }
    for_chunks(shape_.n_query, [&](std::int64_t start, std::int64_t rows) {
      load_queries(tile, b, head, query_maximum, start, rows, nullptr);
      small_gemm_nn<T>(rows, sizes_.columns, sizes_.m, tile.phi_q, sizes_.ld_m, tile.state, sizes_.ld_v, tile.out,
                       sizes_.ld_v, false);
      if (causal) {
        load_keys(tile, b, kv_head, key_maximum, start, rows, nullptr);
        lower_products(tile, tile.phi_q, tile.phi_k, sizes_.ld_m, sizes_.m, rows, tile.pairs);
        small_gemm_nn<T>(rows, sizes_.columns, rows, tile.pairs, chunk, tile.v, sizes_.ld_v, tile.out, sizes_.ld_v,
                         true);
        advance(tile, tile.phi_k, tile.v, rows);
      }
      divide(tile, b, head, start, rows);
      write_rows(arguments_.output, false, b, head, start, rows, shape_.d_value, tile.out, sizes_.ld_v);
    });
  }

  void divide(Tile& tile, std::int64_t b, std::int64_t head, std::int64_t start, std::int64_t rows) const {
    T* const kept = inverse_denominators(b, head);
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = tile.out + i * sizes_.ld_v;
      const T inverse = T{1} / (row[shape_.d_value] + static_cast<T>(arguments_.definition.denominator_epsilon));
      if (kept) kept[start + i] = inverse;
      for (std::int64_t j = 0; j < shape_.d_value; ++j) row[j] *= inverse;
    }
  }

  /// g' of a chunk of queries.
  void load_gradients(Tile& tile, const CompatAttentionGradients& gradients, std::int64_t b, std::int64_t head,
                      std::int64_t start, std::int64_t rows) const {
    read(gradients.d_output, b, head, start, rows, tile.g, sizes_.ld_v);
    read(arguments_.output, b, head, start, rows, tile.out, sizes_.ld_v);
    const T* inverse = inverse_denominators(b, head) + start;
    for (std::int64_t i = 0; i < rows; ++i) {
      T* g = tile.g + i * sizes_.ld_v;
      const T* out = tile.out + i * sizes_.ld_v;
      T sum = 0;
      for (std::int64_t j = 0; j < shape_.d_value; ++j) {
        g[j] *= inverse[i];
        sum += g[j] * out[j];
      }
      g[shape_.d_value] = -sum;
    }
  }

  /// Forward in time: d_query_i from the keys that it saw.
  void sweep_queries(Tile& tile, const CompatAttentionGradients& gradients, const Head& at) const {
    if (!gradients.d_query.wanted()) return;
    const CompatMaximum<T> query_maximum = maximum_of(tile, arguments_.query, at.b, at.head, false);
    const bool causal = arguments_.causal;
    T d_maximum = 0;
    clear_state(tile, true);
    if (!causal) {
      for_chunks(shape_.n_key, [&](std::int64_t start, std::int64_t rows) {
        load_keys(tile, at.b, at.kv_head, at.key_maximum, start, rows, nullptr);
        advance_transposed(tile, tile.phi_k, tile.v, rows);
      });
    }
    for_chunks(shape_.n_query, [&](std::int64_t start, std::int64_t rows) {
      load_queries(tile, at.b, at.head, query_maximum, start, rows, tile.slope);
      load_gradients(tile, gradients, at.b, at.head, start, rows);
      small_gemm_nn<T>(rows, sizes_.m, sizes_.columns, tile.g, sizes_.ld_v, tile.state_transposed, sizes_.ld_m,
                       tile.d_phi, sizes_.ld_m, false);
      if (causal) {
        load_keys(tile, at.b, at.kv_head, at.key_maximum, start, rows, nullptr);
        lower_products(tile, tile.g, tile.v, sizes_.ld_v, sizes_.columns, rows, tile.d_pairs);
        small_gemm_nn<T>(rows, sizes_.m, rows, tile.d_pairs, chunk, tile.phi_k, sizes_.ld_m, tile.d_phi, sizes_.ld_m,
                         true);
        advance_transposed(tile, tile.phi_k, tile.v, rows);
      }
      d_maximum += features_.backward(tile.q, rows, tile.d_phi, tile.slope, tile.d_x);
      write(gradients.d_query, at.b, at.head, start, rows, sizes_.d, tile.d_x, sizes_.ld_d);
    });
    if (d_maximum == T{0}) return;
    read(arguments_.query, at.b, at.head, query_maximum.row, 1, tile.q, sizes_.ld_d);
    for (std::int64_t j = 0; j < sizes_.d; ++j) tile.d_x[j] = features_.maximum_slope() * d_maximum * tile.q[j];
    write_rows(gradients.d_query.tensor, true, at.b, at.head, query_maximum.row, 1, sizes_.d, tile.d_x, sizes_.ld_d);
  }

  /// Backward in time: d_key_j and d_value_j from the queries that saw them, added to [n_key, ld] sums.
  void sweep_keys(Tile& tile, const CompatAttentionGradients& gradients, const Head& at, T* d_key, T* d_value) const {
    if (!gradients.d_key.wanted() && !gradients.d_value.wanted()) return;
    const CompatMaximum<T> query_maximum = maximum_of(tile, arguments_.query, at.b, at.head, false);
    const bool causal = arguments_.causal;
    T d_maximum = 0;
    clear_state(tile, false);
    if (!causal) {
      for_chunks(shape_.n_query, [&](std::int64_t start, std::int64_t rows) {
        load_queries(tile, at.b, at.head, query_maximum, start, rows, nullptr);
        load_gradients(tile, gradients, at.b, at.head, start, rows);
        advance(tile, tile.phi_q, tile.g, rows);
        advance_transposed(tile, tile.phi_q, tile.g, rows);
      });
    }
    for (std::int64_t start = (shape_.n_key - 1) / chunk * chunk; start >= 0; start -= chunk) {
      const std::int64_t rows = std::min(chunk, shape_.n_key - start);
      load_keys(tile, at.b, at.kv_head, at.key_maximum, start, rows, tile.slope);
      small_gemm_nn<T>(rows, sizes_.m, sizes_.columns, tile.v, sizes_.ld_v, tile.state_transposed, sizes_.ld_m,
                       tile.d_phi, sizes_.ld_m, false);
      small_gemm_nn<T>(rows, sizes_.columns, sizes_.m, tile.phi_k, sizes_.ld_m, tile.state, sizes_.ld_v, tile.d_v,
                       sizes_.ld_v, false);
      if (causal) pairs_to_keys(tile, gradients, at, query_maximum, start, rows);
      d_maximum += features_.backward(tile.k, rows, tile.d_phi, tile.slope, tile.d_x);
      clear_masked(tile, at.b, start, rows);
      add_rows(d_key + start * sizes_.ld_d, tile.d_x, rows, sizes_.d, sizes_.ld_d);
      add_rows(d_value + start * sizes_.ld_v, tile.d_v, rows, shape_.d_value, sizes_.ld_v);
    }
    if (d_maximum == T{0}) return;
    read(arguments_.key, at.b, at.kv_head, at.key_maximum.row, 1, tile.k, sizes_.ld_d);
    T* row = d_key + at.key_maximum.row * sizes_.ld_d;
    for (std::int64_t j = 0; j < sizes_.d; ++j) row[j] += features_.maximum_slope() * d_maximum * tile.k[j];
  }

  /// Pairs inside a chunk, and then its queries into the sums for earlier keys.
  void pairs_to_keys(Tile& tile, const CompatAttentionGradients& gradients, const Head& at,
                     const CompatMaximum<T>& query_maximum, std::int64_t start, std::int64_t rows) const {
    load_queries(tile, at.b, at.head, query_maximum, start, rows, nullptr);
    load_gradients(tile, gradients, at.b, at.head, start, rows);
    lower_products(tile, tile.g, tile.v, sizes_.ld_v, sizes_.columns, rows, tile.d_pairs);
    lower_products(tile, tile.phi_q, tile.phi_k, sizes_.ld_m, sizes_.m, rows, tile.pairs);
    small_gemm_tn<T>(rows, sizes_.m, rows, tile.d_pairs, chunk, tile.phi_q, sizes_.ld_m, tile.d_phi, sizes_.ld_m, true);
    small_gemm_tn<T>(rows, sizes_.columns, rows, tile.pairs, chunk, tile.g, sizes_.ld_v, tile.d_v, sizes_.ld_v, true);
    advance(tile, tile.phi_q, tile.g, rows);
    advance_transposed(tile, tile.phi_q, tile.g, rows);
  }

  /// A masked value was replaced by zero: nothing flows back to it. (Masked features have slope zero already.)
  void clear_masked(Tile& tile, std::int64_t b, std::int64_t start, std::int64_t rows) const {
    const std::int32_t* mask = mask_of(b);
    if (!mask || arguments_.definition.mask_features) return;
    for (std::int64_t i = 0; i < rows; ++i) {
      if (mask[start + i] == 0) std::fill_n(tile.d_v + i * sizes_.ld_v, shape_.d_value, T{0});
    }
  }

  const CompatAttentionArguments& arguments_;
  const AttentionShape& shape_;
  const CompatAttentionSizes& sizes_;
  CompatFeatures<T> features_;
};

void CompatAttentionForward(const CompatAttentionArguments& arguments) {
  with_float_type(arguments.query.dtype(), "compat_attention",
                  [&]<class X>(std::type_identity<X>) { CompatAttentionBody<X>(arguments).forward(); });
}
void CompatAttentionBackward(const CompatAttentionArguments& arguments, const CompatAttentionGradients& gradients) {
  with_float_type(arguments.query.dtype(), "compat_attention",
                  [&]<class X>(std::type_identity<X>) { CompatAttentionBody<X>(arguments).backward(gradients); });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(CompatAttentionForward);
HWY_EXPORT(CompatAttentionBackward);
void compat_attention_forward_cpu(const CompatAttentionArguments& arguments) {
  HWY_DYNAMIC_DISPATCH(CompatAttentionForward)(arguments);
}
void compat_attention_backward_cpu(const CompatAttentionArguments& arguments,
                                   const CompatAttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(CompatAttentionBackward)(arguments, gradients);
}
}  // namespace furlong::ops
#endif
