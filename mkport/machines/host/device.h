// The primitives of mkport/machines/cuda/device.cuh for an ordinary C++ compiler: the same names,
// each doing on fibers what the GPU does. Built with -DMK_HOST and included before a CUDA file.
#pragma once
#include <math.h>

#include <tuple>
#include <utility>

#include "world.h"

#define MK_DEVICE
#define MK_INLINE inline
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

typedef uint16_t mk_bf16;
typedef uint64_t mk_barrier;
struct alignas(8) mk_float2 {
  float v[2];
};
struct alignas(16) mk_float4 {
  float v[4];
};
struct alignas(8) mk_word2 {
  uint32_t v[2];
};
struct alignas(16) mk_word4 {
  uint32_t v[4];
};

// Who am I.

inline int mk_thread() { return mk_host::warp->index * 32 + mk_host::lane; }
inline int mk_thread_here() { return mk_thread(); }
inline int mk_warp() { return mk_host::warp->index; }
inline int mk_lane() { return mk_host::lane; }
inline int mk_worker() { return mk_host::world->first_block + mk_host::warp->worker; }
inline char* mk_shared() { return mk_host::world->workers[mk_host::warp->worker].shared; }
inline int64_t mk_now_ns() {  // counts its reads
  mk_host::Quiet quiet;
  return ++mk_host::world->ticks;
}

// Arithmetic.

inline float mk_float(int32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline int32_t mk_bits(float x) {
  int32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
inline int mk_count_bits(uint32_t x) { return __builtin_popcount(x); }
inline float mk_widen(mk_bf16 h) { return mk_float(int32_t(uint32_t(h) << 16)); }
inline mk_bf16 mk_narrow(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;  // NaN, as a GPU has it
  return mk_bf16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline uint32_t mk_narrow2(float low, float high) {
  return mk_narrow(low) | uint32_t(mk_narrow(high)) << 16;
}
inline float mk_fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float mk_add(float x, float y) { return x + y; }
inline float mk_mul(float x, float y) { return x * y; }
inline float mk_div(float x, float y) { return x / y; }
inline float mk_sqrt(float x) { return sqrtf(x); }
inline float mk_max(float x, float y) { return fmaxf(x, y); }
inline float mk_exp2(float x) {
  const float y = exp2f(x);
  return y < 1.17549435e-38f ? 0.0f : y;
}

// Each output: its 16 products, exact in float32, added one after another in the order of k.
inline void mk_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Given {
    float* d;
    const uint32_t* a;
    uint32_t b[2];
  } given{d, a, {b0, b1}};
  mk_host::meet("mma", &given, [](void** all) {
    float wide_a[16][16], wide_b[16][8];
    for (int lane = 0; lane < 32; lane++) {
      const Given& g = *static_cast<Given*>(all[lane]);
      const int row = lane / 4, at = lane % 4 * 2;
      for (int part = 0; part < 4; part++)
        for (int half = 0; half < 2; half++)
          wide_a[row + part % 2 * 8][at + part / 2 * 8 + half] =
              mk_widen(mk_bf16(g.a[part] >> 16 * half));
      for (int part = 0; part < 2; part++)
        for (int half = 0; half < 2; half++)
          wide_b[at + part * 8 + half][row] = mk_widen(mk_bf16(g.b[part] >> 16 * half));
    }
    float sums[16][8];
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++)
        sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = static_cast<Given*>(all[lane])->d[i];
    for (int row = 0; row < 16; row++)
      for (int k = 0; k < 16; k++)
        for (int token = 0; token < 8; token++)
          sums[row][token] += wide_a[row][k] * wide_b[k][token];
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++)
        static_cast<Given*>(all[lane])->d[i] = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  });
}

inline void mk_load_matrix4(uint32_t (&m)[4], const void* row) {
  struct Given {
    uint32_t* m;
    const char* row;
  } given{m, static_cast<const char*>(row)};
  if (reinterpret_cast<uintptr_t>(row) % 16) mk_host::fault("a matrix row is not 16 bytes aligned");
  mk_host::meet("load_matrix4", &given, [](void** all) {
    for (int lane = 0; lane < 32; lane++)
      for (int part = 0; part < 4; part++)
        memcpy(&static_cast<Given*>(all[lane])->m[part],
               static_cast<Given*>(all[part * 8 + lane / 4])->row + lane % 4 * 4, 4);
  });
}

