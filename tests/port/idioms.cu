// Idioms of public CUDA code, written for this test: packed vectors, reductions that are templates
// over functions and types, activations as template arguments, states that merge, kernels that
// macros make.
#include <assert.h>
#include <float.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <torch/all.h>
#include <ATen/cuda/CUDAContext.h>
namespace cg = cooperative_groups;
typedef float floatX;
#define WARP_SIZE 32U
#define VLLM_LDG(arg) __ldg(arg)

template<class ElementType>
struct alignas(16) Packed128 {
    Packed128() = default;
    __device__ explicit Packed128(int4 bits) {
        static_assert(sizeof(bits) == sizeof(payload), "Size mismatch.");
        memcpy(&payload, &bits, sizeof(bits));
    }
    __device__ static Packed128 constant(ElementType value) {
        Packed128 result;
        for(int k = 0; k < size; ++k) { result.payload[k] = value; }
        return result;
    }
    __device__ ElementType& operator[](int index) { return payload[index]; }
    __device__ const ElementType& operator[](int index) const { return payload[index]; }
    __device__ int4 get_bits() const {
        int4 bits;
        memcpy(&bits, &payload, sizeof(bits));
        return bits;
    }
    static constexpr const size_t size = sizeof(int4) / sizeof(ElementType);
    ElementType payload[size];
};
template<class ElementType>
__device__ Packed128<ElementType> load128(const ElementType* address) {
    return Packed128<ElementType>{*reinterpret_cast<const int4*>(address)};
}
template<class ElementType>
__device__ Packed128<ElementType> load128cs(const ElementType* address) {
    return Packed128<ElementType>{__ldcs(reinterpret_cast<const int4*>(address))};
}
template<class ElementType>
__device__ void store128(ElementType* target, Packed128<ElementType> value) {
    *reinterpret_cast<int4*>(target) = value.get_bits();
}
typedef Packed128<floatX> x128;

__device__ inline float warpReduceSum(float val) {
    for (int offset = 16; offset > 0; offset /= 2) {
        val += __shfl_xor_sync(0xFFFFFFFF, val, offset);
    }
    return val;
}
__device__ inline float warpReduceMax(float val) {
    for (int offset = 16; offset > 0; offset /= 2) {
        val = fmaxf(val, __shfl_xor_sync(0xFFFFFFFF, val, offset));
    }
    return val;
}
using reduction_func_t = float (*) (float);
template<reduction_func_t warp_reduction>
__device__ inline float blockReduce(float val, bool final_sync=false, float out_of_bounds=0.0f) {
    __shared__ float shared_val[WARP_SIZE];
    const int lane_id = threadIdx.x % WARP_SIZE;
    const int warp_id = threadIdx.x / WARP_SIZE;
    const int num_warps = blockDim.x / WARP_SIZE;
    float warp_val = warp_reduction(val);
    if (lane_id == 0) { shared_val[warp_id] = warp_val; }
    __syncthreads();
    warp_val = (lane_id < num_warps) ? shared_val[lane_id] : out_of_bounds;
    float block_val = warp_reduction(warp_val);
    if (final_sync) { __syncthreads(); }
    return block_val;
}

