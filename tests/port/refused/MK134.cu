// --block 256
__global__ void jump(float* x, int n) {
  if (n > 3) goto end;
  __syncthreads();
  x[threadIdx.x] = 1;
end:
  return;
}
