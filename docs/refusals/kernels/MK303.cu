// --block 64
#include <stdio.h>
__global__ void show(float* x) { printf("%f\n", x[threadIdx.x]); }
