// --block 32
struct Flags {
  unsigned on : 1, level : 7;
};
__global__ void swap(unsigned* x) {
  __shared__ Flags flags[32];
  flags[threadIdx.x].on = x[threadIdx.x] > 0;
  x[threadIdx.x] = flags[threadIdx.x].on;
}