__global__ void fused_residual_forward_kernel5(floatX* residual, floatX* normed, float* mean, float* rstd,
                                               const floatX* inp1, const floatX* inp2,
                                               const floatX* weight, const floatX* bias,
                                               int N, int C) {
    constexpr const int WARP = 32;
    assert(blockDim.x == WARP);
    extern __shared__ char* params[];
    x128* s_weight = reinterpret_cast<x128*>(params);
    x128* s_bias = reinterpret_cast<x128*>(params) + (C / x128::size);
    x128* s_res = reinterpret_cast<x128*>(params) + ((2 + threadIdx.y) * C / x128::size);
    int sidx = (threadIdx.x + WARP * threadIdx.y) * x128::size;
    for(int i = sidx; i < C; i += blockDim.y * WARP * x128::size) {
        s_weight[i/x128::size] = load128(weight + i);
        s_bias[i/x128::size] = load128(bias + i);
    }
    __syncthreads();
    int idx = blockIdx.x * blockDim.y + threadIdx.y;
    if(idx >= N) return;
    residual += C * idx; normed += C * idx; inp1 += C * idx; inp2 += C * idx;
    const float eps = 1e-5f;
    float sum = 0.0f;
    for(int c = threadIdx.x * x128::size; c < C; c += WARP * x128::size) {
        const x128 in1 = load128cs(inp1 + c);
        const x128 in2 = load128cs(inp2 + c);
        x128 out;
        for(int k = 0; k < x128::size; ++k) {
            out[k] = (floatX)((float)in1[k] + (float)in2[k]);
            sum += (float)out[k];
        }
        store128(residual + c, out);
        s_res[c / x128::size] = out;
    }
    sum = warpReduceSum(sum);
    float m = sum / C;
    float v = 0.f;
    for(int c = threadIdx.x * x128::size; c < C; c += WARP * x128::size) {
        const x128 res = s_res[c / x128::size];
        for(int k = 0; k < x128::size; ++k) { v += ((float)res[k] - m) * ((float)res[k] - m); }
    }
    v = warpReduceSum(v) / C;
    float s = rsqrtf(v + eps);
    for(int c = threadIdx.x * x128::size; c < C; c += WARP * x128::size) {
        const x128 res = s_res[c / x128::size];
        const x128 w = s_weight[c / x128::size];
        const x128 b = s_bias[c / x128::size];
        x128 out;
        for(int k = 0; k < x128::size; ++k) {
            float n = s * ((float)res[k] - m);
            float o = n * (float)w[k] + (float)b[k];
            out[k] = o;
        }
        store128(normed + c, out);
    }
    if(threadIdx.x == 0) { mean[idx] = m; rstd[idx] = s; }
}

// Two instances of one helper, with no barrier between them.
__global__ void softmax_stats(const float* x, float* y, int n) {
    float v = threadIdx.x < n ? x[blockIdx.x * n + threadIdx.x] : -INFINITY;
    float most = blockReduce<warpReduceMax>(v, false, -INFINITY);
    float sum = blockReduce<warpReduceSum>(expf(v - most));
    if (threadIdx.x == 0) { y[2 * blockIdx.x] = most; y[2 * blockIdx.x + 1] = sum; }
}

