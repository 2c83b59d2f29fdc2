// The collectives of CUB that kernels use most: reductions and scans of a block or a warp, loads and
// stores of a block's tile. They are written in CUDA's own names, so that an original on a CPU and
// a ported kernel use this same text. Floats are joined in the order of CUB's default algorithms; what CUB
// orders in another way in some release, or with another algorithm, is left out.
#ifndef MK_CUB
#define MK_CUB
#define CUB_VERSION 300000
#include "../functional.h"

namespace cub {

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(const T& a, const T& b) const {
    return b > a ? b : a;
  }
};
struct Min {
  template <class T>
  __device__ __forceinline__ T operator()(const T& a, const T& b) const {
    return b < a ? b : a;
  }
};
template <class K, class V>
struct KeyValuePair {
  typedef K Key;
  typedef V Value;
  K key;
  V value;
  KeyValuePair() = default;
  __device__ __forceinline__ KeyValuePair(const K& key, const V& value) : key(key), value(value) {}
};
struct ArgMax {
  template <class K, class V>
  __device__ __forceinline__ KeyValuePair<K, V> operator()(const KeyValuePair<K, V>& a,
                                                           const KeyValuePair<K, V>& b) const {
    return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
struct ArgMin {
  template <class K, class V>
  __device__ __forceinline__ KeyValuePair<K, V> operator()(const KeyValuePair<K, V>& a,
                                                           const KeyValuePair<K, V>& b) const {
    return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};

// Types whose sums are the same in every order.
template <class T>
struct AnyOrder {
  enum { HOLDS = false };
};
template <> struct AnyOrder<bool> { enum { HOLDS = true }; };
template <> struct AnyOrder<char> { enum { HOLDS = true }; };
template <> struct AnyOrder<signed char> { enum { HOLDS = true }; };
template <> struct AnyOrder<unsigned char> { enum { HOLDS = true }; };
template <> struct AnyOrder<short> { enum { HOLDS = true }; };
template <> struct AnyOrder<unsigned short> { enum { HOLDS = true }; };
template <> struct AnyOrder<int> { enum { HOLDS = true }; };
template <> struct AnyOrder<unsigned int> { enum { HOLDS = true }; };
template <> struct AnyOrder<long> { enum { HOLDS = true }; };
template <> struct AnyOrder<unsigned long> { enum { HOLDS = true }; };
template <> struct AnyOrder<long long> { enum { HOLDS = true }; };
template <> struct AnyOrder<unsigned long long> { enum { HOLDS = true }; };

__device__ __forceinline__ int LaneId() {
  return ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x) & 31;
}

// What a lane of the warp holds, of any type.
template <class T>
__device__ __forceinline__ T mk_of_lane(unsigned lanes, T x, int lane) {
  enum { WORDS = (sizeof(T) + 3) / 4 };
  unsigned words[WORDS];
  words[WORDS - 1] = 0;
  memcpy(words, &x, sizeof(T));
  for (int i = 0; i < WORDS; i++) words[i] = __shfl_sync(lanes, words[i], lane);
  memcpy(&x, words, sizeof(T));
  return x;
}
template <int width>
__device__ __forceinline__ unsigned mk_lanes(int lane) {
  return width == 32 ? 0xffffffffu : ((1u << (width & 31)) - 1) << (lane & ~(width - 1));
}

// The first lane has the result.
template <class T, int width = 32, int = 0>
struct WarpReduce {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0,
                "a warp's part of 1, 2, 4, 8, 16 or 32 lanes");
  struct TempStorage {
    char none;
  };
  __device__ __forceinline__ WarpReduce(TempStorage&) {}
  template <class Join>
  __device__ __forceinline__ T mk_one(T x, Join join, int valid) {
    const int lane = LaneId(), here = lane & (width - 1);
    for (int by = 1; by < width; by *= 2) {
      const T other = mk_of_lane(mk_lanes<width>(lane), x, here + by < width ? lane + by : lane);
      if (here + by < valid) x = join(x, other);
    }
    return x;
  }
  template <class Join>
  __device__ __forceinline__ T Reduce(T x, Join join) {
    return mk_one(x, join, width);
  }
  template <class Join>
  __device__ __forceinline__ T Reduce(T x, Join join, int valid) {
    return mk_one(x, join, valid);
  }
  __device__ __forceinline__ T Sum(T x) { return mk_one(x, cub::Sum(), width); }
  __device__ __forceinline__ T Sum(T x, int valid) { return mk_one(x, cub::Sum(), valid); }
};

template <class T, int width = 32, int = 0>
struct WarpScan {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0,
                "a warp's part of 1, 2, 4, 8, 16 or 32 lanes");
  struct TempStorage {
    char none;
  };
  __device__ __forceinline__ WarpScan(TempStorage&) {}
  template <class Join>
  __device__ __forceinline__ void mk_up_to(T x, T& y, Join join) {
    const int lane = LaneId(), here = lane & (width - 1);
    for (int by = 1; by < width; by *= 2) {
      const T other = mk_of_lane(mk_lanes<width>(lane), x, here < by ? lane : lane - by);
      if (here >= by) x = join(other, x);
    }
    y = x;
  }
  // What is before the first lane is nothing that anyone may use.
  template <class Join>
  __device__ __forceinline__ void Scan(T x, T& up_to, T& before, Join join) {
    mk_up_to(x, up_to, join);
    const int lane = LaneId();
    before = mk_of_lane(mk_lanes<width>(lane), up_to, (lane & (width - 1)) == 0 ? lane : lane - 1);
  }
  template <class Join>
  __device__ __forceinline__ void mk_before(T x, T& y, T first, Join join, T& all) {
    mk_up_to(x, y, join);
    all = Broadcast(y, width - 1);
    const int lane = LaneId(), here = lane & (width - 1);
    y = mk_of_lane(mk_lanes<width>(lane), join(first, y), here == 0 ? lane : lane - 1);
    if (here == 0) y = first;
  }
  template <class Join>
  __device__ __forceinline__ void InclusiveScan(T x, T& y, Join join) {
    mk_up_to(x, y, join);
  }
  template <class Join>
  __device__ __forceinline__ void InclusiveScan(T x, T& y, Join join, T& all) {
    mk_up_to(x, y, join);
    all = Broadcast(y, width - 1);
  }
  template <class Join>
  __device__ __forceinline__ void ExclusiveScan(T x, T& y, T first, Join join, T& all) {
    mk_before(x, y, first, join, all);
  }
  template <class Join>
  __device__ __forceinline__ void ExclusiveScan(T x, T& y, T first, Join join) {
    T all;
    mk_before(x, y, first, join, all);
  }
  __device__ __forceinline__ void InclusiveSum(T x, T& y) { mk_up_to(x, y, cub::Sum()); }
  __device__ __forceinline__ void InclusiveSum(T x, T& y, T& all) {
    mk_up_to(x, y, cub::Sum());
    all = Broadcast(y, width - 1);
  }
  __device__ __forceinline__ void ExclusiveSum(T x, T& y) {
    T all;
    mk_before(x, y, T(0), cub::Sum(), all);
  }
  __device__ __forceinline__ void ExclusiveSum(T x, T& y, T& all) {
    mk_before(x, y, T(0), cub::Sum(), all);
  }
  __device__ __forceinline__ T Broadcast(T x, unsigned from) {
    const int lane = LaneId();
    return mk_of_lane(mk_lanes<width>(lane), x, (lane & ~(width - 1)) + static_cast<int>(from));
  }
};

