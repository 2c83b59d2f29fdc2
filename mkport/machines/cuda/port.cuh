// What ported kernels share: the names that a CUDA kernel uses for its place in a launch, bound to
// the record. A ported kernel sees the block that its tile stands for; each compute warp keeps that
// in shared memory, so that helpers, lambdas and functors find it too.
#ifdef MK_HOST
#include "names.h"
#endif
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef uint64_t uintptr_t;
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
#endif

enum { MK_PORT_BARRIER = 3 };  // a named barrier of the threads that take part

struct MkPortState {
  uint32_t block[3], grid[3];
  int32_t first;  // of the launch's threads that the compute threads are now
  float votes;    // of the warp's lanes
  char* shared;   // the block's shared memory
};
static_assert(sizeof(MkShared) + MK_COMPUTE_WARPS * sizeof(MkPortState) <= MK_FIXED_BYTES,
              "the warps' places stand between MkShared and the stage buffers");

MK_DEVICE inline MkPortState& mk_port() {
  return reinterpret_cast<MkPortState*>(mk_shared() + MK_FIXED_BYTES)[-1 - mk_warp()];
}
MK_DEVICE inline uint3 mk_port_block() {
  const MkPortState& s = mk_port();
  return {s.block[0], s.block[1], s.block[2]};
}
MK_DEVICE inline dim3 mk_port_grid() {
  const MkPortState& s = mk_port();
  return dim3(s.grid[0], s.grid[1], s.grid[2]);
}

// Block: X, Y, Z of the launch, and THREADS, which is their product.
template <class Block>
MK_DEVICE inline uint3 mk_port_thread() {
  const unsigned thread = (Block::THREADS > MK_COMPUTERS ? mk_port().first : 0) + mk_thread();
  return {thread % Block::X, thread / Block::X % Block::Y, thread / (Block::X * Block::Y)};
}
template <class Block>
MK_DEVICE inline void mk_port_sync() {
  static_assert(Block::THREADS <= MK_COMPUTERS && Block::THREADS % 32 == 0, "whole warps meet");
  mk_named_barrier(MK_PORT_BARRIER, Block::THREADS);
}
template <class Block>
MK_DEVICE inline int mk_port_sync_or(int p) {
  static_assert(Block::THREADS <= MK_COMPUTERS && Block::THREADS % 32 == 0, "whole warps meet");
  return mk_barrier_any(MK_PORT_BARRIER, Block::THREADS, p != 0);
}
template <class Block>
MK_DEVICE inline int mk_port_sync_and(int p) {
  return !mk_port_sync_or<Block>(p == 0);
}

template <class Block>
MK_DEVICE inline int mk_port_sync_count(int p) {
  const float votes = mk_warp_sum(p ? 1.0f : 0.0f);
  if (mk_lane() == 0) mk_port().votes = votes;
  mk_port_sync<Block>();
  float sum = 0.0f;
  for (int warp = 0; warp < Block::THREADS / 32; warp++) sum += (&mk_port())[mk_warp() - warp].votes;
  mk_port_sync<Block>();
  return static_cast<int>(sum);
}

// A place in the block's shared memory.
template <class T>
MK_DEVICE inline T& mk_port_shared(int at) {
  return *reinterpret_cast<T*>(mk_port().shared + at);
}
// For __ldg: what it reads may have been written in this launch.
template <class T>
MK_DEVICE inline T mk_port_load(const T* p) {
  return *p;
}

struct MkPort : MkBody {
  // Makes the compute threads those of one block of the launch, from thread `first` on.
  MK_DEVICE static void open(const MkCompute& c, int tile, int first, unsigned x, unsigned y,
                             unsigned z) {
    mk_sync_warp();  // all lanes are through with the place before
    if (mk_lane() == 0) {
      const unsigned at = tile;
      mk_port() = {{at % x, at / x % y, at / x / y},
                   {x, y, z},
                   first,
                   0.0f,
                   c.ring.base + c.ring.bytes};
    }
    mk_sync_warp();
  }
};
