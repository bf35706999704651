#include "framework/cuda/kernels/lane_value.h"
#include "framework/cuda/kernels/spans.h"
#include "framework/primitives/activation_kernels.h"

#define FURLONG_LANE_FUNCTION __device__ __forceinline__

namespace furlong::ops {
namespace FURLONG_GPU {
namespace {

#include "framework/primitives/activation_math-inl.h"

template <class T>
__global__ void __launch_bounds__(span_threads)
    activation_kernel(const T* x, T* y, ActivationKind kind, SpanLayout<2> layout) {
  constexpr int width = chunk_width<T>;
  using L = LaneValue<gpu_compute_t<T>>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  gpu_compute_t<T> values[width];
  read_chunk<width>(x + chunk.offsets[0], chunk.size, chunk.vectors, values);
  with_kind(kind, [&]<class F>(F) {
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) values[i] = F::both(L(values[i])).value.v;
  });
  write_chunk<width>(y + chunk.offsets[1], chunk.size, chunk.vectors, values);
}

template <class T>
__global__ void __launch_bounds__(span_threads)
    activation_backward_kernel(const T* x, const T* d_y, T* d_x, bool accumulate, ActivationKind kind,
                               SpanLayout<3> layout) {
  constexpr int width = chunk_width<T>;
  using L = LaneValue<gpu_compute_t<T>>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  gpu_compute_t<T> values[width], d[width], before[width] = {};
  read_chunk<width>(x + chunk.offsets[0], chunk.size, chunk.vectors, values);
  read_chunk<width>(d_y + chunk.offsets[1], chunk.size, chunk.vectors, d);
  if (accumulate) read_chunk<width>(d_x + chunk.offsets[2], chunk.size, chunk.vectors, before);
  with_kind(kind, [&]<class F>(F) {
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) d[i] = (L(d[i]) * F::both(L(values[i])).derivative).v;
  });
  if (accumulate) {
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) d[i] = rounded_sum(d[i], before[i]);
  }
  write_chunk<width>(d_x + chunk.offsets[2], chunk.size, chunk.vectors, d);
}

template <class T>
__global__ void __launch_bounds__(span_threads)
    gated_activation_kernel(const T* gate, const T* up, T* y, ActivationKind kind, SpanLayout<3> layout) {
  constexpr int width = chunk_width<T>;
  using L = LaneValue<gpu_compute_t<T>>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  gpu_compute_t<T> gates[width], ups[width];
  read_chunk<width>(gate + chunk.offsets[0], chunk.size, chunk.vectors, gates);
  read_chunk<width>(up + chunk.offsets[1], chunk.size, chunk.vectors, ups);
  with_kind(kind, [&]<class F>(F) {
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) gates[i] = (F::both(L(gates[i])).value * L(ups[i])).v;
  });
  write_chunk<width>(y + chunk.offsets[2], chunk.size, chunk.vectors, gates);
}

template <class T>
__global__ void __launch_bounds__(span_threads)
    gated_activation_backward_kernel(const T* gate, const T* up, const T* d_y, T* d_gate, T* d_up, bool accumulate,
                                     ActivationKind kind, SpanLayout<5> layout) {
  constexpr int width = chunk_width<T>;
  using Compute = gpu_compute_t<T>;
  using L = LaneValue<Compute>;
  const std::int64_t index = global_thread();
  if (index >= layout.chunks) return;
  const auto chunk = span_chunk<width>(layout, index);
  Compute gates[width], ups[width], d[width];
  read_chunk<width>(gate + chunk.offsets[0], chunk.size, chunk.vectors, gates);
  read_chunk<width>(up + chunk.offsets[1], chunk.size, chunk.vectors, ups);
  read_chunk<width>(d_y + chunk.offsets[2], chunk.size, chunk.vectors, d);
  with_kind(kind, [&]<class F>(F) {
    FURLONG_UNROLL
    for (int i = 0; i < width; ++i) {
      const auto f = F::both(L(gates[i]));
      gates[i] = (L(d[i]) * L(ups[i]) * f.derivative).v;
      ups[i] = (L(d[i]) * f.value).v;
    }
  });
  const auto write = [&](T* target, Compute(&values)[width]) {
    if (accumulate) {
      read_chunk<width>(target, chunk.size, chunk.vectors, d);
      FURLONG_UNROLL
      for (int i = 0; i < width; ++i) values[i] = rounded_sum(values[i], d[i]);
    }
    write_chunk<width>(target, chunk.size, chunk.vectors, values);
  };
  write(d_gate + chunk.offsets[3], gates);
  write(d_up + chunk.offsets[4], ups);
}

/// Returns the first or second half of each row.
Tensor half_of_rows(const Tensor& tensor, int which) {
  const std::int64_t f = tensor.extent(-1) / 2;
  return tensor.narrow(tensor.shape().rank() - 1, which * f, f);
}

}  // namespace

void activation(const Stream& stream, const Tensor& x, const Tensor& y, ActivationKind kind) {
  with_gpu_float_type(x.dtype(), "activation", [&]<class T>(std::type_identity<T>) {
    launch_spans(stream, activation_kernel<T>, span_layout<chunk_width<T>>(std::array{x, y}), gpu_data<T>(x),
                 gpu_data<T>(y), kind);
  });
}

void activation_backward(const Stream& stream, const Tensor& x, const Tensor& d_y, const Tensor& d_x, bool accumulate,
                         ActivationKind kind) {
  with_gpu_float_type(x.dtype(), "activation", [&]<class T>(std::type_identity<T>) {
    launch_spans(stream, activation_backward_kernel<T>, span_layout<chunk_width<T>>(std::array{x, d_y, d_x}),
                 gpu_data<T>(x), gpu_data<T>(d_y), gpu_data<T>(d_x), accumulate, kind);
  });
}

void gated_activation(const Stream& stream, const Tensor& x, const Tensor& y, ActivationKind kind) {
  const Tensor gate = half_of_rows(x, 0), up = half_of_rows(x, 1);
  with_gpu_float_type(x.dtype(), "gated_activation", [&]<class T>(std::type_identity<T>) {
    launch_spans(stream, gated_activation_kernel<T>, span_layout<chunk_width<T>>(std::array{gate, up, y}),
                 gpu_data<T>(gate), gpu_data<T>(up), gpu_data<T>(y), kind);
  });
}

void gated_activation_backward(const Stream& stream, const Tensor& x, const Tensor& d_y, const Tensor& d_x,
                               bool accumulate, ActivationKind kind) {
  const Tensor gate = half_of_rows(x, 0), up = half_of_rows(x, 1), d_gate = half_of_rows(d_x, 0),
               d_up = half_of_rows(d_x, 1);
  with_gpu_float_type(x.dtype(), "gated_activation", [&]<class T>(std::type_identity<T>) {
    launch_spans(stream, gated_activation_backward_kernel<T>,
                 span_layout<chunk_width<T>>(std::array{gate, up, d_y, d_gate, d_up}), gpu_data<T>(gate),
                 gpu_data<T>(up), gpu_data<T>(d_y), gpu_data<T>(d_gate), gpu_data<T>(d_up), accumulate, kind);
  });
}

const GpuKernelRegistration activation_registration{activation_gpu, &activation};
const GpuKernelRegistration activation_backward_registration{activation_backward_gpu, &activation_backward};
const GpuKernelRegistration gated_activation_registration{gated_activation_gpu, &gated_activation};
const GpuKernelRegistration gated_activation_backward_registration{gated_activation_backward_gpu,
                                                                   &gated_activation_backward};

}  // namespace FURLONG_GPU
}  // namespace furlong::ops
