#include "framework/cuda/kernels/exp2_fast.h"
// After kernel.h, which must precede fmt.
#include "framework/cuda/kernels/row_integers.cuh"
#include "framework/cuda/kernels/rows_cuda.cuh"
#include "framework/ops/loss/cross_entropy_rows.h"

namespace furlong::ops {
namespace FURLONG_GPU {

inline constexpr unsigned single_block = 1024;  // threads of kernels that run as one block over all rows

/// counts = {targets that are not -1, 0}, and the factor of the losses.
template <class T>
__global__ void __launch_bounds__(single_block)
    count_targets_kernel(RowIntegers targets, std::int64_t rows, double normalizer, const double* given,
                         std::int32_t* counts, T* inverse_normalizer) {
  std::int32_t valid = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += blockDim.x) valid += targets[row] != -1 ? 1 : 0;
  valid = block_sum(valid);
  if (threadIdx.x > 0) return;
  counts[0] = valid;
  counts[1] = 0;
  const double requested = given ? given[0] : normalizer,
               divisor = requested > 0 ? requested : static_cast<double>(valid);
  inverse_normalizer[0] = static_cast<T>(divisor > 0 ? 1 / divisor : 0);
}

void count_targets(const Stream& stream, const Tensor& targets, double normalizer, const Tensor& given,
                   const Tensor& counts, const Tensor& inverse_normalizer) {
  const std::int64_t rows = targets.elements();
  const unsigned threads = 32 * power_of_two_up_to(ceil_div<std::int64_t>(rows, 32), single_block / 32);
  const auto launched = [&]<class T>(std::type_identity<T>) {
    launch(stream, count_targets_kernel<T>, 1, threads, 0, RowIntegers(targets), rows, normalizer,
           gpu_data<double>(given), gpu_data<std::int32_t>(counts), gpu_data<T>(inverse_normalizer));
  };
  inverse_normalizer.dtype() == DType::float64 ? launched(std::type_identity<double>{})
                                               : launched(std::type_identity<float>{});
}

/// exp(x) for x <= 0: one instruction besides a product for float.
__device__ inline float exp_of_difference(float x) { return exp2_fast(x * log2_of_e); }
__device__ inline double exp_of_difference(double x) { return gpu_exp(x); }

/// The largest logit so far, Σ exp(logit - largest), and whether a logit prevents the target from being the prediction:
/// a larger one, or an equal one before it.
template <class C>
struct OnlineSoftmax {
  C maximum, sum;
  int beaten;

  /// exp(x - maximum), where x may be the maximum itself, infinite, or the initial value.
  __device__ static C relative(C x, C maximum) { return x == maximum ? C(1) : exp_of_difference(x - maximum); }

