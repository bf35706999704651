#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "framework/ops/linear_attention_cpu.cpp"
#include "framework/cpu/targets.h"

#include <hwy/foreach_target.h>

#include "framework/core/parallel.h"
#include "framework/cpu/small_gemm-inl.h"
#include "framework/ops/dispatch.h"
#include "framework/ops/feature_maps/elu1-inl.h"
#include "framework/ops/feature_maps/favor_positive-inl.h"
#include "framework/ops/linear_attention_arguments.h"
#include "framework/ops/linear_attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

/// Storage type X, compute type T = compute_t<X>, feature map Map<T>.
template <class X, template <class> class Map>
class LinearAttentionBody {
  using T = compute_t<X>;
  using Tile = LinearAttentionTile<T>;

 public:
  explicit LinearAttentionBody(const LinearAttentionArguments& arguments) : arguments_(arguments), sizes_(arguments.sizes) {
    const auto& options = arguments.options;
    batch_ = arguments.query.extent(0);
    n_query_ = arguments.query.extent(1);
    n_key_ = arguments.key.extent(1);
    group_ = options.n_heads / options.n_kv_heads;
    prepare_directions();
  }

  void forward() {
    const std::int64_t heads = arguments_.options.n_heads, tasks = batch_ * heads, size = sizes_.forward_elements();
    parallel_tasks(tasks, [&](std::int64_t task) {
      Tile tile(sizes_, arguments_.scratch.template data<T>() + thread_index() * size);
      forward_head(tile, task / heads, task % heads);
    });
  }

  void backward(const LinearAttentionGradients& gradients) {
    // One task for each key-value head: its query heads one after another, so that d_key and d_value are summed in a fixed order.
    const std::int64_t kv_heads = arguments_.options.n_kv_heads, tasks = batch_ * kv_heads;
    const std::int64_t shared = n_key_ * (sizes_.ld_d + sizes_.ld_v), size = sizes_.backward_elements(n_query_, n_key_);
    parallel_tasks(tasks, [&](std::int64_t task) {
      T* memory = arguments_.scratch.template data<T>() + thread_index() * size;
      Tile tile(sizes_, memory, true);
      T* d_query = memory + sizes_.backward_tile_elements();
      T* d_key = d_query + n_query_ * sizes_.ld_d;
      T* d_value = d_key + n_key_ * sizes_.ld_d;
      const std::int64_t b = task / kv_heads, kv_head = task % kv_heads;
      std::fill(d_key, d_key + shared, T{0});
      for (std::int64_t member = 0; member < group_; ++member) {
        const std::int64_t head = kv_head * group_ + member;
        sweep_queries(tile, gradients, b, head, d_query);
        sweep_keys(tile, gradients, b, head, d_query, d_key, d_value);
        if (gradients.d_query.wanted()) write(gradients.d_query, b, head, n_query_, sizes_.d, d_query, sizes_.ld_d);
      }
      if (gradients.d_key.wanted()) write(gradients.d_key, b, kv_head, n_key_, sizes_.d, d_key, sizes_.ld_d);
      if (gradients.d_value.wanted()) write(gradients.d_value, b, kv_head, n_key_, sizes_.d_value, d_value, sizes_.ld_v);
    });
  }

 private:
  /// ωᵀ of each head (or of all), laid out for the tile functions.
  void prepare_directions() {
    const Tensor& directions = arguments_.directions;
    if (!directions.defined()) return;
    const std::int64_t sets = directions.shape().rank() == 3 ? directions.extent(0) : 1;
    for (std::int64_t set = 0; set < sets; ++set) {
      transpose<T>(sizes_.m, sizes_.d, directions.data<T>() + set * sizes_.m * sizes_.d, sizes_.d,
                   arguments_.directions_transposed.template data<T>() + set * sizes_.d * sizes_.ld_m, sizes_.ld_m);
    }
  }

