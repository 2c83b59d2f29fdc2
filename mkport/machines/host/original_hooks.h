// What a checked kernel calls: what original.h declares, the compiler's checks of undefined behaviour,
// and the hooks of its loads and stores. The program of original kernels is this file; what runs
// them is in original_run.h.
#pragma once
#include "original_run.h"

#if MK_ASAN
namespace mk_checks = mk_address;
#else
namespace mk_checks = mk_watch;
#endif

// What the compiler's checks of undefined behaviour call: each hands over the place first.
namespace mk_run {

struct Place {
  const char* file;
  uint32_t line, column;
};

inline void undefined(const Place* place, const char* kind, const char* what, bool fatal) {
  if (!mk_host::world || !mk_host::warp) return;
  mk_watch::report(kind, 0, 0, place->line, fatal,
                   mk_watch::who(mk_watch::block, mk_watch::me()) + " " + what);
}

}  // namespace mk_run

#define MK_UNDEFINED(name, kind, what, fatal)                          \
  void __ubsan_handle_##name(mk_run::Place* place, void*, void*) {     \
    mk_run::undefined(place, kind, what, fatal);                       \
  }
#define MK_UNDEFINED_END(name, what)                                     \
  [[noreturn]] void __ubsan_handle_##name(mk_run::Place* place) {        \
    mk_run::undefined(place, "crash", what, true);                       \
    _exit(4);                                                            \
  }
extern "C" {
MK_UNDEFINED(out_of_bounds, "outside", "takes an element that its array does not have", true)
MK_UNDEFINED(shift_out_of_bounds, "arithmetic", "shifts by as many bits as there are, or more", false)
MK_UNDEFINED(add_overflow, "arithmetic", "adds beyond what a signed integer holds", false)
MK_UNDEFINED(sub_overflow, "arithmetic", "subtracts beyond what a signed integer holds", false)
MK_UNDEFINED(mul_overflow, "arithmetic", "multiplies beyond what a signed integer holds", false)
MK_UNDEFINED(divrem_overflow, "arithmetic", "divides the least signed integer by -1", false)
MK_UNDEFINED(negate_overflow, "arithmetic", "negates beyond what a signed integer holds", false)
MK_UNDEFINED_END(builtin_unreachable, "comes where its text says that nothing comes")
MK_UNDEFINED_END(missing_return, "ends a function with a result and returns none")
}

#define MK_PC uint32_t(reinterpret_cast<uintptr_t>(__builtin_return_address(0)))
extern "C" {
int mko_lane() { return mk_lane(); }
void mko_meet(unsigned mask, const char* what, int line, void* given, mk_host::Act act) {
  mk_host::meet_some(mask, what, line, given, act);
}
void mko_may_leave() { mk_host::maybe_leave(); }
unsigned mko_present() { return mk_present(); }
void mko_junk(void* to, size_t bytes) { mk_run::fill_junk(to, bytes, mk_run::run_number); }
void mko_atomic(void* p, size_t bytes, bool order_matters, int line) {
  mk_checks::touch_atomic(p, bytes, order_matters, line);
}
long long mko_ticks() { return mk_now_ns(); }
void mko_fault(const char* what) { mk_fault(what); }
void mko_product16(float* d, const unsigned* a, unsigned b0, unsigned b1) {
  mk_product16(d, a, b0, b1);
}
void mko_matrix4(unsigned* m, const void* row) {
  mk_checks::touch(row, 16, false, MK_PC);
  mk_matrix4(m, row);
}
unsigned mko_turned8(unsigned pair) { return mk_turned8(pair); }
void mko_copy_later(void* to, const void* from, int bytes, int there) {
  if (there > 0) mk_checks::touch(from, there < bytes ? there : bytes, false, MK_PC);
  mk_checks::touch(to, bytes, true, MK_PC);
  mk_copy_later(to, from, bytes, there);
  mk_watch::begin_copy(mk_host::self().pending.back(), MK_PC);
}
void mko_end_copies() { mk_end_copies(); }
void mko_wait_copies(int groups) {
  const mk_host::Lane& l = mk_host::self();
  for (const mk_host::Pending& p : l.pending)
    if (p.group < l.group - groups) {
      mk_watch::end_copy(p);
      mk_checks::touch(p.to, p.bytes, true, MK_PC);
    }
  mk_wait_copies(groups);
}
MkIndex3 mko_index(int which) {
  const mk_run::Launch& l = *mk_run::launch;
  const unsigned t = mk_watch::me();
  if (which == 0)
    return {t % l.block[0], t / l.block[0] % l.block[1], t / l.block[0] / l.block[1]};
  if (which == 1) return mk_run::block_index;
  const auto& size = which == 2 ? l.block : l.grid;
  return {size[0], size[1], size[2]};
}
MkSync mko_sync(int p, int line) {
  mk_run::Sync& s = mk_run::sync_state;
  const int t = mk_watch::me();
  s.line[t] = line;
  s.count[t]++;
  s.given.any |= p != 0;
  s.given.all &= p != 0;
  s.given.count += p != 0;
  if (++s.met == s.live) {
    mk_run::release();
    return s.result;
  }
  mk_host::self().wait = mk_host::Wait::meeting;
  mk_host::self().where = &s.generation;
  mk_host::self().generation = s.generation;
  mk_host::leave();
  return s.result;
}

#define MK_HOOKS(bytes)                                                                          \
  void __tsan_read##bytes(void* p) { mk_checks::touch(p, bytes, false, MK_PC); }                  \
  void __tsan_write##bytes(void* p) { mk_checks::touch(p, bytes, true, MK_PC); }                  \
  void __tsan_unaligned_read##bytes(void* p) { mk_checks::touch(p, bytes, false, MK_PC, false); } \
  void __tsan_unaligned_write##bytes(void* p) { mk_checks::touch(p, bytes, true, MK_PC, false); } \
  void __tsan_volatile_read##bytes(void* p) {                                                    \
    mk_checks::touch(p, bytes, false, MK_PC);                                                     \
    mk_host::maybe_leave();                                                                      \
  }                                                                                              \
  void __tsan_volatile_write##bytes(void* p) { mk_checks::touch(p, bytes, true, MK_PC); }
MK_HOOKS(1)
MK_HOOKS(2)
MK_HOOKS(4)
MK_HOOKS(8)
MK_HOOKS(16)
void __tsan_read_range(void* p, size_t bytes) { mk_checks::touch(p, bytes, false, MK_PC, false); }
void __tsan_write_range(void* p, size_t bytes) { mk_checks::touch(p, bytes, true, MK_PC, false); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
}

int main(int, char** args) { return mk_run::main_of(args[1], args[2], args[3], args[4]); }
