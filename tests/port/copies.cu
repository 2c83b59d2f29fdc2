// Copies in the background, in PTX and by the primitives of cuda_pipeline.h.
#include <cuda_pipeline.h>

#define COPY(bytes, to, from)                                                             \
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(                         \
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),                  \
               "l"(from), "n"(bytes))
#define COMMIT() asm volatile("cp.async.commit_group;\n" ::)
#define WAIT(groups) asm volatile("cp.async.wait_group %0;\n" ::"n"(groups))

template <typename T>
__global__ void turned(const T* x, T* y) {
  __shared__ T s[2][64];
  const int t = threadIdx.x;
  COPY(sizeof(T), &s[0][t], x + t);
  COMMIT();
  COPY(sizeof(T), &s[1][t], x + 64 + t);
  COMMIT();
  WAIT(1);
  __syncthreads();  // the first
  const T first = s[0][63 - t];
  WAIT(0);
  __syncthreads();  // the second
  y[t] = first;
  y[64 + t] = s[1][63 - t];
}

template <typename T>
__global__ void sums(const T* __restrict__ x, float* y, int tiles, int last) {
  __shared__ T s[2][64];
  const int t = threadIdx.x;
  float sum = 0;
  __pipeline_memcpy_async(&s[0][t], &x[t], sizeof(T));
  __pipeline_commit();
  for (int i = 0; i < tiles; i++) {
    if (i + 1 < tiles) {
      const int there = i + 2 < tiles || t < last;
      __pipeline_memcpy_async(&s[(i + 1) & 1][t], &x[(there ? i + 1 : 0) * 64 + t], sizeof(T),
                              there ? 0 : sizeof(T));
      __pipeline_commit();
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncthreads();  // a tile is there
    const float* v = reinterpret_cast<const float*>(&s[i & 1][63 - t]);
    for (int n = 0; n < int(sizeof(T) / 4); n++) sum += v[n] * (i + 1);
    __syncthreads();  // and read
  }
  y[t] = sum;
}
