// --block 128
#include <cub/cub.cuh>
__global__ void sort(int* keys) {
  typedef cub::BlockRadixSort<int, 128, 4> Sort;
  __shared__ typename Sort::TempStorage storage;
  int mine[4];
  for (int i = 0; i < 4; i++) mine[i] = keys[threadIdx.x * 4 + i];
  Sort(storage).Sort(mine);
  for (int i = 0; i < 4; i++) keys[threadIdx.x * 4 + i] = mine[i];
}
