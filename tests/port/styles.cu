// Kernels in the styles that people bring, for the port to take over unchanged.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <float.h>
#include <torch/extension.h>

#include <vector>

#define TILE 16
#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define FULL_MASK 0xffffffff
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be on the GPU")
#define GRID_STRIDE(i, n) \
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)
#define SHARED_ARRAY(name, type, size) __shared__ type name[size]
#define MEET __syncthreads()

// A tiled product with two-dimensional blocks and shared arrays.
__global__ void matmul(const float* __restrict__ A, const float* __restrict__ B, float* C, int M,
                       int N, int K) {
  __shared__ float As[TILE][TILE];
  __shared__ float Bs[TILE][TILE + 1];
  int row = blockIdx.y * TILE + threadIdx.y;
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  float acc = 0.0f;
  for (int t = 0; t < CEIL_DIV(K, TILE); ++t) {
    As[threadIdx.y][threadIdx.x] =
        (row < M && t * TILE + threadIdx.x < K) ? A[row * K + t * TILE + threadIdx.x] : 0.f;
    Bs[threadIdx.y][threadIdx.x] =
        (col < N && t * TILE + threadIdx.y < K) ? B[(t * TILE + threadIdx.y) * N + col] : 0.f;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE; ++k) acc += As[threadIdx.y][k] * Bs[k][threadIdx.x];
    __syncthreads();
  }
  if (row < M && col < N) C[row * N + col] = acc;
}

// A template with a helper that has a barrier and a shared array of its own.
template <typename T, int THREADS>
__device__ __forceinline__ T block_max(T v) {
  __shared__ T s[THREADS / 32];
  for (int o = 16; o > 0; o >>= 1) v = max(v, __shfl_xor_sync(FULL_MASK, v, o));
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  v = s[0];
  for (int i = 1; i < THREADS / 32; i++) v = max(v, s[i]);
  __syncthreads();
  return v;
}
template <typename scalar_t, int THREADS>
__global__ void softmax(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int rows,
                        int cols) {
  extern __shared__ float sums[];
  int row = blockIdx.x;
  if (row >= rows) return;
  float m = -INFINITY;
  for (int i = threadIdx.x; i < cols; i += THREADS) m = fmaxf(m, __ldg(&x[row * cols + i]));
  m = block_max<float, THREADS>(m);
  float sum = 0;
  for (int i = threadIdx.x; i < cols; i += THREADS) sum += expf(x[row * cols + i] - m);
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int h = THREADS / 2; h > 0; h >>= 1) {
    if (threadIdx.x < h) sums[threadIdx.x] += sums[threadIdx.x + h];
    __syncthreads();
  }
  for (int i = threadIdx.x; i < cols; i += THREADS)
    y[row * cols + i] = expf(x[row * cols + i] - m) / sums[0];
}
torch::Tensor softmax_forward(torch::Tensor x) {
  CHECK_CUDA(x);
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "softmax", ([&] {
    softmax<scalar_t, 128><<<x.size(0), 128, 128 * sizeof(float)>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.size(0), x.size(1));
  }));
  return y;
}

// Half precision, a warp's reduction, then the first warp's.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(FULL_MASK, v, mask, 32);
  return v;
}
__global__ void rmsnorm_half(const half* __restrict__ x, const half* w, half* out, int hidden,
                             float eps) {
  __shared__ float parts[32];
  const half2* x2 = reinterpret_cast<const half2*>(x + blockIdx.x * hidden);
  float s = 0.f;
  for (int i = threadIdx.x; i < hidden / 2; i += blockDim.x) {
    float2 f = __half22float2(x2[i]);
    s += f.x * f.x + f.y * f.y;
  }
  s = warp_sum(s);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (lane == 0) parts[warp] = s;
  __syncthreads();
  if (warp == 0) {
    s = lane < (blockDim.x >> 5) ? parts[lane] : 0.f;
    s = warp_sum(s);
    if (lane == 0) parts[0] = s;
  }
  __syncthreads();
  float inv = rsqrtf(parts[0] / hidden + eps);
  for (int i = threadIdx.x; i < hidden; i += blockDim.x)
    out[blockIdx.x * hidden + i] =
        __float2half(__half2float(x[blockIdx.x * hidden + i]) * inv * __half2float(w[i]));
}

// Function objects in a namespace, a table of constants, C linkage.
__constant__ float kScales[4] = {1.f, 2.f, 3.f, 4.f};
namespace detail {
struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
template <class Op>
__device__ float reduce(float v, Op op, float* room) {
  int t = threadIdx.x;
  room[t] = v;
  __syncthreads();
  for (unsigned int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (t < s) room[t] = op(room[t], room[t + s]);
    __syncthreads();
  }
  return room[0];
}
}  // namespace detail
extern "C" {
__global__ void row_max(const float* in, float* out, int n) {
  __shared__ float room[64];
  float m = -FLT_MAX;
  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, in[blockIdx.x * n + i]);
  m = detail::reduce(m, detail::Max(), room);
  if (threadIdx.x == 0) out[blockIdx.x] = m * kScales[1];
}

