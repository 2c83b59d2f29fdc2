// --grid 1 --block 32 --arg x=f32[132] --arg y=f32[128]
__global__ void copy(const float* x, float* y) {
  const float4 v = reinterpret_cast<const float4*>(x + 1)[threadIdx.x];
  reinterpret_cast<float4*>(y)[threadIdx.x] = v;
}