  template <int N>
  __device__ void take(const C (&x)[N]) {
    C larger = maximum;
    FURLONG_UNROLL
    for (int i = 0; i < N; ++i) larger = gpu_max(larger, x[i]);
    sum *= relative(maximum, larger);
    FURLONG_UNROLL
    // -infinity adds nothing, even before any other value; a NaN propagates into the sum.
    for (int i = 0; i < N; ++i) sum += x[i] == gpu_lowest<C>() ? C(0) : exp_of_difference(x[i] - larger);
    maximum = larger;
  }
  __device__ void merge(C other_maximum, C other_sum, int other_beaten) {
    const C larger = gpu_max(maximum, other_maximum);
    sum = sum * relative(maximum, larger) + other_sum * relative(other_maximum, larger);
    maximum = larger;
    beaten |= other_beaten;
  }
  /// Merges the values of the whole block, in every thread, in a fixed order. All threads must call it.
  __device__ void merge_block() {
    FURLONG_SHARED(C, maxima, [32]);
    FURLONG_SHARED(C, sums, [32]);
    FURLONG_SHARED(int, beatens, [32]);
    FURLONG_UNROLL
    for (int step = 16; step > 0; step /= 2) {
      merge(__shfl_xor_sync(full_warp, maximum, step), __shfl_xor_sync(full_warp, sum, step),
            __shfl_xor_sync(full_warp, beaten, step));
    }
    if (lane_index() == 0) {
      maxima[warp_index()] = maximum;
      sums[warp_index()] = sum;
      beatens[warp_index()] = beaten;
    }
    __syncthreads();
    *this = {maxima[0], sums[0], beatens[0]};
    for (int warp = 1; warp < warps_in_block(); ++warp) merge(maxima[warp], sums[warp], beatens[warp]);
  }
};

template <class C, class G>
struct CrossEntropyPointers {
  const C* logits;
  std::int64_t first_row, vocabulary;
  std::int64_t stride, d_stride;  // row strides of logits and d_logits
  const C* inverse_normalizer;
  C* row_losses;
  std::int32_t* correct;  // or null
  G* d_logits;            // or null; may be the logits
  bool vectors;           // rows of both start at multiples of 16 bytes
};

inline constexpr int logits_at_a_time = 4;  // neighbors, so that one access reads them

/// Reads logits [first, first + 4) of a row; `filler` past its end.
template <class C, class G>
__device__ inline void read_logits(const CrossEntropyPointers<C, G>& work, const C* logits, std::int64_t first,
                                   C filler, C (&x)[logits_at_a_time]) {
  if constexpr (logits_at_a_time * sizeof(C) <= 16) {
    if (work.vectors && first + logits_at_a_time <= work.vocabulary) {
      const auto four = load_vector<logits_at_a_time>(logits + first);
      FURLONG_UNROLL
      for (int k = 0; k < logits_at_a_time; ++k) x[k] = four[k];
      return;
    }
  }
  FURLONG_UNROLL
  for (int k = 0; k < logits_at_a_time; ++k) x[k] = first + k < work.vocabulary ? logits[first + k] : filler;
}
template <class C, class G>
__device__ inline void write_gradients(const CrossEntropyPointers<C, G>& work, G* d_logits, std::int64_t first,
                                       const C (&gradients)[logits_at_a_time]) {
  Vector<G, logits_at_a_time> four;
  FURLONG_UNROLL
  for (int k = 0; k < logits_at_a_time; ++k) four[k] = from_compute<G>(gradients[k]);
  if constexpr (logits_at_a_time * sizeof(G) <= 16) {
    if (work.vectors && first + logits_at_a_time <= work.vocabulary) return store_vector(d_logits + first, four);
  }
  FURLONG_UNROLL
  for (int k = 0; k < logits_at_a_time; ++k) {
    if (first + k < work.vocabulary) d_logits[first + k] = four[k];
  }
}

/// One block per row: one pass for maximum and sum, and one for the gradients, which reads the row from the cache. A
/// thread writes gradients where it read logits, and the target's logit is read before the barrier, so both may be one
/// tensor.
template <class C, class G>
__global__ void __launch_bounds__(1024)
    cross_entropy_rows_kernel(CrossEntropyPointers<C, G> work, RowIntegers targets) {
  const std::int64_t row = work.first_row + blockIdx.x, vocabulary = work.vocabulary, target = targets[row];
  const C* logits = work.logits + blockIdx.x * work.stride;
  G* d_logits = work.d_logits != nullptr ? work.d_logits + blockIdx.x * work.d_stride : nullptr;
  if (target < 0 || target >= vocabulary) {
    // The row is ignored; or the target is invalid, which must show as NaN.
    const C nothing = target == -1 ? C(0) : std::numeric_limits<C>::quiet_NaN();
    if (threadIdx.x == 0) work.row_losses[row] = nothing;
    if (threadIdx.x == 0 && work.correct != nullptr) work.correct[row] = 0;
    for (std::int64_t i = threadIdx.x; d_logits != nullptr && i < vocabulary; i += blockDim.x)
      d_logits[i] = from_compute<G>(nothing);
    return;
  }

  const C target_logit = logits[target];
  OnlineSoftmax<C> softmax{gpu_lowest<C>(), 0, 0};
  const std::int64_t begin = std::int64_t{threadIdx.x} * logits_at_a_time,
                     step = std::int64_t{blockDim.x} * logits_at_a_time;
  for (std::int64_t first = begin; first < vocabulary; first += step) {
    C x[logits_at_a_time];
    read_logits(work, logits, first, gpu_lowest<C>(), x);
    FURLONG_UNROLL
    for (int k = 0; k < logits_at_a_time; ++k)
      softmax.beaten |= x[k] > target_logit || (x[k] == target_logit && first + k < target) ? 1 : 0;
    softmax.take(x);
  }
  softmax.merge_block();
  if (threadIdx.x == 0) {
    work.row_losses[row] = gpu_log(softmax.sum) + (softmax.maximum - target_logit);
    if (work.correct != nullptr) work.correct[row] = softmax.beaten == 0 && target_logit == softmax.maximum ? 1 : 0;
  }
  if (d_logits == nullptr) return;

  const C inverse_normalizer = work.inverse_normalizer[0], factor = inverse_normalizer / softmax.sum;
  for (std::int64_t first = begin; first < vocabulary; first += step) {
    C x[logits_at_a_time], gradients[logits_at_a_time];
    read_logits(work, logits, first, C(0), x);
    FURLONG_UNROLL
    for (int k = 0; k < logits_at_a_time; ++k) {
      const C term = exp_of_difference(x[k] - softmax.maximum);
      gradients[k] = first + k == target ? (term - softmax.sum) / softmax.sum * inverse_normalizer : term * factor;
    }
    write_gradients(work, d_logits, first, gradients);
  }
}

template <class C, class G>
void launch_rows(const Stream& stream, const CrossEntropyRows& rows) {
  const std::int64_t count = rows.logits.extent(0), vocabulary = rows.logits.extent(1);
  if (count == 0) return;
  const unsigned threads = 32 * power_of_two_up_to(ceil_div<std::int64_t>(vocabulary, 2 * logits_at_a_time * 32), 32);
  const std::int64_t stride = rows.logits.strides()[0],
                     d_stride = rows.d_logits.defined() ? rows.d_logits.strides()[0] : 0;
  const bool vectors = is_aligned(gpu_data<C>(rows.logits), 16) && is_aligned(gpu_data<G>(rows.d_logits), 16) &&
                       stride % 8 == 0 && d_stride % 8 == 0;
  const CrossEntropyPointers<C, G> work{gpu_data<C>(rows.logits),
                                        rows.first_row,
                                        vocabulary,
                                        stride,
                                        d_stride,
                                        gpu_data<C>(rows.inverse_normalizer),
                                        gpu_data<C>(rows.row_losses),
                                        gpu_data<std::int32_t>(rows.correct),
                                        gpu_data<G>(rows.d_logits),
                                        vectors};
  launch(stream, cross_entropy_rows_kernel<C, G>, grid_blocks(count, 1), threads, 0, work, RowIntegers(rows.targets));
}

void cross_entropy_rows(const Stream& stream, const CrossEntropyRows& rows) {
  if (rows.logits.dtype() == DType::float64) {
    launch_rows<double, double>(stream, rows);
  } else if (rows.d_logits.defined() && rows.d_logits.dtype() == DType::bfloat16) {
    launch_rows<float, __nv_bfloat16>(stream, rows);
  } else {
    launch_rows<float, float>(stream, rows);
  }
}

/// Sums in double, but not in the CPU's order: threads take rows in turn. One addition per row is cheap.
template <class T>
__global__ void __launch_bounds__(single_block)
    sum_rows_kernel(const T* row_losses, const std::int32_t* correct, std::int64_t rows, const T* inverse_normalizer,
                    T* loss, std::int32_t* counts) {
  double sum = 0;
  std::int32_t hits = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    sum += static_cast<double>(row_losses[row]);
    if (correct != nullptr) hits += correct[row];
  }
  sum = block_sum(sum);
  hits = block_sum(hits);
  if (threadIdx.x > 0) return;
  loss[0] = static_cast<T>(sum * static_cast<double>(inverse_normalizer[0]));
  if (correct != nullptr) counts[1] = hits;
}

