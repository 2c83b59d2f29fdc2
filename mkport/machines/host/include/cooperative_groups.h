// The groups of cooperative_groups.h that end at a block: itself, its warps and their tiles.
#pragma once

namespace cooperative_groups {

struct thread_block {
  static void sync(MK_LINE) { __syncthreads(line); }
  static unsigned thread_rank() {
    const uint3 t = threadIdx;
    const dim3 size = blockDim;
    return (t.z * size.y + t.y) * size.x + t.x;
  }
  static unsigned size() {
    const dim3 size = blockDim;
    return size.x * size.y * size.z;
  }
  static unsigned num_threads() { return size(); }
  static dim3 group_index() { return dim3(blockIdx); }
  static dim3 thread_index() { return dim3(threadIdx); }
  static dim3 group_dim() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

template <unsigned width, class Parent = void>
struct thread_block_tile {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0, "a tile of a warp");
  thread_block_tile() = default;
  template <class Other>
  thread_block_tile(const thread_block_tile<width, Other>&) {}
  static unsigned thread_rank() { return mk_lane() & (width - 1); }
  static constexpr unsigned size() { return width; }
  static constexpr unsigned num_threads() { return width; }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / width; }
  static unsigned meta_group_size() { return (thread_block::size() + width - 1) / width; }
  static unsigned mask() {
    return width == 32 ? ~0u : ((1u << width) - 1) << (mk_lane() & ~(width - 1));
  }
  static void sync(MK_LINE) { __syncwarp(mask(), line); }
  template <class T>
  static T shfl(T x, int from, MK_LINE) {
    return __shfl_sync(mask(), x, from, width, line);
  }
  template <class T>
  static T shfl_down(T x, unsigned by, MK_LINE) {
    return __shfl_down_sync(mask(), x, by, width, line);
  }
  template <class T>
  static T shfl_up(T x, unsigned by, MK_LINE) {
    return __shfl_up_sync(mask(), x, by, width, line);
  }
  template <class T>
  static T shfl_xor(T x, unsigned with, MK_LINE) {
    return __shfl_xor_sync(mask(), x, with, width, line);
  }
  static unsigned ballot(int p, MK_LINE) {
    const unsigned all = __ballot_sync(mask(), p, line);
    return width == 32 ? all : all >> (mk_lane() & ~(width - 1)) & ((1u << width) - 1);
  }
  static int any(int p, MK_LINE) { return __any_sync(mask(), p, line); }
  static int all(int p, MK_LINE) { return __all_sync(mask(), p, line); }
};
template <unsigned width, class Parent>
thread_block_tile<width, Parent> tiled_partition(const Parent&) {
  return {};
}

template <class T>
struct plus {
  T operator()(T x, T y) const { return x + y; }
};
template <class T>
struct greater {
  T operator()(T x, T y) const { return x > y ? x : y; }
};
template <class T>
struct less {
  T operator()(T x, T y) const { return x < y ? x : y; }
};
template <class Group, class T, class Join>
T reduce(const Group& group, T x, Join join) {
  for (int by = group.size() / 2; by; by /= 2) x = join(x, group.shfl_xor(x, by));
  return x;
}
template <class Group>
void sync(const Group& group, MK_LINE) {
  group.sync(line);
}

}  // namespace cooperative_groups
