#include "framework/cuda/kernels/kernel.h"

#include "framework/cuda/kernels/lane_value.h"
#include "framework/cuda/kernels/row_integers.cuh"
#include "framework/cuda/kernels/rows_cuda.cuh"
#include "framework/ops/loss/distillation_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

/// exp(x · scale) for x = the change of a running maximum; 1 if the maximum did not change, whether it is infinite or
/// the initial value.
template <class C>
__device__ inline C rescaling(C before, C now, C scale) {
  return before == now ? C(1) : gpu_exp((before - now) * scale);
}

/// Returns x - maximum, where both may be -infinity.
template <class C>
__device__ inline C below(C x, C maximum) {
  return x == maximum && x == gpu_lowest<C>() ? C(0) : x - maximum;
}

/// Running sums over the logits of student and teacher: the largest logits, Σ exp((logit - largest) / T), and the sum
/// of the teacher's terms times (teacher's logit - its largest) - (student's logit - its largest). Products with sums
/// and factors are rounded: fused with an addition on one side only, they would give a student that equals its teacher
/// a loss and gradients other than zero.
template <class C>
struct OnlineDivergence {
  C student_maximum = gpu_lowest<C>(), teacher_maximum = gpu_lowest<C>();
  C student_sum = 0, teacher_sum = 0, difference = 0;

  /// Rescales the sums to larger maxima.
  __device__ void rescale(C student_larger, C teacher_larger, C inverse_temperature) {
    const C student_step = below(student_maximum, student_larger),
            teacher_step = below(teacher_maximum, teacher_larger);
    // With no terms so far, or only zero teacher probabilities, the difference stays zero however far the maxima move.
    if (teacher_sum != 0) difference += teacher_sum * (teacher_step - student_step);
    const C teacher_factor = rescaling(teacher_maximum, teacher_larger, inverse_temperature);
    if (teacher_sum != 0) difference = teacher_factor > 0 ? difference * teacher_factor : C(0);
    teacher_sum = rounded_product(teacher_sum, teacher_factor);
    student_sum = rounded_product(student_sum, rescaling(student_maximum, student_larger, inverse_temperature));
    student_maximum = student_larger;
    teacher_maximum = teacher_larger;
  }
  template <int N>
  __device__ void take(const C (&student)[N], const C (&teacher)[N], C inverse_temperature) {
    C student_larger = student_maximum, teacher_larger = teacher_maximum;
    FURLONG_UNROLL
    for (int k = 0; k < N; ++k) {
      student_larger = gpu_max(student_larger, student[k]);
      teacher_larger = gpu_max(teacher_larger, teacher[k]);
    }
    rescale(student_larger, teacher_larger, inverse_temperature);
    FURLONG_UNROLL
    for (int k = 0; k < N; ++k) {
      // -infinity adds nothing, even before any other value; a NaN propagates into the sums.
      if (student[k] != gpu_lowest<C>()) student_sum += gpu_exp((student[k] - student_maximum) * inverse_temperature);
      if (teacher[k] == gpu_lowest<C>()) continue;
      const C t = teacher[k] - teacher_maximum, term = gpu_exp(t * inverse_temperature);
      teacher_sum += term;
      if (term > 0) difference += term * (t - below(student[k], student_maximum));
    }
  }
  __device__ void merge(OnlineDivergence other, C inverse_temperature) {
    const C student_larger = gpu_max(student_maximum, other.student_maximum);
    const C teacher_larger = gpu_max(teacher_maximum, other.teacher_maximum);
    rescale(student_larger, teacher_larger, inverse_temperature);
    other.rescale(student_larger, teacher_larger, inverse_temperature);
    student_sum += other.student_sum;
    teacher_sum += other.teacher_sum;
    difference += other.difference;
  }
  /// Returns the values of the lane at a distance of `step`.
  __device__ OnlineDivergence from_lane(int step) const {
    OnlineDivergence other;
    other.student_maximum = __shfl_xor_sync(full_warp, student_maximum, step);
    other.teacher_maximum = __shfl_xor_sync(full_warp, teacher_maximum, step);
    other.student_sum = __shfl_xor_sync(full_warp, student_sum, step);
    other.teacher_sum = __shfl_xor_sync(full_warp, teacher_sum, step);
    other.difference = __shfl_xor_sync(full_warp, difference, step);
    return other;
  }
  /// Merges the values of the whole block, in every thread, in a fixed order. All threads must call it once.
  __device__ void merge_block(C inverse_temperature) {
    FURLONG_SHARED(C, sums, [16][5]);
    FURLONG_UNROLL
    for (int step = 16; step > 0; step /= 2) merge(from_lane(step), inverse_temperature);
    if (lane_index() == 0) {
      C(&mine)[5] = sums[warp_index()];
      mine[0] = student_maximum;
      mine[1] = teacher_maximum;
      mine[2] = student_sum;
      mine[3] = teacher_sum;
      mine[4] = difference;
    }
    __syncthreads();
    const auto from_warp = [&](int warp) {
      OnlineDivergence other;
      other.student_maximum = sums[warp][0];
      other.teacher_maximum = sums[warp][1];
      other.student_sum = sums[warp][2];
      other.teacher_sum = sums[warp][3];
      other.difference = sums[warp][4];
      return other;
    };
    *this = from_warp(0);
    for (int warp = 1; warp < warps_in_block(); ++warp) merge(from_warp(warp), inverse_temperature);
  }
};

template <class C, class G>
struct DistillationPointers {
  const C* student;
  const C* teacher;
  std::int64_t first_row, vocabulary;
  std::int64_t stride;  // row stride of all three
  C temperature;
  const C* inverse_normalizer;
  C* row_losses;
  G* d_logits;  // or null; may be the student's logits
};