void sum_rows(const Stream& stream, const Tensor& row_losses, const Tensor& correct, const Tensor& inverse_normalizer,
              const Tensor& loss, const Tensor& counts) {
  const std::int64_t rows = row_losses.elements();
  const unsigned threads = 32 * power_of_two_up_to(ceil_div<std::int64_t>(rows, 32), single_block / 32);
  const auto launched = [&]<class T>(std::type_identity<T>) {
    launch(stream, sum_rows_kernel<T>, 1, threads, 0, gpu_data<T>(row_losses), gpu_data<std::int32_t>(correct), rows,
           gpu_data<T>(inverse_normalizer), gpu_data<T>(loss), gpu_data<std::int32_t>(counts));
  };
  loss.dtype() == DType::float64 ? launched(std::type_identity<double>{}) : launched(std::type_identity<float>{});
}

/// values *= *scalar. A scalar of 1, the usual case, costs a launch and no memory traffic.
template <class T, class S>
__global__ void __launch_bounds__(256) scale_kernel(T* values, std::int64_t n, const S* scalar) {
  using Compute = gpu_compute_t<T>;
  const auto scale = static_cast<Compute>(*scalar);
  if (scale == Compute(1)) return;
  for (std::int64_t i = global_thread(); i < n; i += grid_stride())
    values[i] = from_compute<T>(to_compute(values[i]) * scale);
}

void scale_by_scalar(const Stream& stream, const Tensor& tensor, const Tensor& scalar) {
  if (tensor.elements() == 0) return;
  require(tensor.is_contiguous(), "cross_entropy: a gradient of shape {} is not contiguous", tensor.shape().text());
  const unsigned blocks = grid_blocks(tensor.elements(), 256, 4096);
  with_gpu_float_type(tensor.dtype(), "cross_entropy", [&]<class T>(std::type_identity<T>) {
    if (scalar.dtype() == DType::float64) {
      launch(stream, scale_kernel<T, double>, blocks, 256, 0, gpu_data<T>(tensor), tensor.elements(),
             gpu_data<double>(scalar));
    } else {
      launch(stream, scale_kernel<T, float>, blocks, 256, 0, gpu_data<T>(tensor), tensor.elements(),
             gpu_data<float>(scalar));
    }
  });
}

const GpuKernelRegistration count_targets_registration{count_targets_gpu, &count_targets};
const GpuKernelRegistration cross_entropy_rows_registration{cross_entropy_rows_gpu, &cross_entropy_rows};
const GpuKernelRegistration sum_rows_registration{sum_rows_gpu, &sum_rows};
const GpuKernelRegistration scale_by_scalar_registration{scale_by_scalar_gpu, &scale_by_scalar};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
