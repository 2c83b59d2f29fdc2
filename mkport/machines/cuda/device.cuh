// The primitives of the CUDA machine. All inline PTX and all intrinsics live here; bodies and the
// runtime use only these names and plain C++. Needs sm_80; from sm_90 on the ring is filled by the
// bulk copy engine. mkport/machines/host/device.h has the same names for an ordinary compiler.
#ifdef __CUDACC_RTC__  // this compiler has no standard headers
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#define MK_DEVICE __device__
#define MK_INLINE __device__ __forceinline__

typedef uint16_t mk_bf16;     // the upper half of a float
typedef uint64_t mk_barrier;  // an mbarrier in shared memory
struct alignas(8) mk_float2 {
  float v[2];
};
struct alignas(16) mk_float4 {
  float v[4];
};
struct alignas(8) mk_word2 {
  uint32_t v[2];
};
struct alignas(16) mk_word4 {  // 16 bytes of any type
  uint32_t v[4];
};

// Who am I.

MK_INLINE int mk_thread() { return threadIdx.x; }
MK_INLINE int mk_thread_here() {  // the same; the compiler keeps nothing that it knows of it
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
MK_INLINE int mk_warp() { return threadIdx.x / 32; }
MK_INLINE int mk_lane() { return threadIdx.x % 32; }
MK_INLINE int mk_worker() { return blockIdx.x; }
MK_INLINE char* mk_shared() {
  extern __shared__ __align__(1024) char mk_shared_bytes[];
  return mk_shared_bytes;
}
MK_INLINE uint32_t mk_shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
MK_INLINE int64_t mk_now_ns() {
  int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Arithmetic.

MK_INLINE float mk_float(int32_t bits) { return __int_as_float(bits); }
MK_INLINE int32_t mk_bits(float x) { return __float_as_int(x); }
MK_INLINE int mk_count_bits(uint32_t x) { return __popc(x); }
MK_INLINE float mk_widen(mk_bf16 h) { return __uint_as_float(static_cast<uint32_t>(h) << 16); }
MK_INLINE uint32_t mk_narrow2(float low, float high) {  // to nearest even; low in the low half
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
MK_INLINE mk_bf16 mk_narrow(float x) { return static_cast<mk_bf16>(mk_narrow2(x, 0.0f)); }
MK_INLINE float mk_fma(float x, float y, float z) { return __fmaf_rn(x, y, z); }
MK_INLINE float mk_add(float x, float y) { return __fadd_rn(x, y); }
MK_INLINE float mk_mul(float x, float y) { return __fmul_rn(x, y); }
MK_INLINE float mk_div(float x, float y) { return __fdiv_rn(x, y); }
MK_INLINE float mk_sqrt(float x) { return __fsqrt_rn(x); }
MK_INLINE float mk_max(float x, float y) { return fmaxf(x, y); }  // of a NaN and y: y
MK_INLINE float mk_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// d += a b: 16 weight rows x 16 k times 16 k x 8 tokens. A lane holds rows lane / 4 and 8 + that,
// tokens 2 (lane % 4) and the next, of d.
MK_INLINE void mk_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices of bf16 from shared memory; lane i gives the address of row i % 8 of matrix
// i / 8, 16 bytes aligned.
MK_INLINE void mk_load_matrix4(uint32_t (&m)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(mk_shared_address(row))
               : "memory");
}
MK_INLINE void mk_load_turned4(uint32_t (&m)[4], const void* row) {  // each of them transposed
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(mk_shared_address(row))
               : "memory");
}
// An 8 x 8 matrix of bf16 transposed; lane i holds row i / 4, columns 2 (i % 4) and the next.
MK_INLINE uint32_t mk_transpose(uint32_t pair) {
  uint32_t turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
  return turned;
}

// Within a warp: all 32 lanes take part.

MK_INLINE void mk_sync_warp() { __syncwarp(); }
MK_INLINE float mk_shuffle(float x, int lane) { return __shfl_sync(~0u, x, lane); }
MK_INLINE int32_t mk_shuffle(int32_t x, int lane) { return __shfl_sync(~0u, x, lane); }
MK_INLINE int64_t mk_shuffle(int64_t x, int lane) {
  return __shfl_sync(~0u, static_cast<long long>(x), lane);
}
MK_INLINE float mk_shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
MK_INLINE int32_t mk_shuffle_xor(int32_t x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
MK_INLINE bool mk_warp_any(bool p) { return __any_sync(~0u, p); }
MK_INLINE float mk_warp_sum(float x) {  // halves first: 16, 8, 4, 2, 1
  for (int mask = 16; mask; mask /= 2) x = __fadd_rn(x, mk_shuffle_xor(x, mask));
  return x;
}
MK_INLINE float mk_warp_max(float x) {
  for (int mask = 16; mask; mask /= 2) x = fmaxf(x, mk_shuffle_xor(x, mask));
  return x;
}
MK_INLINE uint32_t mk_warp_max(uint32_t x) { return __reduce_max_sync(~0u, x); }
MK_INLINE uint32_t mk_warp_min(uint32_t x) { return __reduce_min_sync(~0u, x); }

// Within a block: named barriers 1..15, each always met by the same number of threads.

MK_INLINE void mk_sync_block() { __syncthreads(); }
MK_INLINE void mk_named_barrier(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
MK_INLINE bool mk_barrier_any(int id, int threads, bool p) {  // meets, and ors p over all threads
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.red.or.pred q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(p)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}

// A word in shared memory that threads set bits of side by side.
MK_INLINE void mk_set_bits(uint32_t* word, uint32_t bits) { atomicOr(word, bits); }

// Adds to a number in shared memory, and says what it was: a number for each thread, in any order.
MK_INLINE int32_t mk_take(int32_t* p, int32_t x) { return atomicAdd(p, x); }

// Global memory. Immutable: nothing writes it during the launch. Coherent: another worker may have
// written it in this launch, so the read goes to the L2 cache.

MK_INLINE int32_t mk_load_immutable(const int32_t* p) { return __ldg(p); }
MK_INLINE float mk_load_immutable(const float* p) { return __ldg(p); }
MK_INLINE int64_t mk_load_immutable(const int64_t* p) {
  return __ldg(reinterpret_cast<const long long*>(p));
}
MK_INLINE mk_word4 mk_load_immutable16(const void* p) {  // 16 bytes aligned
  mk_word4 x;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"  // mk_load_immutable16
      : "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3])
      : "l"(p));
  return x;
}
MK_INLINE void mk_prefetch(const void* p) {  // 128 bytes, to the L2 cache
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
MK_INLINE void mk_prefetch(const void* p, int bytes) {  // likewise, a multiple of 16
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}
#else
MK_INLINE void mk_prefetch(const void*, int) {}
#endif
MK_INLINE float mk_load_coherent(const float* p) {
  float x;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(p) : "memory");
  return x;
}
MK_INLINE int32_t mk_load_coherent(const int32_t* p) {
  int32_t x;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}
MK_INLINE mk_float4 mk_load_coherent4(const float* p) {  // 16 bytes aligned
  mk_float4 x;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.v[0]), "=f"(x.v[1]), "=f"(x.v[2]), "=f"(x.v[3])
               : "l"(p)
               : "memory");
  return x;
}
MK_INLINE mk_word4 mk_load_coherent16(const void* p) {  // 16 bytes aligned
  mk_word4 x;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3])
               : "l"(p)
               : "memory");
  return x;
}
template <class T>
MK_INLINE void mk_store(T* p, T x) {
  *p = x;
}
// What may be flagged: others read it while it is written, word by word.
MK_INLINE void mk_store(float* p, float x) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p), "f"(x) : "memory");
}
MK_INLINE void mk_store(int32_t* p, int32_t x) {
  asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
MK_INLINE void mk_store(mk_word2* p, mk_word2 x) {  // 8 bytes aligned
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(x.v[0]), "r"(x.v[1])
               : "memory");
}
MK_INLINE void mk_store(mk_float4* p, mk_float4 x) {  // 16 bytes aligned
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(x.v[0]),
               "f"(x.v[1]), "f"(x.v[2]), "f"(x.v[3])
               : "memory");
}

