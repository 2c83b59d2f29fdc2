// Adds a token's weighted experts to its residual row on a GPU. An ordinary kernel; a block of 256
// threads a token.
//   weights [tokens, top], y [tokens, top, n], x [tokens, n]; n a multiple of 4

extern "C" __global__ void __launch_bounds__(256)
    moe_combine(const float* weights, const float* y, float* x, int n, int top) {
  weights += (long long)blockIdx.x * top;
  y += (long long)blockIdx.x * top * n;
  x += (long long)blockIdx.x * n;
  for (int i = threadIdx.x * 4; i < n; i += 256 * 4) {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int c = 0; c < top; c++) {  // best first
      const float4 more = *reinterpret_cast<const float4*>(y + (long long)c * n + i);
      sum.x = __fmaf_rn(weights[c], more.x, sum.x);
      sum.y = __fmaf_rn(weights[c], more.y, sum.y);
      sum.z = __fmaf_rn(weights[c], more.z, sum.z);
      sum.w = __fmaf_rn(weights[c], more.w, sum.w);
    }
    float4* to = reinterpret_cast<float4*>(x + i);
    const float4 old = *to;
    *to = {__fadd_rn(old.x, sum.x), __fadd_rn(old.y, sum.y), __fadd_rn(old.z, sum.z),
           __fadd_rn(old.w, sum.w)};
  }
}
