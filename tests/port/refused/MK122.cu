// --block 32
struct Pair {
  float a, b;
};
__global__ void swap(float* x) {
  __shared__ Pair pairs[32];
  pairs[threadIdx.x].a = x[threadIdx.x];
  x[threadIdx.x] = pairs[threadIdx.x].a;
}
