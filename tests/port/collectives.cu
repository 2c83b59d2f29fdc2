// Collectives of CUB and cooperative groups, as kernels use them.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/cub.cuh>
#if CUB_VERSION >= 200800
#include <cuda/std/functional>
using AddOp = cuda::std::plus<>;
#else
using AddOp = cub::Sum;
#endif
namespace cg = cooperative_groups;

// A block of fewer threads than the template's, which the call says.
__global__ void rms(float* __restrict__ out, const float* __restrict__ x, int hidden) {
  __shared__ float scale;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    const float v = x[blockIdx.x * hidden + i];
    sum += v * v;
  }
  using BlockReduce = cub::BlockReduce<float, 1024>;
  __shared__ typename BlockReduce::TempStorage storage;
  sum = BlockReduce(storage).Reduce(sum, AddOp{}, blockDim.x);
  if (threadIdx.x == 0) scale = rsqrtf(sum / hidden + 1e-5f);
  __syncthreads();
  for (int i = threadIdx.x; i < hidden; i += blockDim.x)
    out[blockIdx.x * hidden + i] = x[blockIdx.x * hidden + i] * scale;
}

// Storage that several collectives have in turn; a block of two dimensions.
template <int X, int Y>
__global__ void ranges(const float* x, float* y, int* places) {
  typedef cub::BlockReduce<float, X, cub::BLOCK_REDUCE_WARP_REDUCTIONS, Y> Reduce;
  typedef cub::BlockScan<int, X, cub::BLOCK_SCAN_RAKING, Y> Scan;
  __shared__ union {
    typename Reduce::TempStorage reduce;
    typename Scan::TempStorage scan;
  } storage;
  const int thread = threadIdx.y * X + threadIdx.x, here = blockIdx.x * X * Y + thread;
  const float least = Reduce(storage.reduce).Reduce(x[here], cuda::minimum<>());
  __syncthreads();
  int before, all;
  Scan(storage.scan).ExclusiveSum(x[here] > 0.0f, before, all);
  if (thread == 0) y[blockIdx.x] = least + all;
  places[here] = x[here] > 0.0f ? before : -1;
}

// Floats in the order of a scan.
__global__ void running(const float* x, float* y, float* total) {
  typedef cub::BlockScan<float, 128> Scan;
  __shared__ typename Scan::TempStorage storage;
  float mine = x[blockIdx.x * 128 + threadIdx.x], all;
  Scan(storage).InclusiveSum(mine, mine, all);
  y[blockIdx.x * 128 + threadIdx.x] = mine;
  if (threadIdx.x == 127) total[blockIdx.x] = all;
}

// Several items a thread, loaded and stored by the block.
__global__ void offsets(const int* counts, int* starts, int n) {
  constexpr int THREADS = 64, ITEMS = 4;
  using Load = cub::BlockLoad<int, THREADS, ITEMS, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Store = cub::BlockStore<int, THREADS, ITEMS, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  using Scan = cub::BlockScan<int, THREADS>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Store::TempStorage store;
    typename Scan::TempStorage scan;
  } storage;
  const int first = blockIdx.x * THREADS * ITEMS;
  int mine[ITEMS];
  Load(storage.load).Load(counts + first, mine, n - first, 0);
  __syncthreads();
  Scan(storage.scan).ExclusiveSum(mine, mine);
  __syncthreads();
  Store(storage.store).Store(starts + first, mine, n - first);
}

// Warps and their halves, each with storage of its own.
__global__ void halves(const float* x, float* sums, int* ranks) {
  typedef cub::WarpReduce<float, 16> Half;
  typedef cub::WarpScan<int> Whole;
  __shared__ Half::TempStorage half[8];
  __shared__ Whole::TempStorage whole[4];
  const int t = threadIdx.x, here = blockIdx.x * 128 + t;
  const float sum = Half(half[t / 16]).Sum(x[here]);
  if (t % 16 == 0) sums[here / 16] = sum;
  int rank;
  Whole(whole[t / 32]).ExclusiveSum(x[here] < 0.0f ? 1 : 0, rank);
  ranks[here] = rank;
}

__device__ float tile_sum(const cg::thread_block_tile<32>& tile, float x) {
  for (int by = tile.size() / 2; by > 0; by /= 2) x += tile.shfl_down(x, by);
  return tile.shfl(x, 0);
}

