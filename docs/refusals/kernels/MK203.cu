// --grid 2 --block 64 --arg x=f32[100] --arg n=100
__global__ void twice(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) x[i] *= 2;
}
