// --block 32
__global__ void many(float* x, int a, int b, int c, int d, int e, int f, int g, int h, int i, int j,
                     int k, int l, int m, int n, int o, int p) {
  x[0] = a + b + c + d + e + f + g + h + i + j + k + l + m + n + o + p;
}