// The first thread has the result: each warp's, joined in the order of the warps.
enum BlockReduceAlgorithm { BLOCK_REDUCE_WARP_REDUCTIONS };
template <class T, int x_threads, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS,
          int y_threads = 1, int z_threads = 1, int = 0>
struct BlockReduce {
  enum {
    THREADS = x_threads * y_threads * z_threads,
    WIDTH = THREADS < 32 ? THREADS : 32,
    WARPS = (THREADS + 31) / 32
  };
  struct TempStorage {
    T of_warp[WARPS];
  };
  TempStorage& storage;
  __device__ __forceinline__ BlockReduce(TempStorage& storage) : storage(storage) {}
  template <class Join>
  __device__ __forceinline__ T mk_one(T x, Join join, int valid) {
    const int thread = (threadIdx.z * y_threads + threadIdx.y) * x_threads + threadIdx.x;
    const int left = valid - thread / 32 * 32;
    typename WarpReduce<T, WIDTH>::TempStorage none;
    x = WarpReduce<T, WIDTH>(none).mk_one(x, join, left < WIDTH ? left : WIDTH);
    if (thread % 32 == 0) storage.of_warp[thread / 32] = x;
    __syncthreads();
    if (thread == 0)
      for (int warp = 1; warp < WARPS && warp * 32 < valid; warp++)
        x = join(x, storage.of_warp[warp]);
    return x;
  }
  template <int items, class Join>
  __device__ __forceinline__ T mk_several(T (&x)[items], Join join) {
    static_assert(AnyOrder<T>::HOLDS,
                  "CUB's releases join a thread's own items in different orders; join them in a "
                  "loop, and reduce one item a thread");
    T mine = x[0];
    for (int i = 1; i < items; i++) mine = join(mine, x[i]);
    return mk_one(mine, join, THREADS);
  }
  template <class Join>
  __device__ __forceinline__ T Reduce(T x, Join join) {
    return mk_one(x, join, THREADS);
  }
  template <class Join>
  __device__ __forceinline__ T Reduce(T x, Join join, int valid) {
    return mk_one(x, join, valid);
  }
  template <int items, class Join>
  __device__ __forceinline__ T Reduce(T (&x)[items], Join join) {
    return mk_several(x, join);
  }
  __device__ __forceinline__ T Sum(T x) { return mk_one(x, cub::Sum(), THREADS); }
  __device__ __forceinline__ T Sum(T x, int valid) { return mk_one(x, cub::Sum(), valid); }
  template <int items>
  __device__ __forceinline__ T Sum(T (&x)[items]) {
    return mk_several(x, cub::Sum());
  }
};

