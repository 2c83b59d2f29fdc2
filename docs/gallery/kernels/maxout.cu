// Maxout: of each group of P values the largest and which it was; any grid will do.
template <typename T>
__global__ void maxout(T *best, int *which, const T *X, int B, int O, int P) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < B * O; i += gridDim.x * blockDim.x) {
    const T *x = X + i * P;
    best[i] = x[0];
    which[i] = 0;
    for (int p = 1; p < P; ++p) {
      if (x[p] > best[i]) {
        best[i] = x[p];
        which[i] = p;
      }
    }
  }
}