// Flagged memory: until it is written in this step, each word is -2, a NaN that no arithmetic gives.
// Reading it is an ordinary coherent read that says by itself whether it came too early.
MK_INLINE void mk_load_flagged(float& x, const float* p) { x = mk_load_coherent(p); }
MK_INLINE void mk_load_flagged(mk_float4& x, const float* p) { x = mk_load_coherent4(p); }
MK_INLINE void mk_load_flagged(int32_t& x, const int32_t* p) { x = mk_load_coherent(p); }
MK_INLINE bool mk_unwritten(int32_t x) { return x == -2; }
MK_INLINE bool mk_unwritten(float x) { return mk_unwritten(__float_as_int(x)); }
MK_INLINE bool mk_unwritten(const mk_float4& x) {  // any of them
  return mk_unwritten(x.v[0]) || mk_unwritten(x.v[1]) || mk_unwritten(x.v[2]) || mk_unwritten(x.v[3]);
}

// The running thread's background copies (cp.async) have ended.
MK_INLINE void mk_drain_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Waiting. A wait ends, false, when the step's abort flag is up or its time is over; then it raises
// the flag itself.

struct MkWatch {
  int32_t* abort;
  int64_t limit_ns;
};
// What waits do that are not over at once is called, from one place each: the code around them is
// short then, and has the registers.
// When a wait that lasts `since` then, or from now if that is 0, began; -1 if it has lasted too long.
MK_DEVICE __noinline__ int64_t mk_waited(int32_t* abort, int64_t limit_ns, int64_t since) {
  if (mk_load_coherent(abort) != 0) return -1;
  const int64_t now = mk_now_ns();
  if (since == 0) return now;
  if (now - since <= limit_ns) return since;
  atomicExch(abort, 1);
  return -1;
}
MK_DEVICE inline bool mk_expired(const MkWatch& watch, int64_t& since) {
  since = mk_waited(watch.abort, watch.limit_ns, since);
  return since < 0;
}
// True once (int32)(counter - wanted) >= 0; all that was released before is visible then.
MK_DEVICE inline bool mk_wait_counter(const int32_t* counter, int32_t wanted, const MkWatch& watch,
                                      int32_t& seen) {
  int64_t since = 0;
  for (uint32_t tries = 1;; tries++) {  // relaxed looks and a fence behind them take 0.6 us longer
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    if (static_cast<int32_t>(static_cast<uint32_t>(seen) - static_cast<uint32_t>(wanted)) >= 0)
      return true;
    if (tries % 64 == 0 && mk_expired(watch, since)) return false;
  }
}
// Between two looks at flagged words, of which one was not written: whether to look again.
struct mk_glance {};
MK_INLINE mk_glance mk_glance_first() { return {}; }
MK_DEVICE inline bool mk_look_again(mk_glance&, uint32_t tries, int64_t& since, const MkWatch& watch) {
  return tries % 64 || !mk_expired(watch, since);
}
MK_INLINE void mk_signal_counter(int32_t* counter, int32_t amount) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(amount) : "memory");
}