// The first warp's threads each scan a run of threads, and the runs' totals among themselves.
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE };
template <class T, int x_threads, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int y_threads = 1,
          int z_threads = 1, int = 0>
struct BlockScan {
  enum {
    THREADS = x_threads * y_threads * z_threads,
    WIDTH = THREADS < 32 ? THREADS : 32,
    RUN = THREADS / WIDTH
  };
  static_assert(THREADS % WIDTH == 0, "whole warps");
  struct TempStorage {
    T of_thread[THREADS];
    T all;
  };
  TempStorage& storage;
  __device__ __forceinline__ BlockScan(TempStorage& storage) : storage(storage) {}

  // `y`: all up to the thread's own x, or `first` and all before it; `all`: the block's, without
  // `first`.
  template <bool inclusive, class Join>
  __device__ __forceinline__ void mk_scan(T x, T& y, T& all, Join join, T first) {
    const int thread = (threadIdx.z * y_threads + threadIdx.y) * x_threads + threadIdx.x;
    typename WarpScan<T, WIDTH>::TempStorage none;
    WarpScan<T, WIDTH> warp(none);
    if (RUN == 1) {
      if (inclusive)
        warp.InclusiveScan(x, y, join, all);
      else
        warp.mk_before(x, y, first, join, all);
      return;
    }
    storage.of_thread[thread] = x;
    __syncthreads();
    if (thread < WIDTH) {
      T* run = storage.of_thread + thread * RUN;
      T sum = run[0], before, total;
      for (int i = 1; i < RUN; i++) sum = join(sum, run[i]);
      if (inclusive)
        warp.Scan(sum, total, before, join);
      else
        warp.mk_before(sum, before, first, join, total);
      T here = inclusive && thread == 0 ? run[0] : join(before, run[0]);
      run[0] = inclusive ? here : before;
      for (int i = 1; i < RUN; i++) {
        const T up_to = join(here, run[i]);
        run[i] = inclusive ? up_to : here;
        here = up_to;
      }
      if (thread == (inclusive ? WIDTH - 1 : 0)) storage.all = total;
    }
    __syncthreads();
    y = storage.of_thread[thread];
    all = storage.all;
  }
  template <class Join>
  __device__ __forceinline__ void InclusiveScan(T x, T& y, Join join, T& all) {
    mk_scan<true>(x, y, all, join, x);
  }
  template <class Join>
  __device__ __forceinline__ void InclusiveScan(T x, T& y, Join join) {
    T all;
    mk_scan<true>(x, y, all, join, x);
  }
  template <class Join>
  __device__ __forceinline__ void ExclusiveScan(T x, T& y, T first, Join join, T& all) {
    mk_scan<false>(x, y, all, join, first);
  }
  template <class Join>
  __device__ __forceinline__ void ExclusiveScan(T x, T& y, T first, Join join) {
    T all;
    mk_scan<false>(x, y, all, join, first);
  }
  __device__ __forceinline__ void InclusiveSum(T x, T& y) {
    T all;
    mk_scan<true>(x, y, all, cub::Sum(), x);
  }
  __device__ __forceinline__ void InclusiveSum(T x, T& y, T& all) {
    mk_scan<true>(x, y, all, cub::Sum(), x);
  }
  __device__ __forceinline__ void ExclusiveSum(T x, T& y) {
    T all;
    mk_scan<false>(x, y, all, cub::Sum(), T(0));
  }
  __device__ __forceinline__ void ExclusiveSum(T x, T& y, T& all) {
    mk_scan<false>(x, y, all, cub::Sum(), T(0));
  }

