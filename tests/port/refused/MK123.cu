// --block 32
template <class T>
__device__ T first_of(T x) {
  __shared__ T s[32];
  s[threadIdx.x] = x;
  __syncthreads();
  return s[0];
}
__global__ void both(float* x, int* i) {
  x[threadIdx.x] = first_of(x[threadIdx.x]);
  i[threadIdx.x] = first_of(i[threadIdx.x]);
}
