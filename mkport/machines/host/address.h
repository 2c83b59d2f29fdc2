// AddressSanitizer in place of the watch: what lies around and between a kernel's arrays is
// poisoned, and the first thing that the compiler's checks report is a finding and ends the run.
// It knows no races and no order, but every variable: arrays of one thread, constants, what is gone.
#pragma once
#include <sanitizer/asan_interface.h>
#include <unistd.h>

#include "watch.h"

namespace mk_address {

// Everything between buffers is nobody's.
inline void close_arena() {
  __asan_poison_memory_region(reinterpret_cast<void*>(mk_watch::arena), mk_watch::arena_bytes);
  for (const mk_watch::Region& r : mk_watch::regions)
    if (!r.shared) __asan_unpoison_memory_region(reinterpret_cast<void*>(r.start), r.bytes);
}
inline void open_shared() {
  __asan_unpoison_memory_region(reinterpret_cast<void*>(mk_watch::tls), mk_watch::tls_bytes);
}
inline void close_shared() {
  __asan_poison_memory_region(reinterpret_cast<void*>(mk_watch::tls), mk_watch::tls_bytes);
  for (const mk_watch::Region& r : mk_watch::regions)
    if (r.shared) __asan_unpoison_memory_region(reinterpret_cast<void*>(r.start), r.bytes);
}

// What the file itself has, by the words of a report; "" for what came from elsewhere.
inline std::string own(const char* description) {
  static const char* const kKinds[][2] = {
      {"stack-buffer", "an array of its own"},
      {"dynamic-stack", "an array of its own"},
      {"stack-use", "a variable of its own that is gone"},
      {"global", "an array of the file"}};
  for (const auto& kind : kKinds)
    if (strstr(description, kind[0])) return kind[1];
  return "";
}
inline std::string whose(uintptr_t p, const char* description) {
  if (p - mk_watch::tls < mk_watch::tls_bytes) return "an array in shared memory";
  if (const mk_watch::Region* r = mk_watch::region_of(p)) return r->name;
  return description;
}

inline void outside(uintptr_t p, size_t bytes, bool write, uint32_t pc, int line,
                    const char* description) {
  const std::string mine = own(description);
  char text[240];
  snprintf(text, sizeof text, " %s %ld bytes outside of %s", write ? "writes" : "reads",
           long(bytes), mine.empty() ? whose(p, description).c_str() : mine.c_str());
  const std::string who =
      mk_host::warp ? mk_watch::who(mk_watch::block, mk_watch::me()) : "the machine";
  mk_watch::report(mine.empty() ? "out of bounds" : "outside", pc, 0, line, true, who + text + " (AddressSanitizer)");
  _exit(3);
}

// Accesses that the machine makes for a kernel.
inline void touch(const void* at, size_t bytes, bool write, uint32_t pc, bool = true) {
  if (void* bad = __asan_region_is_poisoned(const_cast<void*>(at), bytes))
    outside(reinterpret_cast<uintptr_t>(bad), bytes, write, pc, 0, "");
}
inline void touch_atomic(const void* at, size_t bytes, bool, int line) {
  if (void* bad = __asan_region_is_poisoned(const_cast<void*>(at), bytes))
    outside(reinterpret_cast<uintptr_t>(bad), bytes, true, 0, line, "");
}

}  // namespace mk_address

extern "C" {
const char* __asan_default_options() {
  return "detect_leaks=0:abort_on_error=0:halt_on_error=1:allow_user_segv_handler=1:exitcode=9:"
         "detect_stack_use_after_return=0";
}
// Called at the first report, before it is printed.
void __asan_on_error() {
  mk_address::outside(reinterpret_cast<uintptr_t>(__asan_get_report_address()),
                      __asan_get_report_access_size(), __asan_get_report_access_type(),
                      uint32_t(reinterpret_cast<uintptr_t>(__asan_get_report_pc())), 0,
                      __asan_get_report_description());
}
}
