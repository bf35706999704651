#include "framework/cuda/kernels/lane_value.h"
#include "framework/cuda/kernels/random_words.h"
#include "framework/cuda/kernels/spans.h"
#include "framework/ops/optimizer/optimizer_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

constexpr int width = 4;
constexpr std::int64_t blocks_per_multiprocessor = 4;  // all of them run at once

struct AdamWTensors {
  void *values, *first_moment, *second_moment;
  const void* d_values;
  __nv_bfloat16* compute_values;  // or null
  std::int64_t n;
  bool vectors;
};

struct AdamWSettings {
  double learning_rate, beta1, beta2, epsilon, weight_decay, step, gradient_scale;
  const double* scalars;  // if not null, overrides learning_rate, step and gradient_scale, and says whether to skip
  bool draws;
  RandomKey rounding;
  std::uint64_t first_element;
};

/// The constants of a step, computed in double from its settings and used for every element.
template <class T>
struct AdamWConstants {
  T gradient_scale, beta1, rest1, beta2, rest2, epsilon, kept, step_size, root_factor;
  std::uint32_t step;
  bool skipped;
};

template <class T>
__device__ void make_constants(const AdamWSettings& settings, AdamWConstants<T>& constants) {
  const double* scalars = settings.scalars;
  const double learning_rate = scalars ? scalars[scalar_learning_rate] : settings.learning_rate;
  const double step = scalars ? scalars[scalar_step] : settings.step;
  const double gradient_scale = scalars ? scalars[scalar_gradient_scale] : settings.gradient_scale;
  const double correction1 = 1 - gpu_pow(settings.beta1, step), correction2 = 1 - gpu_pow(settings.beta2, step);
  constants.gradient_scale = static_cast<T>(gradient_scale);
  constants.beta1 = static_cast<T>(settings.beta1);
  constants.rest1 = static_cast<T>(1 - settings.beta1);
  constants.beta2 = static_cast<T>(settings.beta2);
  constants.rest2 = static_cast<T>(1 - settings.beta2);
  constants.epsilon = static_cast<T>(settings.epsilon);
  constants.kept = static_cast<T>(rounded_sum(1, -rounded_product(learning_rate, settings.weight_decay)));
  constants.step_size = static_cast<T>(learning_rate / correction1);
  constants.root_factor = static_cast<T>(1 / gpu_sqrt(correction2));
  constants.step = static_cast<std::uint32_t>(static_cast<std::int64_t>(step));
  constants.skipped = scalars && scalars[scalar_skipped] != 0;
}

/// copies[i] = values[i] as bfloat16, rounded with the words of elements index, index + 1, ...
__device__ inline void write_rounded(const float (&values)[width], __nv_bfloat16* copies, int size, bool vectors,
                                     const RandomKey& key, std::uint64_t index) {
  std::uint32_t words[width];
  random_words(key, index, words);
  Vector<__nv_bfloat16, width> rounded;
  FURLONG_UNROLL
  for (int i = 0; i < width; ++i) rounded[i] = __ushort_as_bfloat16(stochastic_bfloat16(values[i], words[i]));
  if (vectors) return store_vector(copies, rounded);
  FURLONG_UNROLL
  for (int i = 0; i < width; ++i) {
    if (i < size) copies[i] = rounded[i];
  }
}

template <class T>
__global__ void __launch_bounds__(span_threads) adamw_kernel(AdamWTensors tensors, AdamWSettings settings) {
  using L = LaneValue<T>;
  FURLONG_SHARED(AdamWConstants<T>, constants);
  if (threadIdx.x == 0) make_constants(settings, constants);
  __syncthreads();
  if (constants.skipped) return;
  const L scale(constants.gradient_scale), beta1(constants.beta1), rest1(constants.rest1), beta2(constants.beta2),
      rest2(constants.rest2);
  const L epsilon(constants.epsilon), kept(constants.kept), step_size(constants.step_size),
      root_factor(constants.root_factor);
  const RandomKey key{settings.rounding.seed, constants.step, settings.rounding.stream};
  for (std::int64_t i = global_thread() * width; i < tensors.n; i += grid_stride() * width) {
    const int size = tensors.n - i < width ? static_cast<int>(tensors.n - i) : width;
    const bool vectors = tensors.vectors && size == width;
    T values[width], d_values[width], first_moment[width], second_moment[width];
    read_chunk<width>(static_cast<const T*>(tensors.values) + i, size, vectors, values);
    read_chunk<width>(static_cast<const T*>(tensors.d_values) + i, size, vectors, d_values);
    read_chunk<width>(static_cast<const T*>(tensors.first_moment) + i, size, vectors, first_moment);
    read_chunk<width>(static_cast<const T*>(tensors.second_moment) + i, size, vectors, second_moment);
    FURLONG_UNROLL
    for (int k = 0; k < width; ++k) {
      // Same order of operations as on the CPU: the same bits if its instruction set fuses multiply_add.
      const L g = L(d_values[k]) * scale;
      const L m = multiply_add(beta1, L(first_moment[k]), rest1 * g),
              v = multiply_add(beta2, L(second_moment[k]), rest2 * (g * g));
      const L change = step_size * (m / multiply_add(square_root(v), root_factor, epsilon));
      first_moment[k] = m.v;
      second_moment[k] = v.v;
      values[k] = multiply_subtract(L(values[k]), kept, change).v;
    }
    write_chunk<width>(static_cast<T*>(tensors.first_moment) + i, size, vectors, first_moment);
    write_chunk<width>(static_cast<T*>(tensors.second_moment) + i, size, vectors, second_moment);
    write_chunk<width>(static_cast<T*>(tensors.values) + i, size, vectors, values);
    if constexpr (sizeof(T) == 4) {
      if (tensors.compute_values == nullptr) continue;
      if (settings.draws) {
        write_rounded(values, tensors.compute_values + i, size, vectors, key,
                      settings.first_element + static_cast<std::uint64_t>(i));
      } else {
        write_chunk<width>(tensors.compute_values + i, size, vectors, values);
      }
    }
  }
}