inline uint32_t mk_transpose(uint32_t pair) {
  struct Given {
    uint32_t pair, turned;
  } given{pair, 0};
  mk_host::meet("transpose", &given, [](void** all) {
    for (int lane = 0; lane < 32; lane++) {  // column c of a row is in lane 4 row + c / 2
      const int row = lane / 4, at = lane % 4 * 2;
      uint32_t turned = 0;
      for (int half = 0; half < 2; half++) {
        const uint32_t pair = static_cast<Given*>(all[(at + half) * 4 + row / 2])->pair;
        turned |= (pair >> row % 2 * 16 & 0xffff) << half * 16;
      }
      static_cast<Given*>(all[lane])->turned = turned;
    }
  });
  return given.turned;
}
inline void mk_load_turned4(uint32_t (&m)[4], const void* row) {
  mk_load_matrix4(m, row);
  for (uint32_t& pair : m) pair = mk_transpose(pair);
}

// Within a warp.

inline void mk_sync_warp() {
  mk_host::leaving(mk_host::warp);
  mk_host::meet("sync_warp", nullptr, [](void**) {});
  mk_host::entered(mk_host::warp);
}
template <class T>
T mk_exchange(const char* name, T x, int lane) {
  struct Given {
    T x, got;
    int lane;
  } given{x, 0, lane};
  mk_host::meet(name, &given, [](void** all) {
    for (int i = 0; i < 32; i++) {
      Given& g = *static_cast<Given*>(all[i]);
      g.got = static_cast<Given*>(all[g.lane & 31])->x;
    }
  });
  return given.got;
}
inline float mk_shuffle(float x, int lane) { return mk_exchange("shuffle", x, lane); }
inline int32_t mk_shuffle(int32_t x, int lane) { return mk_exchange("shuffle", x, lane); }
inline int64_t mk_shuffle(int64_t x, int lane) { return mk_exchange("shuffle", x, lane); }
inline float mk_shuffle_xor(float x, int mask) {
  return mk_exchange("shuffle_xor", x, mk_lane() ^ mask);
}
inline int32_t mk_shuffle_xor(int32_t x, int mask) {
  return mk_exchange("shuffle_xor", x, mk_lane() ^ mask);
}
inline bool mk_warp_any(bool p) {
  struct Given {
    bool p, any;
  } given{p, false};
  mk_host::meet("warp_any", &given, [](void** all) {
    bool any = false;
    for (int i = 0; i < 32; i++) any |= static_cast<Given*>(all[i])->p;
    for (int i = 0; i < 32; i++) static_cast<Given*>(all[i])->any = any;
  });
  return given.any;
}
inline float mk_warp_sum(float x) {
  for (int mask = 16; mask; mask /= 2) x = x + mk_shuffle_xor(x, mask);
  return x;
}
inline float mk_warp_max(float x) {
  for (int mask = 16; mask; mask /= 2) x = fmaxf(x, mk_shuffle_xor(x, mask));
  return x;
}
template <bool LARGEST>
uint32_t mk_extreme(const char* name, uint32_t x) {
  mk_host::meet(name, &x, [](void** all) {
    uint32_t best = *static_cast<uint32_t*>(all[0]);
    for (int i = 1; i < 32; i++) {
      const uint32_t other = *static_cast<uint32_t*>(all[i]);
      if (LARGEST ? other > best : other < best) best = other;
    }
    for (int i = 0; i < 32; i++) *static_cast<uint32_t*>(all[i]) = best;
  });
  return x;
}
inline uint32_t mk_warp_max(uint32_t x) { return mk_extreme<true>("warp_max", x); }
inline uint32_t mk_warp_min(uint32_t x) { return mk_extreme<false>("warp_min", x); }

// Within a block.