// A block, its warps and their parts.
__global__ void softmax_groups(const float* x, float* y, int cols) {
  __shared__ float parts[8];
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  const float* row = x + block.group_index().x * cols;
  float most = -INFINITY;
  for (int i = block.thread_rank(); i < cols; i += block.size()) most = fmaxf(most, row[i]);
  most = cg::reduce(warp, most, cg::greater<float>());
  if (warp.thread_rank() == 0) parts[warp.meta_group_rank()] = most;
  block.sync();
  for (int w = 0; w < warp.meta_group_size(); w++) most = fmaxf(most, parts[w]);
  block.sync();
  float sum = 0.0f;
  for (int i = block.thread_rank(); i < cols; i += block.size()) sum += expf(row[i] - most);
  sum = tile_sum(warp, sum);
  if (warp.thread_rank() == 0) parts[warp.meta_group_rank()] = sum;
  cg::sync(block);
  sum = 0.0f;
  for (int w = 0; w < warp.meta_group_size(); w++) sum += parts[w];
  for (int i = block.thread_rank(); i < cols; i += block.size())
    y[blockIdx.x * cols + i] = expf(row[i] - most) / sum;
}

// A warp takes rows by itself: its own meeting is not the block's.
__global__ void rows_by_warp(const int* x, int* y, unsigned* votes, int rows) {
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  auto eight = cg::tiled_partition<8>(warp);
  __shared__ int buffer[4][32];
  const int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  if (row < rows) {
    buffer[warp.meta_group_rank()][warp.thread_rank()] = x[row * 32 + warp.thread_rank()];
    warp.sync();
    const int other = buffer[warp.meta_group_rank()][31 - warp.thread_rank()];
    y[row * 32 + warp.thread_rank()] = cg::reduce(eight, other, cg::plus<int>()) + eight.shfl_xor(other, 1);
    const unsigned set = eight.ballot(other > 2);
    if (eight.thread_rank() == 0) votes[row * 4 + eight.meta_group_rank()] = set;
  }
}

// A scan with an operator of one's own, over pairs, a chunk after another.
struct SSMScanOp {
  __device__ __forceinline__ float2 operator()(const float2 &a, const float2 &b) const { return make_float2(b.x * a.x, b.x * a.y + b.y); }
};
template <int kNThreads, int kNItems>
__global__ __launch_bounds__(kNThreads) void scan_pairs(const float2 *__restrict__ in, float2 *__restrict__ out, int len) {
  using BlockScanT = cub::BlockScan<float2, kNThreads, cub::BLOCK_SCAN_RAKING>;
  __shared__ typename BlockScanT::TempStorage smem_scan;
  float2 running = make_float2(1.f, 0.f);
  for (int chunk = 0; chunk < len; chunk += kNThreads) {
    const int i = chunk + threadIdx.x;
    float2 v = i < len ? in[blockIdx.x * len + i] : make_float2(1.f, 0.f), o, total;
    BlockScanT(smem_scan).InclusiveScan(v, o, SSMScanOp(), total);
    o = SSMScanOp()(running, o);
    if (i < len) out[blockIdx.x * len + i] = o;
    running = SSMScanOp()(running, total);
    __syncthreads();
  }
}
// A running sum that ends when the block has found its place.
template <int THREADS>
__global__ void first_over(const float *p, int *pos, float limit, int n) {
  using Scan = cub::BlockScan<float, THREADS>;
  using Min = cub::BlockReduce<int, THREADS>;
  __shared__ union { typename Scan::TempStorage scan; typename Min::TempStorage min; } tmp;
  __shared__ int found;
  float before = 0.f;
  if (threadIdx.x == 0) found = n;
  __syncthreads();
  for (int base = 0; base < n; base += THREADS) {
    float v = base + threadIdx.x < n ? p[blockIdx.x * n + base + threadIdx.x] : 0.f, inc, sum;
    Scan(tmp.scan).InclusiveSum(v, inc, sum);
    __syncthreads();
    int mine = before + inc > limit && base + (int)threadIdx.x < n ? base + (int)threadIdx.x : n;
    int least = Min(tmp.min).Reduce(mine, cub::Min());
    if (threadIdx.x == 0 && least < n) found = least;
    __syncthreads();
    if (found < n) break;
    before += sum;
    __syncthreads();
  }
  if (threadIdx.x == 0) pos[blockIdx.x] = found;
}
