// --block 64
#include <assert.h>
__global__ void root(float* x) {
  assert(x[threadIdx.x] >= 0);
  x[threadIdx.x] = sqrtf(x[threadIdx.x]);
}