// Barriers in shared memory that count arrivals (and bytes of the ring); phases alternate.

MK_INLINE void mk_barrier_init(mk_barrier* b, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(mk_shared_address(b)), "r"(arrivals)
               : "memory");
}
MK_INLINE void mk_barrier_arrive(mk_barrier* b) {
  asm volatile("{\n.reg .b64 s;\nmbarrier.arrive.shared.b64 s, [%0];\n}" ::"r"(mk_shared_address(b))
               : "memory");
}
#if __CUDA_ARCH__ >= 900
#define MK_BARRIER_TRIES 32  // between two looks at the clock; a try sleeps for a while
#else
#define MK_BARRIER_TRIES 1024
#endif
MK_INLINE bool mk_barrier_test_at(uint32_t b, int parity) {
  uint32_t over;
  asm volatile(
      "{\n.reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
#else
      "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
#endif
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(over)
      : "r"(b), "r"(parity)
      : "memory");
  return over != 0;
}
MK_INLINE bool mk_barrier_test(mk_barrier* b, int parity) {
  return mk_barrier_test_at(mk_shared_address(b), parity);
}
MK_DEVICE __noinline__ int mk_barrier_wait_on(uint32_t b, int parity, int32_t* abort,
                                               int64_t limit_ns) {
  const MkWatch watch = {abort, limit_ns};
  int64_t since = 0;
  for (uint32_t tries = 1; !mk_barrier_test_at(b, parity); tries++)
    if (tries % MK_BARRIER_TRIES == 0 && mk_expired(watch, since)) return 0;
  return 1;
}
// True once the phase of this parity is over; a fresh barrier's phase 1 is.
MK_INLINE bool mk_barrier_wait(mk_barrier* b, int parity, const MkWatch& watch) {
  return mk_barrier_wait_on(mk_shared_address(b), parity, watch.abort, watch.limit_ns) != 0;
}
// Copies that were begun always end: needs no limit.
MK_DEVICE inline void mk_ring_drain(mk_barrier* full, int parity) {
  while (!mk_barrier_test(full, parity)) {
  }
}

