// --block 128
#include <cub/cub.cuh>
__global__ void sum(const float* x, float* y) {
  typedef cub::BlockReduce<float, 128> Reduce;
  y[blockIdx.x] = Reduce().Sum(x[threadIdx.x]);
}
