// The groups of cooperative_groups.h that end at a block: itself, its warps and their tiles. They
// are written in CUDA's own names, so that an original on a CPU and a ported kernel use this text.
#ifndef MK_COOPERATIVE_GROUPS
#define MK_COOPERATIVE_GROUPS

namespace cooperative_groups {

struct thread_block {
  static __device__ __forceinline__ void sync() { __syncthreads(); }
  static __device__ __forceinline__ unsigned thread_rank() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  }
  static __device__ __forceinline__ unsigned size() {
    return blockDim.x * blockDim.y * blockDim.z;
  }
  static __device__ __forceinline__ unsigned num_threads() {
    return blockDim.x * blockDim.y * blockDim.z;
  }
  static __device__ __forceinline__ dim3 group_index() {
    return dim3(blockIdx.x, blockIdx.y, blockIdx.z);
  }
  static __device__ __forceinline__ dim3 thread_index() {
    return dim3(threadIdx.x, threadIdx.y, threadIdx.z);
  }
  static __device__ __forceinline__ dim3 group_dim() {
    return dim3(blockDim.x, blockDim.y, blockDim.z);
  }
  static __device__ __forceinline__ dim3 dim_threads() {
    return dim3(blockDim.x, blockDim.y, blockDim.z);
  }
};
__device__ __forceinline__ thread_block this_thread_block() {
  thread_block block;
  return block;
}

// All blocks of a launch, as far as their places go: they never meet.
struct grid_group {
  static __device__ __forceinline__ unsigned long long block_rank() {
    return (static_cast<unsigned long long>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x +
           blockIdx.x;
  }
  static __device__ __forceinline__ unsigned long long num_blocks() {
    return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z;
  }
  static __device__ __forceinline__ unsigned long long thread_rank() {
    return block_rank() * thread_block::size() + thread_block::thread_rank();
  }
  static __device__ __forceinline__ unsigned long long size() {
    return num_blocks() * thread_block::size();
  }
  static __device__ __forceinline__ unsigned long long num_threads() { return size(); }
  static __device__ __forceinline__ dim3 block_index() {
    return dim3(blockIdx.x, blockIdx.y, blockIdx.z);
  }
  static __device__ __forceinline__ dim3 dim_blocks() {
    return dim3(gridDim.x, gridDim.y, gridDim.z);
  }
  static __device__ __forceinline__ dim3 group_dim() { return dim_blocks(); }
};
__device__ __forceinline__ grid_group this_grid() {
  grid_group grid;
  return grid;
}

template <unsigned width, class Parent = void>
struct thread_block_tile {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0,
                "a tile of 1, 2, 4, 8, 16 or 32 threads");
  unsigned place, count;  // among the tiles of its parent
  template <class Other>
  __device__ __forceinline__ operator thread_block_tile<width, Other>() const {
    thread_block_tile<width, Other> same;
    same.place = place, same.count = count;
    return same;
  }
  static __device__ __forceinline__ unsigned mk_lane_of() {
    return ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x) & 31;
  }
  static __device__ __forceinline__ unsigned thread_rank() { return mk_lane_of() & (width - 1); }
  static __device__ __forceinline__ constexpr unsigned size() { return width; }
  static __device__ __forceinline__ constexpr unsigned num_threads() { return width; }
  __device__ __forceinline__ unsigned meta_group_rank() const { return place; }
  __device__ __forceinline__ unsigned meta_group_size() const { return count; }
  static __device__ __forceinline__ unsigned mk_mask() {
    return width == 32 ? 0xffffffffu
                       : ((1u << (width & 31)) - 1) << (mk_lane_of() & ~(width - 1));
  }
  static __device__ __forceinline__ void sync() { __syncwarp(mk_mask()); }
  template <class T>
  __device__ __forceinline__ T shfl(T x, int from) const {
    return __shfl_sync(mk_mask(), x, from, width);
  }
  template <class T>
  __device__ __forceinline__ T shfl_down(T x, unsigned by) const {
    return __shfl_down_sync(mk_mask(), x, by, width);
  }
  template <class T>
  __device__ __forceinline__ T shfl_up(T x, unsigned by) const {
    return __shfl_up_sync(mk_mask(), x, by, width);
  }
  template <class T>
  __device__ __forceinline__ T shfl_xor(T x, unsigned with) const {
    return __shfl_xor_sync(mk_mask(), x, with, width);
  }
  __device__ __forceinline__ unsigned mk_own(unsigned lanes) const {
    return width == 32 ? lanes
                       : lanes >> (mk_lane_of() & ~(width - 1)) & ((1u << (width & 31)) - 1);
  }
  __device__ __forceinline__ unsigned ballot(int p) const {
    return mk_own(__ballot_sync(mk_mask(), p));
  }
  __device__ __forceinline__ int any(int p) const { return __any_sync(mk_mask(), p); }
  __device__ __forceinline__ int all(int p) const { return __all_sync(mk_mask(), p); }
  template <class T>
  __device__ __forceinline__ unsigned match_any(T x) const {
    return mk_own(__match_any_sync(mk_mask(), x));
  }
};
template <unsigned width>
__device__ __forceinline__ thread_block_tile<width, thread_block> tiled_partition(
    const thread_block& block) {
  thread_block_tile<width, thread_block> tile;
  tile.place = block.thread_rank() / width;
  tile.count = (block.size() + width - 1) / width;
  return tile;
}
template <unsigned width, unsigned whole, class Parent>
__device__ __forceinline__ thread_block_tile<width, thread_block_tile<whole, Parent>>
tiled_partition(const thread_block_tile<whole, Parent>& parent) {
  thread_block_tile<width, thread_block_tile<whole, Parent>> tile;
  tile.place = parent.thread_rank() / width;
  tile.count = whole / width;
  return tile;
}

template <class T>
struct plus {
  __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct greater {
  __device__ __forceinline__ T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T>
struct less {
  __device__ __forceinline__ T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T>
struct bit_and {
  __device__ __forceinline__ T operator()(T a, T b) const { return a & b; }
};
template <class T>
struct bit_or {
  __device__ __forceinline__ T operator()(T a, T b) const { return a | b; }
};
template <class T>
struct bit_xor {
  __device__ __forceinline__ T operator()(T a, T b) const { return a ^ b; }
};
template <unsigned width, class Parent, class T, class Join>
__device__ __forceinline__ T reduce(const thread_block_tile<width, Parent>& tile, T x, Join join) {
  for (unsigned with = width / 2; with > 0; with /= 2) x = join(x, tile.shfl_xor(x, with));
  return x;
}
template <class Group>
__device__ __forceinline__ void sync(const Group& group) {
  group.sync();
}

}  // namespace cooperative_groups
#endif
