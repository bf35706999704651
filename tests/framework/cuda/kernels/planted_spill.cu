// Kernels that scripts/cuda_gates.py must reject: one that spills registers, and one that indexes an array by a value
// known only at run time.
__global__ void __launch_bounds__(1024, 2) spills(const float* x, float* y, int n) {
  float values[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) values[i] = x[i * n + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) values[i] += values[63 - i] * values[(i * 7) % 64];
#pragma unroll
  for (int i = 0; i < 64; ++i) y[i * n + threadIdx.x] = values[i];
}

__global__ void __launch_bounds__(256) keeps_an_array(const float* x, float* y, int n) {
  float values[16];
  for (int i = 0; i < 16; ++i) values[i] = x[i];
  for (int i = 0; i < n; ++i) values[(i * 7 + threadIdx.x) & 15] += x[i];
  y[threadIdx.x] = values[n & 15];
}