__global__ void __launch_bounds__(span_threads)
    round_stochastically_kernel(const float* values, __nv_bfloat16* copies, std::int64_t n, bool aligned, RandomKey key,
                                std::uint64_t first_element) {
  const std::int64_t i = global_thread() * width;
  if (i >= n) return;
  const int size = n - i < width ? static_cast<int>(n - i) : width;
  const bool vectors = aligned && size == width;
  float chunk[width];
  read_chunk<width>(values + i, size, vectors, chunk);
  write_rounded(chunk, copies + i, size, vectors, key, first_element + static_cast<std::uint64_t>(i));
}

template <class T>
__global__ void __launch_bounds__(span_threads)
    ema_kernel(T* average, const T* values, double decay, const double* scalars, SpanLayout<2> layout) {
  const std::int64_t index = global_thread();
  if (index >= layout.chunks || (scalars && scalars[scalar_skipped] != 0)) return;
  const auto chunk = span_chunk<width>(layout, index);
  const T kept = static_cast<T>(decay), taken = static_cast<T>(1 - decay);
  T before[width], now[width];
  read_chunk<width>(average + chunk.offsets[0], chunk.size, chunk.vectors, before);
  read_chunk<width>(values + chunk.offsets[1], chunk.size, chunk.vectors, now);
  FURLONG_UNROLL
  for (int i = 0; i < width; ++i) before[i] = gpu_fma(kept, before[i], rounded_product(taken, now[i]));
  write_chunk<width>(average + chunk.offsets[0], chunk.size, chunk.vectors, before);
}

}  // namespace

void adamw_step(const Stream& stream, const Tensor& values, const Tensor& d_values, const Tensor& first_moment,
                const Tensor& second_moment, const AdamWStep& settings, const Tensor& scalars,
                const Tensor& compute_values) {
  const std::int64_t n = values.elements();
  if (n == 0) return;
  const bool vectors = is_aligned(values.address(), 16) && is_aligned(d_values.address(), 16) &&
                       is_aligned(first_moment.address(), 16) && is_aligned(second_moment.address(), 16) &&
                       is_aligned(compute_values.address(), 8);
  const AdamWTensors tensors{values.address(),
                             first_moment.address(),
                             second_moment.address(),
                             d_values.address(),
                             gpu_data<__nv_bfloat16>(compute_values),
                             n,
                             vectors};
  const StochasticRounding rounding = settings.stochastic_rounding.value_or(StochasticRounding{});
  const AdamWSettings given{settings.learning_rate,
                            settings.beta1,
                            settings.beta2,
                            settings.epsilon,
                            settings.weight_decay,
                            static_cast<double>(settings.step),
                            settings.gradient_scale,
                            gpu_data<double>(scalars),
                            settings.stochastic_rounding.has_value(),
                            RandomKey{rounding.seed, 0, rounding.stream},
                            rounding.first_element};
  // Few blocks that loop, because each block computes the constants itself.
  const unsigned blocks =
      grid_blocks(n, std::int64_t{span_threads} * width, gpu_multiprocessors(stream) * blocks_per_multiprocessor);
  if (values.dtype() == DType::float64) {
    launch(stream, adamw_kernel<double>, blocks, span_threads, 0, tensors, given);
  } else {
    launch(stream, adamw_kernel<float>, blocks, span_threads, 0, tensors, given);
  }
}

void round_stochastically(const Stream& stream, const Tensor& compute_values, const Tensor& values,
                          const StochasticRounding& rounding, std::int64_t step) {
  const std::int64_t n = values.elements();
  if (n == 0) return;
  const bool aligned = is_aligned(values.address(), 16) && is_aligned(compute_values.address(), 8);
  launch(stream, round_stochastically_kernel, grid_blocks(ceil_div(n, width), span_threads), span_threads, 0,
         gpu_data<float>(values), gpu_data<__nv_bfloat16>(compute_values), n, aligned,
         RandomKey{rounding.seed, static_cast<std::uint32_t>(step), rounding.stream}, rounding.first_element);
}

void ema_update(const Stream& stream, const Tensor& average, const Tensor& values, double decay,
                const Tensor& scalars) {
  const auto layout = span_layout<width>(std::array{average, values});
  if (average.dtype() == DType::float64) {
    launch_spans(stream, ema_kernel<double>, layout, gpu_data<double>(average), gpu_data<double>(values), decay,
                 gpu_data<double>(scalars));
  } else {
    launch_spans(stream, ema_kernel<float>, layout, gpu_data<float>(average), gpu_data<float>(values), decay,
                 gpu_data<double>(scalars));
  }
}

const GpuKernelRegistration adamw_step_registration{adamw_step_gpu, &adamw_step};
const GpuKernelRegistration round_stochastically_registration{round_stochastically_gpu, &round_stochastically};
const GpuKernelRegistration ema_update_registration{ema_update_gpu, &ema_update};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