inline bool mk_barrier_any(int id, int threads, bool p) {
  mk_host::Quiet quiet;
  mk_host::Named& n = mk_host::world->workers[mk_host::warp->worker].named[id];
  mk_host::leaving(&n);
  if (n.met && n.threads != threads)
    mk_host::fault("named barrier %d is met by %d threads here, by %d elsewhere", id, threads,
                   n.threads);
  n.threads = threads;
  n.any = p || (n.met && n.any);
  if (++n.met == threads) {
    n.result = n.any;
    n.met = 0;
    n.generation++;
    mk_host::entered(&n);
    return n.result;
  }
  mk_host::Lane& l = mk_host::self();
  l.wait = mk_host::Wait::named;
  l.id = id;
  l.generation = n.generation;
  mk_host::leave();
  mk_host::entered(&n);
  return n.result;
}
inline void mk_named_barrier(int id, int threads) { mk_barrier_any(id, threads, false); }
inline void mk_sync_block() { mk_barrier_any(0, mk_host::world->threads, false); }
inline void mk_set_bits(uint32_t* word, uint32_t bits) {
  mk_host::Quiet quiet;
  *word |= bits;
}

inline int32_t mk_take(int32_t* p, int32_t x) {
  mk_host::maybe_leave();
  mk_host::Quiet quiet;
  const int32_t old = *p;
  *p = old + x;
  return old;
}

// Global memory.

template <class T>
T mk_load_immutable(const T* p) {
  return *p;
}
template <class T>
T mk_load_coherent(const T* p) {
  mk_host::maybe_leave();
  return *p;
}
inline mk_float4 mk_load_coherent4(const float* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16) mk_host::fault("four floats are not 16 bytes aligned");
  mk_float4 x;
  mk_host::maybe_leave();
  memcpy(&x, p, sizeof x);
  return x;
}
inline mk_word4 mk_load_immutable16(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16) mk_host::fault("16 bytes are not 16 bytes aligned");
  mk_word4 x;
  memcpy(&x, p, sizeof x);
  return x;
}
inline void mk_prefetch(const void*) {}
inline void mk_prefetch(const void*, int) {}
inline mk_word4 mk_load_coherent16(const void* p) {
  mk_host::maybe_leave();
  return mk_load_immutable16(p);
}
inline bool mk_unwritten(int32_t x) { return x == -2; }
// No arithmetic of a GPU leaves an unwritten word; this processor's NaNs may have an operand's bits.
template <class T>
void mk_settle(T&) {}
inline void mk_settle(float& x) {
  if (mk_unwritten(mk_bits(x))) x = mk_float(0x7fffffff);
}
inline void mk_settle(mk_float4& x) {
  for (float& v : x.v) mk_settle(v);
}
template <class T>
void mk_store(T* p, T x) {
  mk_host::maybe_leave();
  mk_settle(x);
  *p = x;
  mk_host::Quiet quiet;
  mk_host::world->stores++;
  for (size_t i = 0; i < sizeof(T) / 4; i++) mk_host::leaving(reinterpret_cast<int32_t*>(p) + i);
}

// Flagged memory: whoever reads a word that was written has met its writer.
inline bool mk_unwritten(float x) { return mk_unwritten(mk_bits(x)); }
inline bool mk_unwritten(const mk_float4& x) {
  for (float v : x.v)
    if (mk_unwritten(v)) return true;
  return false;
}
template <class T, class U>
void mk_load_flagged(T& x, const U* p) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) mk_host::fault("flagged words are not aligned");
  mk_host::maybe_leave();
  mk_host::Quiet quiet;
  memcpy(&x, p, sizeof x);
  if (mk_unwritten(x)) return;
  for (size_t i = 0; i < sizeof(T) / 4; i++) mk_host::entered(p + i);
}

// Waiting: bounded by the discovery that nothing can move.

