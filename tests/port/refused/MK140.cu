// --block 256
__global__ void copy(const float* x, float* y) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(x + threadIdx.x));
  y[threadIdx.x] = v;
}
