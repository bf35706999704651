// The CPU kernels of linear attention, forward and backward: the walk over chunks, for both feature forms. Per-target
// include guard; see framework/simd/simd-inl.h.
//
// A chunk of queries meets keys in two ways: through the state, which holds the sums over all earlier keys, and pair by
// pair (near keys): the keys of its own chunk if causal, and the keys of a window. The windowed hybrid without
// causality makes two causal walks: one forward in time over the keys up to each query's own, and one backward in time
// over later keys. Their unnormalized rows are combined under one stabilizer.
#if defined(FURLONG_LINEAR_ATTENTION_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FURLONG_LINEAR_ATTENTION_KERNEL_INL_H_
#undef FURLONG_LINEAR_ATTENTION_KERNEL_INL_H_
#else
#define FURLONG_LINEAR_ATTENTION_KERNEL_INL_H_
#endif

#include <cmath>
#include <optional>
#include <vector>

#include "framework/core/parallel.h"
#include "framework/ops/attention/feature_maps/feature_map_cpu.h"
#include "framework/ops/attention/linear/cpu/head-inl.h"
#include "framework/primitives/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace furlong::ops::HWY_NAMESPACE {

/// T is float or double; TileOf is the tile of one of the two feature forms.
template <class T, template <class> class TileOf>
class LinearAttentionKernel {
  using Tile = TileOf<T>;
  using Head = LinearAttentionHead<T, Tile>;

 public:
  explicit LinearAttentionKernel(const LinearAttentionArguments& arguments)
      : arguments_(arguments), functions_(feature_map_functions_cpu<T>(arguments.options.feature_map)) {
    prepare_directions();
    if (arguments.rotation.defined()) {
      RotationPowers(arguments.rotation)
          .prepare(arguments.rotation.extent(0) - 1, arguments.features, arguments.options.rotary_base,
                   arguments.first_position);
    }
  }

  void forward() {
    const std::int64_t heads = arguments_.options.n_heads, tasks = arguments_.query.extent(0) * heads;
    const std::int64_t tile_size = arguments_.sizes.forward_tile_elements(), n_query = arguments_.query.extent(1);
    const std::int64_t size = arguments_.sizes.forward_elements(n_query);
    run_tasks(tasks, [&](std::int64_t task) {
      T* memory = arguments_.scratch.template data<T>() + thread_index() * size;
      Tile tile(arguments_.sizes, memory, tile_size, false);
      Head head(arguments_, functions_, tile, task / heads, task % heads);
      if (arguments_.gathered) return head.gather_keys();
      head.forward(arguments_.sizes.two_sweeps ? SweptRows<T>::of(memory + tile_size, n_query, arguments_.sizes.ld_v)
                                               : SweptRows<T>{});
      if (arguments_.denominators.defined()) {
        T* report = arguments_.denominators.template data<T>() + 2 * task;
        report[0] = static_cast<T>(tile.lost_rows);
        report[1] = tile.least_denominator;
      }
    });
  }

  void backward(const LinearAttentionGradients& gradients) {
    // One task per key-value head. Its query heads run one after another, so d_key and d_value are summed in a fixed
    // order.
    const auto& options = arguments_.options;
    const LinearAttentionSizes sizes = arguments_.sizes.for_backward();
    const std::int64_t kv_heads = options.n_kv_heads, group = options.n_heads / kv_heads;
    const std::int64_t n_query = arguments_.query.extent(1), n_key = arguments_.key.extent(1);
    const std::int64_t tile_size = sizes.backward_tile_elements(), size = sizes.backward_elements(n_query, n_key);
    if (arguments_.gathered) {
      run_tasks(arguments_.query.extent(0) * options.n_heads, [&](std::int64_t task) {
        Tile tile(sizes, arguments_.scratch.template data<T>() + thread_index() * size, tile_size, true);
        Head(arguments_, functions_, tile, task / options.n_heads, task % options.n_heads).gather_queries(gradients);
      });
      return;
    }
    run_tasks(arguments_.query.extent(0) * kv_heads, [&](std::int64_t task) {
      T* memory = arguments_.scratch.template data<T>() + thread_index() * size;
      Tile tile(sizes, memory, tile_size, true);
      HeadGradients<T> sums{memory + tile_size, nullptr, nullptr};
      if (sizes.sums_key_gradients) {
        sums.d_key = sums.d_query + n_query * sizes.ld_d;
        sums.d_value = sums.d_key + n_key * sizes.ld_d;
        std::fill(sums.d_key, sums.d_value + n_key * sizes.ld_v, T{0});
      }
      const std::int64_t b = task / kv_heads, kv_head = task % kv_heads;
      for (std::int64_t member = 0; member < group; ++member) {
        Head head(arguments_, functions_, tile, b, kv_head * group + member);
        head.backward(gradients, sums);
      }
      if (!sums.d_key) return;
      Head(arguments_, functions_, tile, b, kv_head * group)
          .write_key_gradients(gradients, 0, n_key, sums.d_key, sums.d_value);
    });
  }

 private:
  /// Calls parallel_tasks if there is enough work to wake other threads.
  template <class Task>
  void run_tasks(std::int64_t tasks, const Task& task) const {
    constexpr std::int64_t grain = 1 << 19;  // multiply-adds: a few microseconds
    const auto& sizes = arguments_.sizes;
    const auto run = [&](std::int64_t i) {
      std::optional<simd::KeptRegisters> registers;
      if (sizes.bfloat16) registers.emplace(*sizes.bfloat16);
      task(i);
    };
    const std::int64_t rows = arguments_.query.extent(0) * (arguments_.query.extent(1) + arguments_.key.extent(1));
    if (rows * arguments_.options.n_heads * sizes.m * (sizes.d + sizes.d_value) < grain) {
      for (std::int64_t i = 0; i < tasks; ++i) run(i);
    } else {
      parallel_tasks(tasks, run);
    }
  }

  /// Writes ωᵀ of each head (or of all heads), in the layout of the feature maps, and the squared norms.
  void prepare_directions() {
    const Tensor& random_projection = arguments_.constants.random_projection;
    if (!random_projection.defined()) return;
    const std::int64_t sets = random_projection.shape().rank() == 3 ? random_projection.extent(0) : 1,
                       n = arguments_.n_projections;
    const std::int64_t d = arguments_.sizes.d, ld = arguments_.directions_transposed.extent(-1);
    for (std::int64_t set = 0; set < sets; ++set) {
      const T* source = random_projection.data<T>() + set * n * d;
      T* target = arguments_.directions_transposed.template data<T>() + set * d * ld;
      std::fill_n(target, d * ld, T{0});
      transpose<T>(n, d, source, d, target, ld);
      for (std::int64_t f = 0; f < n; ++f)
        arguments_.direction_norms.template data<T>()[set * n + f] =
            Tile::product_of(source + f * d, source + f * d, d);
    }
  }

  const LinearAttentionArguments& arguments_;
  const FeatureMapFunctions<T> functions_;
};

template <template <class> class TileOf, class Run>
void with_linear_attention_kernel(const LinearAttentionArguments& arguments, const Run& run) {
  if (accumulate_dtype(arguments.query.dtype()) == DType::float64) {
    run(LinearAttentionKernel<double, TileOf>(arguments));
  } else {
    run(LinearAttentionKernel<float, TileOf>(arguments));
  }
}

}  // namespace furlong::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
