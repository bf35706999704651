// Source of the machine code in loops.sass, which is written by hand.
__global__ void nested(const float* x, float* y, int rows, int n) {
  float sum = 0;
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < n; ++i) {
      if (x[i] < 0) continue;
      sum += __expf(x[i]);
    }
    if (rows > 8) {
      y[row] = sum;
    } else {
      y[row] = -sum;
    }
  }
  y[0] = sum;
}
