// Row selection on a GPU: y[i] = x[index[i]], a block a row. An ordinary kernel.
//   index [rows] int32, x [tokens, k] float32, y [rows, k] float32

extern "C" __global__ void select_rows(const int* index, const float* x, float* y, int k) {
  const float* row = x + static_cast<long long>(index[blockIdx.x]) * k;
  for (int i = threadIdx.x; i < k; i += blockDim.x)
    y[static_cast<long long>(blockIdx.x) * k + i] = row[i];
}