struct MkWatch {
  int32_t* abort;
  int64_t limit_ns;
};
inline bool mk_wait_counter(const int32_t* counter, int32_t wanted, const MkWatch& watch,
                            int32_t& seen) {
  mk_host::Quiet quiet;
  mk_host::Lane& l = mk_host::self();
  l.wait = mk_host::Wait::counter;
  l.where = counter;
  l.wanted = wanted;
  mk_host::leave();
  mk_host::entered(counter);
  seen = *counter;
  if (int32_t(uint32_t(seen) - uint32_t(wanted)) >= 0) return true;
  *watch.abort = 1;
  return false;
}
// Flagged words are looked at again when anybody has stored anything.
typedef uint64_t mk_glance;
inline mk_glance mk_glance_first() { return mk_host::world->stores; }
inline bool mk_look_again(mk_glance& last, uint32_t, int64_t&, const MkWatch& watch) {
  mk_host::Quiet quiet;
  mk_host::Lane& l = mk_host::self();
  l.wait = mk_host::Wait::words;
  l.stores = last;
  mk_host::leave();
  const bool stored = mk_host::world->stores != last;
  last = mk_host::world->stores;
  if (!stored) *watch.abort = 1;
  return stored;
}
inline void mk_signal_counter(int32_t* counter, int32_t amount) {
  mk_host::maybe_leave();
  mk_host::Quiet quiet;
  mk_host::leaving(counter);
  *counter = int32_t(uint32_t(*counter) + uint32_t(amount));
}

inline mk_host::Mbarrier& mk_look(mk_barrier* b) {
  return *reinterpret_cast<mk_host::Mbarrier*>(b);
}
inline void mk_barrier_init(mk_barrier* b, int arrivals) {
  mk_host::Quiet quiet;
  mk_host::Mbarrier& m = mk_look(b);
  m.arrivals = m.pending = arrivals;
  m.bytes = mk_host::kNoBytes;
  m.phase = 0;
  m.alive = m.seen = 1;
}
inline void mk_barrier_arrive(mk_barrier* b) {
  mk_host::maybe_leave();
  mk_host::Quiet quiet;
  mk_host::leaving(b);
  mk_host::Mbarrier& m = mk_look(b);
  if (m.pending == 0) mk_host::fault("an mbarrier was met by more than its %d", int(m.arrivals));
  if (!m.seen && !mk_host::world->aborted)  // a rule of PTX
    mk_host::fault("an mbarrier is met again, but nobody has looked whether its last phase was over");
  m.pending--;
  mk_host::advance(m);
}
inline bool mk_barrier_test(mk_barrier* b, int parity) {
  mk_host::Quiet quiet;
  const bool over = mk_host::look(mk_look(b), parity);
  if (over) mk_host::entered(b);
  return over;
}
inline bool mk_barrier_wait(mk_barrier* b, int parity, const MkWatch&) {
  mk_host::Quiet quiet;
  mk_host::Lane& l = mk_host::self();
  if (mk_barrier_test(b, parity)) {
    mk_host::maybe_leave();
    return true;
  }
  l.wait = mk_host::Wait::mbarrier;
  l.where = b;
  l.id = parity;
  mk_host::leave();
  return mk_barrier_test(b, parity);
}

// The ring.

#define MK_RING_ARRIVALS 1
inline void mk_fence_barrier_init() {}
inline void mk_fence_async() {}
inline uint64_t mk_ring_policy() { return 0; }
inline void mk_ring_expect(mk_barrier* full, int bytes) {
  if (mk_lane() == 0) {
    mk_host::Quiet quiet;
    mk_look(full).bytes += bytes;
    mk_barrier_arrive(full);
  }
  mk_sync_warp();
}
inline void mk_ring_copy(mk_barrier* full, char* target, const void* from, int bytes, uint64_t) {
  const char* source = static_cast<const char*>(from);
  if ((reinterpret_cast<uintptr_t>(target) | reinterpret_cast<uintptr_t>(source) | bytes) % 16)
    mk_host::fault("a ring copy's addresses and size are multiples of 16 bytes");
  memset(target, 0xff, bytes);  // NaN until the copy has ended
  mk_host::Quiet quiet;
  mk_host::leaving(full);
  mk_host::world->workers[mk_host::warp->worker].copies.push_back(
      {target, source, bytes, &mk_look(full)});
}
inline void mk_ring_end(mk_barrier*) {}
// A tensor map here: what the copy engine is told of a matrix.
struct mk_matrix {
  int64_t at, rows, row_bytes, blocks, copied;  // address; bytes of a row; of a copy: 128 bytes, rows
};
inline bool mk_has_box(int row_bytes) { return row_bytes % 128 == 0; }
inline void mk_ring_box(mk_barrier* full, char* to, const char* map, int block, int row, uint64_t) {
  static const char zeros[16] = {};
  mk_matrix m;
  memcpy(&m, map, sizeof m);
  if (reinterpret_cast<uintptr_t>(to) % 1024) mk_host::fault("a box begins at a multiple of 1024");
  if (!m.at) mk_host::fault("a box of a tensor that has no map");
  for (int64_t b = 0; b < m.blocks; b++)
    for (int64_t r = 0; r < m.copied; r++)
      for (int64_t v = 0; v < 8; v++) {
        const int64_t at = (block + b) * 128 + v * 16;
        const bool there = row + r < m.rows && at < m.row_bytes;
        const char* from = reinterpret_cast<const char*>(m.at) + (row + r) * m.row_bytes + at;
        mk_ring_copy(full, to + (b * m.copied + r) * 128 + (v ^ r % 8) * 16, there ? from : zeros, 16, 0);
      }
}
inline void mk_ring_drain(mk_barrier* full, int parity) {
  mk_host::Quiet quiet;
  while (!mk_host::over(mk_look(full), parity)) {
    mk_host::world->preempted = true;
    mk_host::leave();
  }
}

