// Embedding lookup on a GPU: y[t] = table[tokens[t]], a block a token. An ordinary kernel.
//   tokens [tokens] int32, table [vocabulary, k] bfloat16 or float32, y [tokens, k] float32

__device__ inline float widen(unsigned short stored) {
  return __uint_as_float(static_cast<unsigned>(stored) << 16);
}
__device__ inline float widen(float stored) { return stored; }

template <class T>
__device__ inline void look_up(const int* tokens, const T* table, float* y, int k) {
  const T* row = table + static_cast<long long>(tokens[blockIdx.x]) * k;
  for (int i = threadIdx.x; i < k; i += blockDim.x)
    y[static_cast<long long>(blockIdx.x) * k + i] = widen(row[i]);
}

extern "C" __global__ void embed_bf16(const int* tokens, const unsigned short* table, float* y,
                                      int k) {
  look_up(tokens, table, y, k);
}
extern "C" __global__ void embed_f32(const int* tokens, const float* table, float* y, int k) {
  look_up(tokens, table, y, k);
}