// The ring: one warp copies immutable bytes into shared memory, and a barrier tells when they are
// there. For each fill: mk_ring_expect, any number of mk_ring_copy, mk_ring_end, by all lanes.

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define MK_RING_ARRIVALS 1  // of the barrier in a phase: the one that expects the bytes
MK_INLINE void mk_fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Orders this thread's ordinary accesses to shared memory with the copy engine's.
MK_INLINE void mk_fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
MK_INLINE uint64_t mk_ring_policy() {  // streamed bytes leave the L2 cache first
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
MK_INLINE void mk_ring_expect(mk_barrier* full, int bytes) {
  if (mk_lane() == 0)
    asm volatile("{\n.reg .b64 s;\nmbarrier.arrive.expect_tx.shared.b64 s, [%0], %1;\n}" ::"r"(
                     mk_shared_address(full)),
                 "r"(bytes)
                 : "memory");
  __syncwarp();
}
// One copy of a single lane.
MK_INLINE void mk_ring_copy(mk_barrier* full, char* to, const void* from, int bytes,
                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(mk_shared_address(to)),
      "l"(from), "r"(bytes), "r"(mk_shared_address(full)), "l"(policy)
      : "memory");
}
MK_INLINE void mk_ring_end(mk_barrier*) {}
// Whether mk_ring_box copies from matrices with rows of so many bytes.
MK_INLINE bool mk_has_box(int row_bytes) { return row_bytes % 128 == 0; }
// One copy of a single lane: 8 rows of a matrix, from `row` and 128 byte block `block` on, as wide as
// its tensor map says. Rows and blocks behind the last come as zeros, and count.
MK_INLINE void mk_ring_box(mk_barrier* full, char* to, const char* map, int block, int row,
                           uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(mk_shared_address(to)),
      "l"(map), "r"(0), "r"(row), "r"(block), "r"(mk_shared_address(full)), "l"(policy)
      : "memory");
}
#else
#define MK_RING_ARRIVALS 32  // each lane's own copies
MK_INLINE void mk_fence_barrier_init() {}
MK_INLINE void mk_fence_async() {}
MK_INLINE uint64_t mk_ring_policy() { return 0; }
MK_INLINE void mk_ring_expect(mk_barrier*, int) {}
MK_INLINE void mk_ring_copy(mk_barrier*, char* to, const void* from, int bytes, uint64_t) {
  for (int at = 0; at < bytes; at += 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(mk_shared_address(to + at)),
                 "l"(static_cast<const char*>(from) + at)
                 : "memory");
}
MK_INLINE bool mk_has_box(int) { return false; }
MK_INLINE void mk_ring_box(mk_barrier*, char*, const char*, int, int, uint64_t) {}
MK_INLINE void mk_ring_end(mk_barrier* full) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(mk_shared_address(full))
               : "memory");
}
#endif