  FeatureTile<T> features_of(std::int64_t head) const {
    FeatureTile<T> tile;
    tile.d = sizes_.d;
    tile.m = sizes_.m;
    tile.ld_x = sizes_.ld_d;
    tile.ld_m = sizes_.ld_m;
    tile.scale = static_cast<T>(std::pow(static_cast<double>(sizes_.d), -0.25));
    if (arguments_.directions.defined()) {
      const std::int64_t set = arguments_.directions.shape().rank() == 3 ? head : 0;
      tile.directions = arguments_.directions.data<T>() + set * sizes_.m * sizes_.d;
      tile.directions_transposed = arguments_.directions_transposed.template data<T>() + set * sizes_.d * sizes_.ld_m;
    }
    return tile;
  }

  /// Rows [start, start + rows) of one head of a [batch, n, heads, width] view into a tile with rows `ld` apart.
  static void read(const Tensor& tensor, std::int64_t b, std::int64_t head, std::int64_t start, std::int64_t rows, T* tile,
                   std::int64_t ld) {
    const std::int64_t width = tensor.extent(3);
    const X* source = tensor.data<X>() + b * tensor.strides()[0] + start * tensor.strides()[1] + head * tensor.strides()[2];
    for (std::int64_t i = 0; i < rows; ++i) {
      for_lanes<X>(width, [&](std::int64_t j, std::int64_t n)
                              HWY_ATTR { store_n<T>(load_n(source + i * tensor.strides()[1] + j, n), tile + i * ld + j, n); });
    }
  }
  static void write_rows(const Tensor& tensor, bool accumulate, std::int64_t b, std::int64_t head, std::int64_t start, std::int64_t rows,
                         std::int64_t width, const T* tile, std::int64_t ld) {
    X* target = tensor.data<X>() + b * tensor.strides()[0] + start * tensor.strides()[1] + head * tensor.strides()[2];
    for (std::int64_t i = 0; i < rows; ++i) {
      X* line = target + i * tensor.strides()[1];
      for_lanes<X>(width, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
        auto value = load_n(tile + i * ld + j, n);
        if (accumulate) value = hn::Add(value, load_n(line + j, n));
        store_n<X>(value, line + j, n);
      });
    }
  }
  static void write(const GradientTarget& target, std::int64_t b, std::int64_t head, std::int64_t n, std::int64_t width, const T* values,
                    std::int64_t ld) {
    write_rows(target.tensor, target.accumulates(), b, head, 0, n, width, values, ld);
  }

  T* per_query(const Tensor& tensor, std::int64_t b, std::int64_t head) const {
    return tensor.defined() ? tensor.data<T>() + (b * arguments_.options.n_heads + head) * n_query_ : nullptr;
  }

  void load_keys(Tile& tile, const FeatureTile<T>& features, std::int64_t b, std::int64_t kv_head, std::int64_t start,
                 std::int64_t rows) const {
    read(arguments_.key, b, kv_head, start, rows, tile.k, sizes_.ld_d);
    read(arguments_.value, b, kv_head, start, rows, tile.v, sizes_.ld_v);
    Map<T>::log_features(features, tile.k, rows, true, tile.log_k);
  }
  void load_queries(Tile& tile, const FeatureTile<T>& features, std::int64_t b, std::int64_t head, std::int64_t start,
                    std::int64_t rows) const {
    read(arguments_.query, b, head, start, rows, tile.q, sizes_.ld_d);
    Map<T>::log_features(features, tile.q, rows, false, tile.log_q);
  }

  void forward_head(Tile& tile, std::int64_t b, std::int64_t head) const {
    const FeatureTile<T> features = features_of(head);
    const std::int64_t kv_head = head / group_, chunk = sizes_.chunk;
    T* top = per_query(arguments_.top, b, head);
    T* inverse = per_query(arguments_.inverse_denominator, b, head);
    load_state(tile, b, head);
    if (!arguments_.options.causal) {
      for (std::int64_t start = 0; start < n_key_; start += chunk) {
        const std::int64_t rows = std::min(chunk, n_key_ - start);
        load_keys(tile, features, b, kv_head, start, rows);
        tile.advance_state(rows);
      }
    }
    for (std::int64_t start = 0; start < n_query_; start += chunk) {
      const std::int64_t rows = std::min(chunk, n_query_ - start);
      load_queries(tile, features, b, head, start, rows);
      if (arguments_.options.causal) {
        load_keys(tile, features, b, kv_head, start, rows);
        tile.pair_products(rows);
        tile.attend(rows, true, top ? top + start : nullptr, inverse ? inverse + start : nullptr);
        tile.advance_state(rows);
      } else {
        tile.attend(rows, false, top ? top + start : nullptr, inverse ? inverse + start : nullptr);
      }
      write_rows(arguments_.output, false, b, head, start, rows, sizes_.d_value, tile.out, sizes_.ld_v);
    }
    store_state(tile, b, head);
  }

  void load_state(Tile& tile, std::int64_t b, std::int64_t head) const {
    tile.clear_state();
    if (!arguments_.state) return;
    const std::int64_t at = b * arguments_.options.n_heads + head, m = sizes_.m;
    tile.seen = true;  // an empty state's maximum of -1e30 makes it weigh nothing
    std::copy_n(arguments_.state->maximum.template data<T>() + at * m, m, tile.feature_max);
    std::copy_n(arguments_.state->normalizer.template data<T>() + at * m, m, tile.normalizer);
    const T* sum = arguments_.state->sum.template data<T>() + at * m * sizes_.d_value;
    for (std::int64_t f = 0; f < m; ++f)
      std::copy_n(sum + f * sizes_.d_value, sizes_.d_value, tile.state + f * sizes_.ld_v);  // the tile's rows are padded
  }
  void store_state(const Tile& tile, std::int64_t b, std::int64_t head) const {
    if (!arguments_.state) return;
    const std::int64_t at = b * arguments_.options.n_heads + head, m = sizes_.m;
    std::copy_n(tile.feature_max, m, arguments_.state->maximum.template data<T>() + at * m);
    std::copy_n(tile.normalizer, m, arguments_.state->normalizer.template data<T>() + at * m);
    T* sum = arguments_.state->sum.template data<T>() + at * m * sizes_.d_value;
    for (std::int64_t f = 0; f < m; ++f) std::copy_n(tile.state + f * sizes_.ld_v, sizes_.d_value, sum + f * sizes_.d_value);
  }

  /// g = d_output and δ = g · output of a chunk of queries, with their stabilisers.
  void load_gradients(Tile& tile, const LinearAttentionGradients& gradients, std::int64_t b, std::int64_t head, std::int64_t start,
                      std::int64_t rows) const {
    read(gradients.d_output, b, head, start, rows, tile.g, sizes_.ld_v);
    read(arguments_.output, b, head, start, rows, tile.out, sizes_.ld_v);
    tile.gradient_rows(rows, per_query(arguments_.top, b, head) + start, per_query(arguments_.inverse_denominator, b, head) + start);
  }

  /// First sweep, forward in time: the part of d_query that comes through the state.
  void sweep_queries(Tile& tile, const LinearAttentionGradients& gradients, std::int64_t b, std::int64_t head, T* d_query) const {
    const FeatureTile<T> features = features_of(head);
    const std::int64_t kv_head = head / group_, chunk = sizes_.chunk;
    const bool causal = arguments_.options.causal;
    tile.clear_state();
    if (!causal) {
      for (std::int64_t start = 0; start < n_key_; start += chunk) {
        const std::int64_t rows = std::min(chunk, n_key_ - start);
        load_keys(tile, features, b, kv_head, start, rows);
        tile.advance_transposed_state(rows);
      }
    }
    for (std::int64_t start = 0; start < n_query_; start += chunk) {
      const std::int64_t rows = std::min(chunk, n_query_ - start);
      T* target = d_query + start * sizes_.ld_d;
      if (tile.seen) {
        load_queries(tile, features, b, head, start, rows);
        load_gradients(tile, gradients, b, head, start, rows);
        tile.d_log_query_from_state(rows);
        Map<T>::backward(features, tile.q, rows, false, tile.d_log, target);
      } else {
        std::fill(target, target + rows * sizes_.ld_d, T{0});
      }
      if (causal && start + rows < n_query_) {
        load_keys(tile, features, b, kv_head, start, rows);
        tile.advance_transposed_state(rows);
      }
    }
  }

  /// Second sweep, backward in time: d_key and d_value from later queries through their gathered gradients, and all pairs inside a chunk.
  void sweep_keys(Tile& tile, const LinearAttentionGradients& gradients, std::int64_t b, std::int64_t head, T* d_query, T* d_key,
                  T* d_value) const {
    const FeatureTile<T> features = features_of(head);
    const std::int64_t kv_head = head / group_, chunk = sizes_.chunk;
    const bool causal = arguments_.options.causal;
    tile.clear_state();
    if (!causal) {
      for (std::int64_t start = 0; start < n_query_; start += chunk) {
        const std::int64_t rows = std::min(chunk, n_query_ - start);
        load_queries(tile, features, b, head, start, rows);
        load_gradients(tile, gradients, b, head, start, rows);
        tile.gather_queries(rows);
      }
    }
    const std::int64_t last = (n_key_ - 1) / chunk * chunk;
    for (std::int64_t start = last; start >= 0; start -= chunk) {
      const std::int64_t rows = std::min(chunk, n_key_ - start);
      load_keys(tile, features, b, kv_head, start, rows);
      tile.d_log_key_from_later(rows);
      if (causal) {
        load_queries(tile, features, b, head, start, rows);
        load_gradients(tile, gradients, b, head, start, rows);
        tile.pair_products(rows);
        tile.pair_gradients(rows);
        Map<T>::backward(features, tile.q, rows, false, tile.d_log_q, tile.d_x);
        add_rows(d_query + start * sizes_.ld_d, tile.d_x, rows, sizes_.d, sizes_.ld_d);
        tile.gather_queries(rows);
      }
      Map<T>::backward(features, tile.k, rows, true, tile.d_log, tile.d_x);
      add_rows(d_key + start * sizes_.ld_d, tile.d_x, rows, sizes_.d, sizes_.ld_d);
      add_rows(d_value + start * sizes_.ld_v, tile.d_v, rows, sizes_.d_value, sizes_.ld_v);
    }
  }

  static void add_rows(T* target, const T* source, std::int64_t rows, std::int64_t width, std::int64_t ld) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for_lanes<T>(width, [&](std::int64_t j, std::int64_t n) HWY_ATTR {
        store_n(hn::Add(load_n(target + i * ld + j, n), load_n(source + i * ld + j, n)), target + i * ld + j, n);
      });
    }
  }

  const LinearAttentionArguments& arguments_;
  const LinearAttentionSizes& sizes_;
  std::int64_t batch_ = 0, n_query_ = 0, n_key_ = 0, group_ = 1;
};