  // Several items a thread, one after another.
  template <int items, class Join>
  __device__ __forceinline__ T mk_before(T (&x)[items], Join join, T first, T& all) {
    static_assert(AnyOrder<T>::HOLDS,
                  "CUB's releases join a thread's own items in different orders; scan one item a "
                  "thread");
    T mine = x[0], before;
    for (int i = 1; i < items; i++) mine = join(mine, x[i]);
    mk_scan<false>(mine, before, all, join, first);
    return before;
  }
  template <int items>
  __device__ __forceinline__ void mk_sums(T (&x)[items], T (&y)[items], T& all, bool inclusive) {
    T sum = mk_before(x, cub::Sum(), T(0), all);
    for (int i = 0; i < items; i++) {
      const T before = sum;
      sum = sum + x[i];
      y[i] = inclusive ? sum : before;
    }
  }
  template <int items>
  __device__ __forceinline__ void InclusiveSum(T (&x)[items], T (&y)[items], T& all) {
    mk_sums(x, y, all, true);
  }
  template <int items>
  __device__ __forceinline__ void InclusiveSum(T (&x)[items], T (&y)[items]) {
    T all;
    mk_sums(x, y, all, true);
  }
  template <int items>
  __device__ __forceinline__ void ExclusiveSum(T (&x)[items], T (&y)[items], T& all) {
    mk_sums(x, y, all, false);
  }
  template <int items>
  __device__ __forceinline__ void ExclusiveSum(T (&x)[items], T (&y)[items]) {
    T all;
    mk_sums(x, y, all, false);
  }
};

enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT,
  BLOCK_LOAD_STRIPED,
  BLOCK_LOAD_VECTORIZE,
  BLOCK_LOAD_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT,
  BLOCK_STORE_STRIPED,
  BLOCK_STORE_VECTORIZE,
  BLOCK_STORE_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};
// A thread's items lie side by side, or all threads' first items do ("striped"). What path the
// items take does not show in them: here it is always the direct one.
template <class T, int x_threads, int items, BlockLoadAlgorithm path = BLOCK_LOAD_DIRECT,
          int y_threads = 1, int z_threads = 1, int = 0>
struct BlockLoad {
  struct TempStorage {
    char none;
  };
  __device__ __forceinline__ BlockLoad() {}
  __device__ __forceinline__ BlockLoad(TempStorage&) {}
  __device__ __forceinline__ int mk_place(int i) const {
    const int thread = (threadIdx.z * y_threads + threadIdx.y) * x_threads + threadIdx.x;
    return path == BLOCK_LOAD_STRIPED ? i * x_threads * y_threads * z_threads + thread
                                      : thread * items + i;
  }
  template <class From>
  __device__ __forceinline__ void Load(From from, T (&x)[items]) {
    for (int i = 0; i < items; i++) x[i] = from[mk_place(i)];
  }
  template <class From>
  __device__ __forceinline__ void Load(From from, T (&x)[items], int valid) {
    for (int i = 0; i < items; i++)
      if (mk_place(i) < valid) x[i] = from[mk_place(i)];
  }
  template <class From, class Default>
  __device__ __forceinline__ void Load(From from, T (&x)[items], int valid, Default otherwise) {
    for (int i = 0; i < items; i++) {
      x[i] = otherwise;
      if (mk_place(i) < valid) x[i] = from[mk_place(i)];
    }
  }
};
template <class T, int x_threads, int items, BlockStoreAlgorithm path = BLOCK_STORE_DIRECT,
          int y_threads = 1, int z_threads = 1, int = 0>
struct BlockStore {
  struct TempStorage {
    char none;
  };
  __device__ __forceinline__ BlockStore() {}
  __device__ __forceinline__ BlockStore(TempStorage&) {}
  __device__ __forceinline__ int mk_place(int i) const {
    const int thread = (threadIdx.z * y_threads + threadIdx.y) * x_threads + threadIdx.x;
    return path == BLOCK_STORE_STRIPED ? i * x_threads * y_threads * z_threads + thread
                                       : thread * items + i;
  }
  template <class To>
  __device__ __forceinline__ void Store(To to, T (&x)[items]) {
    for (int i = 0; i < items; i++) to[mk_place(i)] = x[i];
  }
  template <class To>
  __device__ __forceinline__ void Store(To to, T (&x)[items], int valid) {
    for (int i = 0; i < items; i++)
      if (mk_place(i) < valid) to[mk_place(i)] = x[i];
  }
};

}  // namespace cub
#endif