// More threads than a worker has, and no barrier.
__global__ void saxpy(int n, float a, const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void maxout(const float* in, float* out, int total, int k) {
  GRID_STRIDE(i, total) {
    float m = in[i * k];
    for (int j = 1; j < k; j++) m = m > in[i * k + j] ? m : in[i * k + j];
    out[i] = m;
  }
}

__global__ void transpose(float* out, const float* in, int width, int height) {
  __shared__ float tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x;
  y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < height && y + j < width) out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

// A warp a row, in a two-dimensional block; whole warps return.
__global__ void gemv(const float4* __restrict__ w, const float4* x, float* y, int rows, int k4) {
  int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  float s = 0;
  for (int i = threadIdx.x; i < k4; i += 32) {
    float4 a = w[row * k4 + i], b = __ldg(x + i);
    s += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
  }
  for (int o = 16; o; o >>= 1) s += __shfl_down_sync(FULL_MASK, s, o);
  if (threadIdx.x == 0) y[row] = s;
}

__global__ void gemv_int8(const signed char* w, const float* scale, const float* x, float* y,
                          int rows, int k) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float sum = 0.f;
  for (int i = lane; i < k; i += 32) sum += float(w[row * k + i]) * x[i];
  sum = warp_sum(sum);
  if (lane == 0) y[row] = sum * scale[row];
}

// Ping-pong in dynamic shared memory.
__global__ void scan(const int* in, int* out, int n) {
  extern __shared__ int both[];
  int t = threadIdx.x, to = 0, from = 1;
  both[t] = t > 0 && t - 1 < n ? in[t - 1] : 0;
  __syncthreads();
  for (int offset = 1; offset < blockDim.x; offset *= 2) {
    to = 1 - to;
    from = 1 - from;
    if (t >= offset)
      both[to * blockDim.x + t] = both[from * blockDim.x + t] + both[from * blockDim.x + t - offset];
    else
      both[to * blockDim.x + t] = both[from * blockDim.x + t];
    __syncthreads();
  }
  if (t < n) out[t] = both[to * blockDim.x + t];
}

__global__ void histogram(const unsigned char* data, int* bins, int n) {
  __shared__ int own[256];
  own[threadIdx.x] = 0;
  __syncthreads();
  GRID_STRIDE(i, n) atomicAdd(&own[data[i]], 1);
  __syncthreads();
  atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}

__global__ void votes(const int* in, int* out) {
  int several = __syncthreads_count(in[threadIdx.x] > 1);
  int all = __syncthreads_and(in[threadIdx.x] >= 0);
  int none = __syncthreads_or(in[threadIdx.x] < 0);
  if (threadIdx.x == 0) out[blockIdx.x] = several + all + none;
}
}

// Macros that declare, meet and make functions.
__global__ void reversed(const float* in, float* out) {
  SHARED_ARRAY(buffer, float, 128);
  buffer[threadIdx.x] = in[blockIdx.x * 128 + threadIdx.x];
  MEET;
  out[blockIdx.x * 128 + threadIdx.x] = buffer[127 - threadIdx.x];
}
#define UNARY(NAME, EXPRESSION)                                             \
  template <typename T>                                                     \
  __device__ __forceinline__ T NAME##_of(T x) {                             \
    return EXPRESSION;                                                      \
  }                                                                         \
  __global__ void NAME(const float* in, float* out, int n) {                \
    GRID_STRIDE(i, n) { out[i] = NAME##_of<float>(in[i]); }                 \
  }
UNARY(relu, x > T(0) ? x : T(0))

// Lambdas, a struct behind a pointer, doubles, 64-bit sizes.
struct Sample {
  float value, weight;
  __device__ float product() const { return value * weight; }
};
__global__ void weigh(const Sample* in, double* out, long long n, bool twice) {
  auto of = [&](long long i) { return i < n ? in[i].product() : 0.f; };
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = double(of(i)) * (twice ? 2.0 : 1.0);
}

// Shared memory that the file declares, read in a helper.
extern __shared__ float of_the_file[];
__device__ float total(int n) {
  float sum = 0;
  for (int i = 0; i < n; i++) sum += of_the_file[i];
  return sum;
}
__global__ void totals(const float* in, float* out) {
  of_the_file[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = total(blockDim.x);
}

#if defined(USE_ROCM)
__global__ void elsewhere(float* x) { hip_only(x); }
#endif

std::vector<torch::Tensor> run_all(torch::Tensor a) {
  dim3 block(TILE, TILE);
  matmul<<<dim3(3, 2), block>>>(a.data_ptr<float>(), nullptr, nullptr, 1, 1, 1);
  return {a};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("softmax", &softmax_forward); }