template <class Run>
void with_body(const LinearAttentionArguments& arguments, const Run& run) {
  with_float_type(arguments.query.dtype(), "linear_attention", [&]<class X>(std::type_identity<X>) {
    switch (arguments.options.feature_map) {
      case FeatureMap::elu1:
        return run(LinearAttentionBody<X, Elu1>(arguments));
      case FeatureMap::favor_positive:
        return run(LinearAttentionBody<X, FavorPositive>(arguments));
    }
  });
}

void LinearAttentionForward(const LinearAttentionArguments& arguments) {
  with_body(arguments, [](auto&& body) { body.forward(); });
}
void LinearAttentionBackward(const LinearAttentionArguments& arguments, const LinearAttentionGradients& gradients) {
  with_body(arguments, [&](auto&& body) { body.backward(gradients); });
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace furlong::ops {
HWY_EXPORT(LinearAttentionForward);
HWY_EXPORT(LinearAttentionBackward);
void linear_attention_forward_cpu(const LinearAttentionArguments& arguments) { HWY_DYNAMIC_DISPATCH(LinearAttentionForward)(arguments); }
void linear_attention_backward_cpu(const LinearAttentionArguments& arguments, const LinearAttentionGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(LinearAttentionBackward)(arguments, gradients);
}
}  // namespace furlong::ops
#endif
