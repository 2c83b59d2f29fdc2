// --block 32
template <class T, class Index>
__device__ T at(T x, Index i) {
  __shared__ T s[32];
  s[threadIdx.x] = x;
  __syncthreads();
  return s[i];
}
__global__ void both(float* x, int* i) {
  x[threadIdx.x] = at(x[threadIdx.x], 3);
  i[threadIdx.x] = at(i[threadIdx.x], 3u);
}