// What names.h is written in.

inline void mk_meet(unsigned mask, const char* what, int line, void* given, mk_host::Act act) {
  mk_host::meet_some(mask, what, line, given, act);
}
inline void mk_may_leave() { mk_host::maybe_leave(); }
inline unsigned mk_present() { return mk_host::warp->present; }
inline void mk_junk(void* to, size_t bytes) { memset(to, 0xff, bytes); }
inline void mk_atomic(void*, size_t, bool, int) {}
inline long long mk_ticks() { return mk_now_ns(); }
[[noreturn]] inline void mk_fault(const char* what) { mk_host::fault("%s", what); }
inline void mk_product16(float* d, const unsigned* a, unsigned b0, unsigned b1) {
  mk_mma(*reinterpret_cast<float(*)[4]>(d), *reinterpret_cast<const unsigned(*)[4]>(a), b0, b1);
}
inline void mk_matrix4(unsigned* m, const void* row) {
  mk_load_matrix4(*reinterpret_cast<unsigned(*)[4]>(m), row);
}
inline unsigned mk_turned8(unsigned pair) { return mk_transpose(pair); }

// A thread's own copies in the background, of 4, 8 or 16 bytes, of which the first `there` are those
// at `from` and the rest zeros: NaN until they are waited for.
inline void mk_copy_later(void* to, const void* from, int bytes, int there) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes)
    mk_host::fault("a copy of %d bytes in the background needs addresses that are multiples of that",
                   bytes);
  memset(to, 0xff, bytes);
  mk_host::Lane& l = mk_host::self();
  there = there < bytes ? there : bytes;
  l.pending.push_back({static_cast<char*>(to), static_cast<const char*>(from), l.group, bytes, there});
}
inline void mk_end_copies() { mk_host::self().group++; }
inline void mk_wait_copies(int groups) {  // until at most so many groups are under way
  mk_host::Lane& l = mk_host::self();
  size_t done = 0;
  while (done < l.pending.size() && l.pending[done].group < l.group - groups) {
    const mk_host::Pending& p = l.pending[done++];
    memcpy(p.to, p.from, p.there);
    memset(p.to + p.there, 0, p.bytes - p.there);
  }
  l.pending.erase(l.pending.begin(), l.pending.begin() + done);
}
inline void mk_drain_copies() {
  mk_end_copies();
  mk_wait_copies(0);
}

// The way in: MK_HOST_ENTRY(kernel) defines host_<kernel>, which takes pointers to the arguments.

namespace mk_host {
template <class... A, size_t... I>
void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
  kernel(*static_cast<A*>(args[I])...);
}
template <class... A>
void call(void (*kernel)(A...), void** args) {
  call(kernel, args, std::index_sequence_for<A...>());
}
}  // namespace mk_host
#define MK_HOST_ENTRY(kernel)                                                                   \
  extern "C" int host_##kernel(void** args, int blocks, int together, int threads,              \
                               uint64_t seed, char* shared, int64_t shared_bytes, char* message, \
                               int64_t size) {                                                  \
    return mk_host::launch([](void** a) { mk_host::call(kernel, a); }, args, blocks, together,   \
                           threads, seed, shared, shared_bytes, message, size);                 \
  }
