#pragma once
// The general kernels of linear attention on GPUs: work around the walks over segments. Prepares constants, finds
// documents, sums up the states of segments, and adds partial sums of heads and segments in a fixed order.
#include "framework/cuda/kernels/cos_sin.h"
#include "framework/ops/attention/linear/cuda/general_rows.cuh"

namespace furlong::ops {
namespace FURLONG_GPU {

/// norms [count] = |ω_f|². One warp per row of the random projection.
template <class T>
__global__ void __launch_bounds__(256)
    linear_attention_norms_kernel(const T* random_projection, std::int64_t count, int d, T* norms) {
  const std::int64_t warps = grid_stride() / 32;
  for (std::int64_t f = global_thread() / 32; f < count; f += warps) {
    const T square = row_dot(random_projection + f * d, random_projection + f * d, d);
    if (lane_index() == 0) norms[f] = square;
  }
}

/// Cosines and sines [1 + powers, 2, half] of the angles p · base^(-2f/m) for p = first_position and 1, 2, 4, ...
template <class T>  // a template, so that each file compiles its own kernel
__global__ void __launch_bounds__(256)
    linear_attention_rotations_kernel(double log_base, int m, std::int64_t first_position, std::int64_t powers,
                                      T* table) {
  const int half = m / 2;
  for (std::int64_t at = global_thread(); at < (1 + powers) * half; at += grid_stride()) {
    const std::int64_t row = at / half, f = at % half;
    const double frequency = gpu_exp(-2 * static_cast<double>(f) / static_cast<double>(m) * log_base);
    const double position = static_cast<double>(row == 0 ? first_position : std::int64_t{1} << (row - 1));
    furlong::cos_sin(frequency * position, table[row * 2 * half + f], table[row * 2 * half + half + f]);
  }
}

/// first and end [batch, n]: start and end of the run of equal numbers that each token belongs to. One block per
/// sequence, one thread per part of it.
template <class Integer>
__global__ void __launch_bounds__(256)
    linear_attention_documents_kernel(const std::int32_t* documents, std::int64_t n, Integer* first, Integer* end) {
  FURLONG_SHARED(std::int32_t, latest, [256]);    // the last border in each thread's part, or -1
  FURLONG_SHARED(std::int32_t, earliest, [256]);  // the first border, or n
  const std::int32_t* ids = documents + blockIdx.x * n;
  first += blockIdx.x * n;
  end += blockIdx.x * n;
  const std::int64_t length = ceil_div(n, std::int64_t{blockDim.x}), begin = block_thread() * length,
                     stop = gpu_min(begin + length, n);
  std::int32_t last_border = -1, first_border = static_cast<std::int32_t>(n);
  for (std::int64_t i = begin; i < stop; ++i) {  // a border: the start of a document
    if (i > 0 && ids[i] == ids[i - 1]) continue;
    last_border = static_cast<std::int32_t>(i);
    if (first_border == n) first_border = last_border;
  }
  latest[block_thread()] = last_border;
  earliest[block_thread()] = first_border;
  __syncthreads();
  std::int32_t open = 0, close = static_cast<std::int32_t>(n);
  for (int thread = block_thread() - 1; thread >= 0; --thread) {
    if (latest[thread] < 0) continue;
    open = latest[thread];
    break;
  }
  for (int thread = block_thread() + 1; thread < static_cast<int>(blockDim.x); ++thread) {
    if (earliest[thread] == n) continue;
    close = earliest[thread];
    break;
  }
  for (std::int64_t i = begin; i < stop; ++i) {
    if (i == 0 || ids[i] != ids[i - 1]) open = static_cast<std::int32_t>(i);
    first[i] = open;
  }
  for (std::int64_t i = stop - 1; i >= begin; --i) {
    end[i] = close;
    if (i == 0 || ids[i] != ids[i - 1]) close = static_cast<std::int32_t>(i);
  }
}

/// How sums of segments become states.
enum class GeneralScan : std::uint8_t {
  after,   ///< slot k: the sum before segment k, scanned from the first segment on
  before,  ///< slot k: the sum after segment k, scanned from the last segment on
  total    ///< the slot after the others: the total
};

/// Scans element `at` of one head's slots in order, each under the running maximum so far. Column d_value stands for z,
/// c and M.
template <class T>
__device__ inline void scan_element(const GeneralArguments<T>& a, GeneralScan scan, std::int64_t head,
                                    std::int64_t at) {
  const GeneralSizes& s = a.sizes;
  const std::int64_t count = a.slots_a_head - (scan == GeneralScan::total ? 1 : 0);
  const std::int64_t f = at / (s.d_value + 1), c = at % (s.d_value + 1);
  const bool is_column = c < s.d_value, has_magnitude = at == s.d_value;
  T value = 0, lost = 0, maximum = GeneralHead<T>::nothing, magnitude = 0;
  if (scan == GeneralScan::after && a.start_sum) {
    maximum = a.start_maximum[head * s.m + f];
    value = is_column ? a.start_sum[(head * s.m + f) * s.d_value + c] : a.start_normalizer[head * s.m + f];
    magnitude = a.start_magnitude[head];
  }
  const auto put = [&](const GeneralSlot<T>& slot) {
    (is_column ? slot.sum[f * s.d_value + c] : slot.normalizer[f]) = value;
    if (!is_column) slot.maximum[f] = maximum;
    if (has_magnitude) slot.scalars[1] = magnitude;
  };
  for (std::int64_t k = 0; k < count; ++k) {
    const GeneralSlot<T> slot =
        GeneralSlot<T>::at(a.slots, head * a.slots_a_head + (scan == GeneralScan::before ? count - 1 - k : k), s);
    if (k > 0 || scan == GeneralScan::total) {  // otherwise the slot has no own sums
      const T own = slot.own_maximum[f], mine = is_column ? slot.sum[f * s.d_value + c] : slot.normalizer[f];
      if (slot.scalars[2] != T(0)) {  // the sum so far is of another document
        value = mine;
        maximum = own;
        magnitude = slot.scalars[0];
      } else {
        const T after = gpu_max(maximum, own), factor = exponential(maximum - after),
                own_factor = exponential(own - after);
        const T before = value * factor, add = mine * own_factor - (s.compensated ? lost * factor : T(0));
        value = before + add;
        lost = (value - before) - add;
        maximum = after;
        magnitude = magnitude * factor + slot.scalars[0] * own_factor;
      }
    }
    if (scan != GeneralScan::total) put(slot);
  }
  if (scan == GeneralScan::total) put(GeneralSlot<T>::at(a.slots, head * a.slots_a_head + count, s));
}

/// Scans all heads; one thread per element.
template <class T>
__global__ void __launch_bounds__(256, 1) linear_attention_scan_kernel(const GeneralArguments<T> a, GeneralScan scan) {
  const std::int64_t elements = static_cast<std::int64_t>(a.sizes.m) * (a.sizes.d_value + 1),
                     heads = a.batch * a.n_heads;
  for (std::int64_t head = blockIdx.y; head < heads; head += gridDim.y) {
    for (std::int64_t at = global_thread(); at < elements; at += grid_stride()) scan_element(a, scan, head, at);
  }
}

/// denominators [heads, 2] from the reports of segments [heads, segments, 2].
template <class T>
__global__ void __launch_bounds__(256)
    linear_attention_report_kernel(const T* reports, std::int64_t heads, std::int64_t segments, T* denominators) {
  for (std::int64_t head = global_thread(); head < heads; head += grid_stride()) {
    T lost = 0, least = 1;
    for (std::int64_t k = 0; k < segments; ++k) {
      lost += reports[2 * (head * segments + k)];
      least = gpu_min(least, reports[2 * (head * segments + k) + 1]);
    }
    denominators[2 * head] = lost;
    denominators[2 * head + 1] = least;
  }
}

/// d_gate [heads] from those of sweeps and segments [sweeps, heads, segments].
template <class T>
__global__ void __launch_bounds__(256)
    linear_attention_d_gate_kernel(const double* parts, std::int64_t sweeps, std::int64_t heads, std::int64_t segments,
                                   T* d_gate) {
  for (std::int64_t head = global_thread(); head < heads; head += grid_stride()) {
    double sum = 0;
    for (std::int64_t sweep = 0; sweep < sweeps; ++sweep) {
      for (std::int64_t k = 0; k < segments; ++k) sum += parts[(sweep * heads + head) * segments + k];
    }
    d_gate[head] = static_cast<T>(sum);
  }
}

/// target [batch, n, n_kv_heads, width] = sums over each group of query heads of parts [batch, n, n_heads, width], in
/// order of the heads.
template <class T>
__global__ void __launch_bounds__(256)
    linear_attention_group_kernel(const T* parts, GeneralRows target, std::int64_t rows, std::int64_t n, int n_kv_heads,
                                  int group, int width) {
  const std::int64_t row_elements = static_cast<std::int64_t>(n_kv_heads) * width;
  for (std::int64_t at = global_thread(); at < rows * row_elements; at += grid_stride()) {
    const std::int64_t row = at / row_elements, head = at % row_elements / width, c = at % width;
    const T* part = parts + (row * n_kv_heads + head) * group * width + c;
    T sum = 0;
    for (int member = 0; member < group; ++member) sum += part[static_cast<std::int64_t>(member) * width];
    write_element<T>(target, row / n * target.batch + row % n * target.row + head * target.head + c, sum);
  }
}

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
