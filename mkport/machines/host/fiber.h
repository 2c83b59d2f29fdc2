// Fibers: a stack and a saved stack pointer each, switched by a few instructions. Nothing here
// knows about warps or barriers.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

// A file that is not checked itself may run code that is: MK_BESIDE_ADDRESS.
#if defined(__SANITIZE_ADDRESS__) || defined(MK_BESIDE_ADDRESS)
#include <sanitizer/common_interface_defs.h>
#define MK_ASAN 1
#else
#define MK_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define MK_TSAN 1
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#else
#define MK_TSAN 0
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

namespace mk_host {

// ThreadSanitizer is told of what orders two lanes' accesses on a GPU, and of nothing else: `leaving`
// and `entered` of what they meet at. What this build does for itself is Quiet.
#if MK_TSAN
inline void leaving(const void* place) { __tsan_release(const_cast<void*>(place)); }
inline void entered(const void* place) { __tsan_acquire(const_cast<void*>(place)); }
struct Quiet {
  Quiet() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Quiet() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
};
#else
inline void leaving(const void*) {}
inline void entered(const void*) {}
struct Quiet {
  Quiet() {}
};
#endif

#ifndef MK_STACK_KB
#define MK_STACK_KB (MK_ASAN ? 256 : 64)
#endif
constexpr size_t kStack = size_t(MK_STACK_KB) << 10;         // bytes; touched pages only are used
constexpr uint64_t kCanary = 0x6d6b706f72742121;           // at a stack's end: it was not overrun

struct Fiber {
  char* stack = nullptr;
#if defined(__x86_64__) || defined(__aarch64__)
  void* sp = nullptr;
#else
  ucontext_t context;
#endif
  void* fake = nullptr;  // AddressSanitizer's own stack of this fiber
  void* known = nullptr;  // as what ThreadSanitizer knows it
};

#if defined(__x86_64__)
// Saves the registers that a call preserves on the running stack, and takes another's.
__asm__(R"(
.text
.local mk_switch_stack
.type mk_switch_stack, @function
mk_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mk_switch_stack, .-mk_switch_stack
)");
constexpr int kSaved = 6;  // words below the return address
#elif defined(__aarch64__)
__asm__(R"(
.text
.local mk_switch_stack
.type mk_switch_stack, %function
mk_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size mk_switch_stack, .-mk_switch_stack
)");
#endif
#if defined(__x86_64__) || defined(__aarch64__)
extern "C" void mk_switch_stack(void** save, void* take);
#endif

// Makes a fiber that starts in `entry`, which must never return.
inline void prepare(Fiber& fiber, char* stack, void (*entry)()) {
  fiber.stack = stack;
  memcpy(stack, &kCanary, sizeof kCanary);
#if MK_TSAN
  fiber.known = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
  void** top = reinterpret_cast<void**>(stack + kStack) - 2;  // 16-byte aligned return address
  *top = reinterpret_cast<void*>(entry);
  fiber.sp = top - kSaved;
#elif defined(__aarch64__)
  void** top = reinterpret_cast<void**>(stack + kStack) - 20;
  top[11] = reinterpret_cast<void*>(entry);  // x30
  fiber.sp = top;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = kStack;
  makecontext(&fiber.context, entry, 0);
#endif
}

inline bool overrun(const Fiber& fiber) {
  return memcmp(fiber.stack, &kCanary, sizeof kCanary) != 0;
}

// Leaves `from` and continues `to`; `last` when `from` will never be continued.
inline void switch_fiber(Fiber& from, Fiber& to, bool last = false) {
#if MK_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake, to.stack, to.stack ? kStack : 0);
#else
  (void)last;
#endif
#if MK_TSAN
  __tsan_switch_to_fiber(to.known, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  mk_switch_stack(&from.sp, to.sp);
#else
  swapcontext(&from.context, &to.context);
#endif
#if MK_ASAN
  __sanitizer_finish_switch_fiber(from.fake, nullptr, nullptr);
#endif
}

}  // namespace mk_host