__global__ void softmax_forward_kernel5(float* out, float inv_temperature, const float* inp, int N, int T) {
    assert(T % 4  == 0);
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int idx = (gridDim.x - blockIdx.x - 1) * warp.meta_group_size() + warp.meta_group_rank();
    if(idx >= N * T) { return; }
    int own_pos = idx % T;
    int pos_by_4 = own_pos / 4;
    const float* x = inp + idx * T;
    float maxval = -FLT_MAX;
    float sumval = 0.0f;
    const float4* x_vec = reinterpret_cast<const float4*>(x);
    for (int i = warp.thread_rank(); i < pos_by_4; i += warp.size()) {
        float4 v = x_vec[i];
        float old_maxval = maxval;
        maxval = fmaxf(maxval, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
        sumval *= expf(inv_temperature * (old_maxval - maxval));
        sumval += expf(inv_temperature * (v.x - maxval)) + expf(inv_temperature * (v.y - maxval))
                + expf(inv_temperature * (v.z - maxval)) + expf(inv_temperature * (v.w - maxval));
    }
    if(4*pos_by_4 + warp.thread_rank() <= own_pos) {
        float old_maxval = maxval;
        maxval = fmaxf(maxval, x[4*pos_by_4 + warp.thread_rank()]);
        sumval *= expf(inv_temperature * (old_maxval - maxval));
        sumval += expf(inv_temperature * (x[4*pos_by_4 + warp.thread_rank()] - maxval));
    }
    float global_maxval = cg::reduce(warp, maxval, cg::greater<float>{});
    sumval *= expf(inv_temperature * (maxval - global_maxval));
    float sum = cg::reduce(warp, sumval, cg::plus<float>{});
    float norm = 1.f / sum;
    for (int i = warp.thread_rank(); i <= own_pos; i += warp.size()) {
        float ev = expf(inv_temperature * (__ldcs(x + i) - global_maxval));
        __stcs(out + idx * T + i, ev * norm);
    }
}
namespace ft {
template <typename T>
__inline__ __device__ T warpReduceSum(T val) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) val += __shfl_xor_sync(0xffffffff, val, mask, 32);
  return val;
}
template <typename T>
__inline__ __device__ T blockReduceSum(T val) {
  static __shared__ T shared[32];
  int lane = threadIdx.x & 0x1f;
  int wid = threadIdx.x >> 5;
  val = warpReduceSum<T>(val);
  if (lane == 0) shared[wid] = val;
  __syncthreads();
  val = (threadIdx.x < (blockDim.x / 32.f)) ? shared[lane] : (T)(0.0f);
  val = warpReduceSum<T>(val);
  return val;
}
// One helper for floats and for counts: the compiler says which.
__global__ void sum_and_count(const float *x, float *y, int *over, int n) {
  float v = threadIdx.x < n ? x[blockIdx.x * n + threadIdx.x] : 0.0f;
  float s = blockReduceSum(v);
  int c = blockReduceSum(v > 0.5f ? 1 : 0);
  if (threadIdx.x == 0) { y[blockIdx.x] = s; over[blockIdx.x] = c; }
}
// inner is reached once, from a helper that exists twice
template <typename T> __device__ T inner(T v) { __shared__ float s[64]; s[threadIdx.x] = (float)v; __syncthreads(); float r = s[63 - threadIdx.x]; return (T)r; }
template <typename T> __device__ T outer(T v) { return inner(v) + (T)1; }
__global__ void nested_once(const float* x, float* y) { float a = outer(x[threadIdx.x]); int b = outer((int)(x[threadIdx.x] * 10)); y[threadIdx.x] = a + b; }
}  // namespace ft