inline constexpr int logits_at_a_time = 4;
inline constexpr unsigned max_threads = 512;

/// One block per row: one pass for maxima and sums, one for the gradients. A thread writes gradients where it read
/// logits.
template <class C, class G>
__global__ void __launch_bounds__(max_threads, std::is_same_v<C, float> ? 3 : 2)
    distillation_rows_kernel(DistillationPointers<C, G> work, RowIntegers targets) {
  const std::int64_t row = work.first_row + blockIdx.x, target = targets[row];
  const int vocabulary = static_cast<int>(work.vocabulary), threads = static_cast<int>(blockDim.x);
  const C *student = work.student + blockIdx.x * work.stride, *teacher = work.teacher + blockIdx.x * work.stride;
  G* d_logits = work.d_logits != nullptr ? work.d_logits + blockIdx.x * work.stride : nullptr;
  if (target < 0 || target >= vocabulary) {
    // The row is ignored; or the target is invalid, which must show as NaN.
    const C nothing = target == -1 ? C(0) : std::numeric_limits<C>::quiet_NaN();
    if (threadIdx.x == 0) work.row_losses[row] = nothing;
    for (int i = static_cast<int>(threadIdx.x); d_logits != nullptr && i < vocabulary; i += threads)
      d_logits[i] = from_compute<G>(nothing);
    return;
  }

  const C temperature = work.temperature, inverse_temperature = C(1) / temperature;
  OnlineDivergence<C> divergence;
  for (std::int64_t first = threadIdx.x; first < vocabulary; first += logits_at_a_time * threads) {
    C s[logits_at_a_time], t[logits_at_a_time];
    FURLONG_UNROLL
    for (int k = 0; k < logits_at_a_time; ++k) {
      const std::int64_t i = first + k * threads;
      s[k] = i < vocabulary ? student[i] : gpu_lowest<C>();
      t[k] = i < vocabulary ? teacher[i] : gpu_lowest<C>();
    }
    divergence.take(s, t, inverse_temperature);
  }
  divergence.merge_block(inverse_temperature);
  if (threadIdx.x == 0) {
    const C logarithms = gpu_log(divergence.student_sum) - gpu_log(divergence.teacher_sum);
    work.row_losses[row] = temperature * (divergence.difference / divergence.teacher_sum + temperature * logarithms);
  }
  if (d_logits == nullptr) return;

  const C factor = temperature * work.inverse_normalizer[0];
  const C student_factor = factor / divergence.student_sum, teacher_factor = factor / divergence.teacher_sum;
  for (std::int64_t first = threadIdx.x; first < vocabulary; first += logits_at_a_time * threads) {
    C s[logits_at_a_time], t[logits_at_a_time];
    FURLONG_UNROLL
    for (int k = 0; k < logits_at_a_time; ++k) {
      const std::int64_t i = first + k * threads;
      s[k] = i < vocabulary ? student[i] : C(0);
      t[k] = i < vocabulary ? teacher[i] : C(0);
    }
    FURLONG_UNROLL
    for (int k = 0; k < logits_at_a_time; ++k) {
      const std::int64_t i = first + k * threads;
      const C student_term = gpu_exp((s[k] - divergence.student_maximum) * inverse_temperature);
      const C teacher_term = gpu_exp((t[k] - divergence.teacher_maximum) * inverse_temperature);
      if (i >= vocabulary) continue;
      d_logits[i] = from_compute<G>(rounded_product(student_term, student_factor) -
                                    rounded_product(teacher_term, teacher_factor));
    }
  }
}

template <class C, class G>
void launch_rows(const Stream& stream, const DistillationRows& rows) {
  const std::int64_t count = rows.student.extent(0), vocabulary = rows.student.extent(1);
  if (count == 0) return;
  require(vocabulary <= std::numeric_limits<std::int32_t>::max() / 2,
          "distillation: a vocabulary of {} tokens exceeds the kernel's limit", vocabulary);
  const std::int64_t stride = rows.student.strides()[0];
  require(rows.teacher.strides()[0] == stride && (!rows.d_logits.defined() || rows.d_logits.strides()[0] == stride),
          "distillation: row strides {} and {} of the logits differ", stride, rows.teacher.strides()[0]);
  const unsigned threads =
      32 * power_of_two_up_to(ceil_div<std::int64_t>(vocabulary, 2 * logits_at_a_time * 32), max_threads / 32);
  const DistillationPointers<C, G> work{gpu_data<C>(rows.student),
                                        gpu_data<C>(rows.teacher),
                                        rows.first_row,
                                        vocabulary,
                                        stride,
                                        static_cast<C>(rows.temperature),
                                        gpu_data<C>(rows.inverse_normalizer),
                                        gpu_data<C>(rows.row_losses),
                                        gpu_data<G>(rows.d_logits)};
  launch(stream, distillation_rows_kernel<C, G>, grid_blocks(count, 1), threads, 0, work, RowIntegers(rows.targets));
}

}  // namespace

void distillation_rows(const Stream& stream, const DistillationRows& rows) {
  if (rows.student.dtype() == DType::float64) {
    launch_rows<double, double>(stream, rows);
  } else if (rows.d_logits.defined() && rows.d_logits.dtype() == DType::bfloat16) {
    launch_rows<float, __nv_bfloat16>(stream, rows);
  } else {
    launch_rows<float, float>(stream, rows);
  }
}

const GpuKernelRegistration distillation_rows_registration{distillation_rows_gpu, &distillation_rows};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
