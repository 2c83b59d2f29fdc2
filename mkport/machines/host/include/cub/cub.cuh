// The collectives of CUB that kernels use most: sums, extremes and scans of a block or a warp, in
// the order of the threads.
#pragma once

namespace cub {

struct Sum {
  template <class T>
  T operator()(const T& x, const T& y) const {
    return x + y;
  }
};
struct Max {
  template <class T>
  T operator()(const T& x, const T& y) const {
    return x < y ? y : x;
  }
};
struct Min {
  template <class T>
  T operator()(const T& x, const T& y) const {
    return y < x ? y : x;
  }
};
struct ArgMax {
  template <class Pair>
  Pair operator()(const Pair& x, const Pair& y) const {
    return y.value > x.value || (y.value == x.value && y.key < x.key) ? y : x;
  }
};
struct ArgMin {
  template <class Pair>
  Pair operator()(const Pair& x, const Pair& y) const {
    return y.value < x.value || (y.value == x.value && y.key < x.key) ? y : x;
  }
};
template <class Key, class Value>
struct KeyValuePair {
  typedef Key Key_;
  Key key;
  Value value;
};
enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

template <class T, int width = 32>
struct WarpReduce {
  struct TempStorage {};
  WarpReduce(TempStorage&) {}
  template <class Join>
  T Reduce(T x, Join join, int valid = width) const {
    for (int by = 1; by < width; by *= 2) {
      const T other = __shfl_down_sync(~0u, x, by, width);
      if ((mk_lane() & (width - 1)) + by < valid) x = join(x, other);
    }
    return x;
  }
  T Sum(T x) const { return Reduce(x, cub::Sum()); }
  T Sum(T x, int valid) const { return Reduce(x, cub::Sum(), valid); }
};

// The first thread of the block has the result.
template <class T, int x_threads, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS,
          int y_threads = 1, int z_threads = 1>
struct BlockReduce {
  enum { THREADS = x_threads * y_threads * z_threads };
  struct TempStorage {
    T of_thread[THREADS];
  };
  TempStorage& storage;
  BlockReduce(TempStorage& storage) : storage(storage) {}
  static int rank() {
    const uint3 t = threadIdx;
    return (t.z * y_threads + t.y) * x_threads + t.x;
  }
  template <class Join>
  T Reduce(T x, Join join, int valid = THREADS) {
    storage.of_thread[rank()] = x;
    __syncthreads();
    if (rank() == 0) {
      const int warps = (valid + 31) / 32;
      for (int warp = 0; warp < warps; warp++) {
        T of_warp = storage.of_thread[warp * 32];
        for (int i = warp * 32 + 1; i < (warp + 1) * 32 && i < valid; i++)
          of_warp = join(of_warp, storage.of_thread[i]);
        x = warp ? join(x, of_warp) : of_warp;
      }
    }
    return x;
  }
  template <int items, class Join>
  T Reduce(T (&x)[items], Join join) {
    T mine = x[0];
    for (int i = 1; i < items; i++) mine = join(mine, x[i]);
    return Reduce(mine, join);
  }
  T Sum(T x) { return Reduce(x, cub::Sum()); }
  T Sum(T x, int valid) { return Reduce(x, cub::Sum(), valid); }
  template <int items>
  T Sum(T (&x)[items]) {
    return Reduce(x, cub::Sum());
  }
};

template <class T, int x_threads, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int y_threads = 1,
          int z_threads = 1>
struct BlockScan {
  typedef BlockReduce<T, x_threads, BLOCK_REDUCE_WARP_REDUCTIONS, y_threads, z_threads> Reducer;
  typedef typename Reducer::TempStorage TempStorage;
  TempStorage& storage;
  BlockScan(TempStorage& storage) : storage(storage) {}
  void scan(T x, T& y, T& all, bool inclusive) {
    storage.of_thread[Reducer::rank()] = x;
    __syncthreads();
    T sum = T();
    for (int i = 0; i < Reducer::THREADS; i++) {
      if (i == Reducer::rank() && !inclusive) y = sum;
      sum = i ? sum + storage.of_thread[i] : storage.of_thread[i];
      if (i == Reducer::rank() && inclusive) y = sum;
    }
    all = sum;
  }
  void InclusiveSum(T x, T& y) {
    T all;
    scan(x, y, all, true);
  }
  void InclusiveSum(T x, T& y, T& all) { scan(x, y, all, true); }
  void ExclusiveSum(T x, T& y) {
    T all;
    scan(x, y, all, false);
  }
  void ExclusiveSum(T x, T& y, T& all) { scan(x, y, all, false); }
};

}  // namespace cub