namespace vllm {
template <typename T>
__device__ __forceinline__ T silu_kernel(const T& x) {
  // x * sigmoid(x)
  return (T)(((float)x) / (1.0f + expf((float)-x)));
}
template <typename scalar_t, scalar_t (*ACT_FN)(const scalar_t&), bool act_first>
__device__ __forceinline__ scalar_t compute(const scalar_t& x, const scalar_t& y) {
  return act_first ? ACT_FN(x) * y : x * ACT_FN(y);
}
// Activation and gating kernel template.
template <typename scalar_t, scalar_t (*ACT_FN)(const scalar_t&), bool act_first>
__global__ void act_and_mul_kernel(
    scalar_t* __restrict__ out,          // [..., d]
    const scalar_t* __restrict__ input,  // [..., 2, d]
    const int d) {
  const int64_t token_idx = blockIdx.x;
  for (int64_t idx = threadIdx.x; idx < d; idx += blockDim.x) {
    const scalar_t x = VLLM_LDG(&input[token_idx * 2 * d + idx]);
    const scalar_t y = VLLM_LDG(&input[token_idx * 2 * d + d + idx]);
    out[token_idx * d + idx] = compute<scalar_t, ACT_FN, act_first>(x, y);
  }
}

namespace {
__device__ __forceinline__ int32_t index(int32_t total_col, int32_t row, int32_t col) {
  return row * total_col + col;
}
}
template <typename scalar_t, typename token_cnts_t>
__global__ void moe_align_block_size_kernel(scalar_t* __restrict__ topk_ids, int32_t* sorted_token_ids,
                                            int32_t* expert_ids, int32_t* total_tokens_post_pad,
                                            int32_t num_experts, int32_t block_size, size_t numel) {
  const size_t tokens_per_thread = ((numel + blockDim.x - 1) / blockDim.x);
  const size_t start_idx = threadIdx.x * tokens_per_thread;
  extern __shared__ int32_t shared_mem[];
  int32_t* cumsum = shared_mem;
  token_cnts_t* tokens_cnts = (token_cnts_t*)(shared_mem + num_experts + 1);
  for (int i = 0; i < num_experts; ++i) {
    tokens_cnts[index(num_experts, threadIdx.x + 1, i)] = 0;
  }
  for (int i = start_idx; i < numel && i < start_idx + tokens_per_thread; ++i) {
    ++tokens_cnts[index(num_experts, threadIdx.x + 1, topk_ids[i])];
  }
  __syncthreads();
  if (threadIdx.x < num_experts) {
    tokens_cnts[index(num_experts, 0, threadIdx.x)] = 0;
    for (int i = 1; i <= blockDim.x; ++i) {
      tokens_cnts[index(num_experts, i, threadIdx.x)] += tokens_cnts[index(num_experts, i - 1, threadIdx.x)];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    cumsum[0] = 0;
    for (int i = 1; i <= num_experts; ++i) {
      cumsum[i] = cumsum[i - 1] + ((tokens_cnts[index(num_experts, blockDim.x, i - 1)] + block_size - 1) / block_size) * block_size;
    }
    *total_tokens_post_pad = static_cast<int32_t>(cumsum[num_experts]);
  }
  __syncthreads();
  if (threadIdx.x < num_experts) {
    for (int i = cumsum[threadIdx.x]; i < cumsum[threadIdx.x + 1]; i += block_size) {
      expert_ids[i / block_size] = threadIdx.x;
    }
  }
  for (int i = start_idx; i < numel && i < start_idx + tokens_per_thread; ++i) {
    int32_t expert_id = topk_ids[i];
    int32_t rank_post_pad = tokens_cnts[index(num_experts, threadIdx.x, expert_id)] + cumsum[expert_id];
    sorted_token_ids[rank_post_pad] = i;
    ++tokens_cnts[index(num_experts, threadIdx.x, expert_id)];
  }
}
}  // namespace vllm

namespace flash {
template <typename float_t, size_t vec_size>
struct vec_t {
  inline __device__ float_t& operator[](size_t i);
  inline __device__ const float_t& operator[](size_t i) const;
  inline __device__ void fill(float_t val);
  inline __device__ void load(const float_t* ptr);
  inline __device__ void store(float_t* ptr) const;
};
// float x vec_size
template <size_t vec_size>
struct vec_t<float, vec_size> {
  float4 data[vec_size / 4];
  inline __device__ float& operator[](size_t i) { return ((float*)(data))[i]; }
  inline __device__ const float& operator[](size_t i) const { return ((const float*)(data))[i]; }
  inline __device__ void fill(float val) {
#pragma unroll
    for (size_t i = 0; i < vec_size / 4; ++i) data[i] = make_float4(val, val, val, val);
  }
  inline __device__ void load(const float* ptr) {
#pragma unroll
    for (size_t i = 0; i < vec_size / 4; ++i) data[i] = ((float4*)ptr)[i];
  }
  inline __device__ void store(float* ptr) const {
#pragma unroll
    for (size_t i = 0; i < vec_size / 4; ++i) ((float4*)ptr)[i] = data[i];
  }
};
template <size_t vec_size>
struct state_t {
  vec_t<float, vec_size> o;
  float m;
  float d;
  __device__ __forceinline__ void init() { o.fill(0.f); m = -INFINITY; d = 1.f; }
  __device__ __forceinline__ state_t() { init(); }
  __device__ __forceinline__ void merge(const vec_t<float, vec_size>& other_o, float other_m, float other_d) {
    float m_prev = m, d_prev = d;
    m = max(m_prev, other_m);
    d = d_prev * exp2f(m_prev - m) + other_d * exp2f(other_m - m);
#pragma unroll
    for (size_t i = 0; i < vec_size; ++i) o[i] = o[i] * exp2f(m_prev - m) + other_o[i] * exp2f(other_m - m);
  }
  __device__ __forceinline__ void merge(const state_t<vec_size>& other) { merge(other.o, other.m, other.d); }
  __device__ __forceinline__ void normalize() {
#pragma unroll
    for (size_t i = 0; i < vec_size; ++i) o[i] = o[i] / d;
  }
};

template <uint32_t bdx, uint32_t bdy, uint32_t vec_size, uint32_t num_stages>
__global__ void __launch_bounds__(bdx * bdy) DecodeKernel(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                                 float* __restrict__ o, float* __restrict__ lse, const int32_t* __restrict__ indptr, float sm_scale, uint32_t head_dim) {
  static_assert(bdx * vec_size == 32 * vec_size || bdx <= 32);
  extern __shared__ __align__(16) uint8_t smem[];
  float* k_smem = (float*)smem;
  float* v_smem = (float*)(smem + num_stages * bdy * 32 * vec_size * sizeof(float));
  const uint32_t tx = threadIdx.x, ty = threadIdx.y, batch = blockIdx.x;
  const int32_t begin = indptr[batch], end = indptr[batch + 1];
  if (begin == end) {
    if (ty == 0) for (uint32_t i = 0; i < vec_size; ++i) o[batch * head_dim + tx * vec_size + i] = 0.f;
    return;
  }
  vec_t<float, vec_size> q_vec;
  q_vec.load(q + batch * head_dim + tx * vec_size);
#pragma unroll
  for (uint32_t i = 0; i < vec_size; ++i) q_vec[i] *= sm_scale * 1.44269504f;
  state_t<vec_size> st;
  for (int32_t it = begin; it < end; it += num_stages * bdy) {
#pragma unroll
    for (uint32_t s = 0; s < num_stages; ++s) {
      const int32_t row = it + s * bdy + ty;
      vec_t<float, vec_size> kv;
      if (row < end) kv.load(k + row * head_dim + tx * vec_size); else kv.fill(0.f);
      kv.store(k_smem + (s * bdy + ty) * head_dim + tx * vec_size);
      if (row < end) kv.load(v + row * head_dim + tx * vec_size); else kv.fill(0.f);
      kv.store(v_smem + (s * bdy + ty) * head_dim + tx * vec_size);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t s = 0; s < num_stages; ++s) {
      vec_t<float, vec_size> kk, vv;
      kk.load(k_smem + (s * bdy + ty) * head_dim + tx * vec_size);
      vv.load(v_smem + (s * bdy + ty) * head_dim + tx * vec_size);
      float dot = 0.f;
#pragma unroll
      for (uint32_t i = 0; i < vec_size; ++i) dot += q_vec[i] * kk[i];
#pragma unroll
      for (uint32_t offset = bdx / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffff, dot, offset);
      dot = (it + s * bdy + ty < end) ? dot : -INFINITY;
      if (dot > -INFINITY) st.merge(vv, dot, 1.f);
    }
    __syncthreads();
  }
  // join the rows of the block
  float* md = (float*)(smem);
  for (uint32_t i = 0; i < vec_size; ++i) v_smem[ty * head_dim + tx * vec_size + i] = st.o[i];
  if (tx == 0) { md[2 * ty] = st.m; md[2 * ty + 1] = st.d; }
  __syncthreads();
  if (ty == 0) {
    state_t<vec_size> all;
    for (uint32_t r = 0; r < bdy; ++r) {
      vec_t<float, vec_size> part;
      part.load(v_smem + r * head_dim + tx * vec_size);
      if (md[2 * r] > -INFINITY) all.merge(part, md[2 * r], md[2 * r + 1]);
    }
    all.normalize();
    all.o.store(o + batch * head_dim + tx * vec_size);
    if (lse != nullptr && tx == 0) lse[batch] = all.m + log2f(all.d);
  }
}

}  // namespace flash

// CUDA samples' way to have dynamic shared memory of any type
template <class T>
struct SharedMemory {
  __device__ inline operator T *() { extern __shared__ int __smem[]; return (T *)__smem; }
  __device__ inline operator const T *() const { extern __shared__ int __smem[]; return (T *)__smem; }
};
template <>
struct SharedMemory<double> {
  __device__ inline operator double *() { extern __shared__ double __smem_d[]; return (double *)__smem_d; }
};
template <class T>
__global__ void samples_reduce(T *g_idata, T *g_odata, unsigned int n) {
  T *sdata = SharedMemory<T>();
  unsigned int tid = threadIdx.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  sdata[tid] = (i < n) ? g_idata[i] : 0;
  __syncthreads();
  for (unsigned int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}
#define DEFINE_BINARY(NAME, OP)                                        \
  __global__ void NAME(const float *a, const float *b, float *c, int n) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                     \
    if (i < n) c[i] = a[i] OP b[i];                                    \
  }
DEFINE_BINARY(add_kernel, +)
DEFINE_BINARY(mul_kernel, *)
enum class Mode { kSum, kMax };
template <Mode mode, int VEC, bool kBias = false, typename acc_t = float, typename scalar_t>
__global__ void __launch_bounds__(256, 2) row_op(const scalar_t *const __restrict__ in, scalar_t *__restrict__ out, const scalar_t *bias, const long long cols) {
  __shared__ acc_t red[8];
  const scalar_t *row = in + static_cast<size_t>(blockIdx.x) * cols;
  acc_t acc = mode == Mode::kSum ? acc_t(0) : acc_t(-3.0e38f);
  const auto combine = [](acc_t a, acc_t b) -> acc_t { if constexpr (mode == Mode::kSum) return a + b; else return a > b ? a : b; };
  for (long long c = threadIdx.x * VEC; c < cols; c += blockDim.x * VEC) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) if (c + v < cols) acc = combine(acc, static_cast<acc_t>(row[c + v]));
  }
  for (int o = 16; o; o >>= 1) acc = combine(acc, __shfl_xor_sync(0xffffffff, acc, o));
  if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = acc;
  __syncthreads();
  switch (mode) {
    case Mode::kSum: {
      if (threadIdx.x == 0) for (int w = 1; w < (blockDim.x >> 5); ++w) acc = combine(acc, red[w]);
      __syncthreads();
      break;
    }
    case Mode::kMax: {
      if (threadIdx.x == 0) for (int w = 1; w < (blockDim.x >> 5); ++w) acc = combine(acc, red[w]);
      break;
    }
  }
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<scalar_t>(acc + (kBias ? static_cast<acc_t>(bias[blockIdx.x]) : acc_t(0)));
}
__device__ __forceinline__ float atomicMaxFloat(float *addr, float value) {
  return (value >= 0) ? __int_as_float(atomicMax((int *)addr, __float_as_int(value)))
                      : __uint_as_float(atomicMin((unsigned int *)addr, __float_as_uint(value)));
}
__global__ void row_absmax(const float *x, float *s, int cols) {
  __shared__ float most;
  if (threadIdx.x == 0) most = 0.f;
  __syncthreads();
  float m = 0.f;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) m = fmaxf(m, fabsf(x[blockIdx.x * cols + c]));
  atomicMaxFloat(&most, m);
  __syncthreads();
  if (threadIdx.x == 0) s[blockIdx.x] = most / 127.f;
}

void rms_norm(torch::Tensor& out, torch::Tensor& input) {
  TORCH_CHECK(out.is_contiguous());
  dim3 grid(input.size(0)), block(64, 1);
  VLLM_DISPATCH_FLOATING_TYPES(input.scalar_type(), "add", [&] {
    add_kernel<<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(
        input.data_ptr<float>(), input.data_ptr<float>(), out.data_ptr<float>(), input.numel());
  });
}
TORCH_LIBRARY(my_ops, m) { m.def("rms_norm", &rms_norm); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("rms_norm", &rms_norm); }
