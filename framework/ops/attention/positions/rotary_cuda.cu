#include "framework/cuda/kernels/lane_value.h"
#include "framework/cuda/kernels/spans.h"
#include "framework/ops/attention/positions/rotary_kernels.h"

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

/// Returns the coefficient of r^n in the series of sine or cosine.
constexpr double series_coefficient(int n) {
  double factorial = 1;
  for (int i = 2; i <= n; ++i) factorial *= i;
  return n / 2 % 2 == 0 ? 1 / factorial : -1 / factorial;
}

/// Computes sine and cosine of a double below 2^45, within 2 units of the last place of 1: subtracts the nearest
/// multiple of pi/2, whose product with either part of pi/2 is exact inside the fused operation, then evaluates the
/// series. (CUDA's own functions use a table in local memory for huge angles.)
__device__ inline void sine_and_cosine(double angle, double& sine, double& cosine) {
  const double quarters = rint(angle * 0.63661977236758134308);
  double r = gpu_fma(-quarters, 0x1.921fb54442d18p0, angle);
  r = gpu_fma(-quarters, 0x1.1a62633145c07p-54, r);
  const double square = r * r;
  double odd = series_coefficient(19), even = series_coefficient(18);  // |r| <= pi/4: the remainder is below 2^-60
  FURLONG_UNROLL
  for (int n = 17; n >= 3; n -= 2) odd = gpu_fma(odd, square, series_coefficient(n));
  FURLONG_UNROLL
  for (int n = 16; n >= 0; n -= 2) even = gpu_fma(even, square, series_coefficient(n));
  odd = gpu_fma(odd * square, r, r);
  const int quadrant = static_cast<int>(static_cast<std::int64_t>(quarters) & 3);
  sine = quadrant % 2 == 0 ? odd : even;
  cosine = quadrant % 2 == 0 ? even : odd;
  if (quadrant >= 2) sine = -sine;
  if (quadrant == 1 || quadrant == 2) cosine = -cosine;
}

/// Fills table [rows, 2, half], one thread per pair of a cosine and a sine. Row p has the angles of positions[p], or of
/// first + p if positions is null.
template <class T>
__global__ void __launch_bounds__(span_threads)
    rotary_rows_kernel(T* table, const double* frequencies, const std::int32_t* positions, std::int64_t first,
                       std::int64_t rows, std::int64_t half) {
  const std::int64_t index = global_thread();
  if (index >= rows * half) return;
  const std::int64_t row = quotient(index, half), i = index - row * half,
                     position = positions ? positions[row] : first + row;
  double sine, cosine;
  sine_and_cosine(rounded_product(static_cast<double>(position), frequencies[i]), sine, cosine);
  table[2 * row * half + i] = static_cast<T>(cosine);
  table[(2 * row + 1) * half + i] = static_cast<T>(sine);
}

/// One thread per chunk of the first half of each head: `layout` describes x [..., n_heads, half] and the second halves
/// of the heads.
template <class T>
__global__ void __launch_bounds__(span_threads)
    rotary_kernel(T* x, const gpu_compute_t<T>* table, const std::int32_t* rows, std::int64_t table_rows,
                  std::int64_t n_heads, bool inverse, bool table_vectors, SpanLayout<2> layout) {
  constexpr int width = chunk_width<T>;
  using Compute = gpu_compute_t<T>;
  const std::int64_t index = global_thread(), half = layout.columns;
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  const std::int64_t token = quotient(chunk.row, n_heads);
  const std::int64_t row = rows ? rows[token] : token - quotient(token, table_rows) * table_rows;
  const Compute* angles = table + 2 * row * half + chunk.column;
  const bool vectors = table_vectors && chunk.size == width;
  T* first = x + chunk.offsets[0];
  T* second = x + chunk.offsets[1] + half;
  Compute a[width], b[width], cosine[width], sine[width];
  read_chunk<width>(first, chunk.size, chunk.vectors, a);
  read_chunk<width>(second, chunk.size, chunk.vectors, b);
  read_chunk<width>(angles, chunk.size, vectors, cosine);
  read_chunk<width>(angles + half, chunk.size, vectors, sine);
  FURLONG_UNROLL
  for (int i = 0; i < width; ++i) {
    const Compute s = inverse ? -sine[i] : sine[i], before = a[i];
    a[i] = gpu_fma(-b[i], s, rounded_product(before, cosine[i]));
    b[i] = gpu_fma(before, s, rounded_product(b[i], cosine[i]));
  }
  write_chunk<width>(first, chunk.size, chunk.vectors, a);
  write_chunk<width>(second, chunk.size, chunk.vectors, b);
}

void make_rows(const Stream& stream, const Tensor& table, const Tensor& frequencies, const Tensor& positions,
               std::int64_t first) {
  const std::int64_t rows = table.extent(0), half = table.extent(2);
  if (rows == 0) return;
  const auto make = [&]<class T>(std::type_identity<T>) {
    launch(stream, rotary_rows_kernel<T>, grid_blocks(rows * half, span_threads), span_threads, 0, gpu_data<T>(table),
           gpu_data<double>(frequencies), gpu_data<std::int32_t>(positions), first, rows, half);
  };
  table.dtype() == DType::float64 ? make(std::type_identity<double>{}) : make(std::type_identity<float>{});
}

}  // namespace

void rotary(const Stream& stream, const Tensor& x, const Tensor& table, const Tensor& rows, std::int64_t n_heads,
            bool inverse) {
  const std::int64_t half = table.extent(2);
  const Tensor heads = x.narrow(x.shape().rank() - 1, 0, n_heads * 2 * half).split_last(2 * half);
  const int last = heads.shape().rank() - 1;
  const Tensor first = heads.narrow(last, 0, half), second = heads.narrow(last, half, half);
  with_gpu_float_type(x.dtype(), "rotary", [&]<class T>(std::type_identity<T>) {
    constexpr int width = chunk_width<T>;
    // `second` is passed for its alignment; the kernel computes its address from the first half.
    launch_spans(stream, rotary_kernel<T>, span_layout<width>(std::array{first, second}, true), gpu_data<T>(x),
                 gpu_data<gpu_compute_t<T>>(table), gpu_data<std::int32_t>(rows), table.extent(0), n_heads, inverse,
                 is_aligned(table.address(), 16) && half % width == 0);
  });
}

void rotary_table(const Stream& stream, const Tensor& table, const Tensor& frequencies, std::int64_t first_position) {
  make_rows(stream, table, frequencies, {}, first_position);
}

void rotary_rows(const Stream& stream, const Tensor& table, const Tensor& frequencies, const Tensor& positions) {
  make_rows(stream, table, frequencies, positions, 0);
}

const GpuKernelRegistration rotary_registration{rotary_gpu, &rotary};
const GpuKernelRegistration rotary_table_registration{rotary_table_gpu, &rotary_table};
const GpuKernelRegistration rotary_rows_registration{rotary_rows_gpu, &rotary_rows};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
