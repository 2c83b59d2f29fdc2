// What watches an original kernel's memory: for each cell who wrote and read it last, and so races,
// reads of what nobody wrote, and accesses out of bounds or not aligned. Findings are lines of text
// in memory that outlives the process.
#pragma once
#include <unordered_map>
#include <unordered_set>

#include "world.h"

namespace mk_watch {

constexpr size_t kLog = 1 << 20;
constexpr uint16_t kAtomic = 0xffff;  // as a thread: an atomic, which races with nobody

struct Access {
  uint32_t block = 0;  // counted over all launches from 1; 0: never
  uint32_t epoch = 0;  // block-wide barriers before it
  uint32_t clock = 0;  // meetings of its lane in the warp before it
  uint32_t pc = 0;
  uint16_t thread = 0;
};
struct Cell {
  Access write, read[2];
};

// A stretch of memory that kernels may touch.
struct Region {
  uintptr_t start = 0;
  size_t bytes = 0, guard = 0;  // `guard` bytes on both sides are nobody's
  int shift = 0;                // a cell has 1 << shift bytes
  bool filled = true, shared = false;
  bool guard_word = false;  // the compiler's own, of an array whose elements have constructors
  std::string name;
  std::vector<Cell> cells;
};

struct Copying {  // 4 bytes on their way in the background
  int thread;
  uint32_t pc;
};

struct Doubt {  // a write that is a race only if it changed something
  uintptr_t at;
  size_t bytes;
  char before[16];
  std::string line;
};

inline char* log_text = nullptr;  // [kLog], ends with 0
inline std::unordered_set<std::string> logged;
inline std::vector<Region> regions;
inline std::vector<Doubt> doubts;
inline std::unordered_map<uintptr_t, Copying> arriving, leaving;  // by address / 4, of this block
inline uintptr_t stacks = 0, arena = 0, tls = 0;
inline size_t stacks_bytes = 0, arena_bytes = 0, tls_bytes = 0;
inline uint32_t block = 0, launch_first = 1, epoch = 0;
inline uint32_t last_pc = 0;
// [warp][lane][lane]: how many meetings of the latter lane the former knows of.
inline uint32_t clocks[32][32][32];
inline std::unordered_map<uintptr_t, std::vector<uint32_t>> released;  // blocks, by atomic
inline std::unordered_set<uint32_t> acquired;                        // by the running block

// kind, place, other place, line, fatal: a finding once in a run.
inline void report(const char* kind, uint32_t pc, uint32_t other, int line, bool fatal,
                   const std::string& text) {
  char head[120];
  snprintf(head, sizeof head, "%s\t%u\t%u\t%d\t%d\t", kind, pc, other, line, fatal);
  if (!logged.insert(head).second || logged.size() > 200) return;
  const size_t at = strlen(log_text);
  snprintf(log_text + at, kLog - at, "%s%s\n", head, text.c_str());
}

inline std::string who(uint32_t in_block, int thread) {
  char text[80];
  snprintf(text, sizeof text, "block %u thread %d", in_block - launch_first, thread);
  return text;
}
inline int me() { return mk_host::warp->index * 32 + mk_host::lane; }

inline std::string place(const Region& r, uintptr_t p) {
  char text[160];
  snprintf(text, sizeof text, "byte %ld of %s", long(p - r.start), r.name.c_str());
  return text;
}

// Writes that turned out to change nothing are no races: all threads stored the same.
inline void settle() {
  if (doubts.empty()) return;
  for (const Doubt& d : doubts)
    if (memcmp(reinterpret_cast<void*>(d.at), d.before, d.bytes) != 0) {
      const size_t at = strlen(log_text);
      if (logged.insert(d.line).second && logged.size() <= 200)
        snprintf(log_text + at, kLog - at, "%s\n", d.line.c_str());
    }
  doubts.clear();
}

// Whether `a` is known to be over where the running lane is.
inline bool before(const Access& a) {
  if (a.block == 0 || a.thread == kAtomic) return true;
  if (a.block != block) return a.block < launch_first || acquired.count(a.block);
  if (a.epoch < epoch || a.thread == me()) return true;
  const mk_host::Warp& w = *mk_host::warp;
  return a.thread / 32 == w.index && clocks[w.index][mk_host::lane][a.thread % 32] >= a.clock;
}

inline void race(const Region& r, uintptr_t p, size_t bytes, const Access& other, bool other_wrote,
                 bool write, uint32_t pc) {
  char head[120];
  snprintf(head, sizeof head, "race\t%u\t%u\t0\t1\t", pc, other.pc);
  const std::string line = std::string(head) + who(block, me()) + (write ? " writes " : " reads ") +
                           place(r, p) + ", which " + who(other.block, other.thread) +
                           (other_wrote ? " writes" : " reads") + ", and nothing orders the two";
  if (!write) {
    if (!logged.insert(line.substr(0, strlen(head))).second || logged.size() > 200) return;
    const size_t at = strlen(log_text);
    snprintf(log_text + at, kLog - at, "%s\n", line.c_str());
    return;
  }
  if (logged.count(head)) return;
  Doubt d{p, bytes > 16 ? 16 : bytes, {}, line};
  memcpy(d.before, reinterpret_cast<void*>(p), d.bytes);
  doubts.push_back(d);
}

inline Access now(uint32_t pc) {
  const int warp = mk_host::warp->index, lane = mk_host::lane;
  return {block, epoch, clocks[warp][lane][lane], pc, uint16_t(me())};
}

inline void touch_region(Region& r, uintptr_t p, size_t bytes, bool write, uint32_t pc) {
  if (p < r.start || p + bytes > r.start + r.bytes) {
    const long past = p < r.start ? long(p - r.start) : long(p + bytes - r.start - r.bytes);
    char text[200];
    snprintf(text, sizeof text, " %s %ld bytes %s of %s, which has %ld", write ? "writes" : "reads",
             labs(past), past < 0 ? "before the start" : "past the end", r.name.c_str(),
             long(r.bytes));
    report("out of bounds", pc, 0, 0, true, who(block, me()) + text);
    return;
  }
  const size_t first = (p - r.start) >> r.shift, last = (p + bytes - 1 - r.start) >> r.shift;
  const bool whole = bytes >= size_t(1) << r.shift;  // a part of a cell is no evidence of a race
  const Access mine = now(pc);
  for (size_t i = first; i <= last; i++) {
    Cell& c = r.cells[i];
    const bool known = r.shared ? c.write.block == block : r.filled || c.write.block != 0;
    if (!write && !known)
      report("uninitialised", pc, 0, 0, true,
             who(block, me()) + " reads " + place(r, p) + ", which nothing has written");
    if (r.shared && c.write.block != block) c.write = Access();
    if (whole && !before(c.write)) race(r, p, bytes, c.write, true, write, pc);
    for (Access& a : c.read) {
      if (r.shared && a.block != block) a = Access();
      if (whole && write && !before(a)) race(r, p, bytes, a, false, true, pc);
    }
    if (write) {
      c.write = mine;
      c.read[0] = c.read[1] = Access();
    } else if (before(c.read[0]) || c.read[0].thread == mine.thread) {
      c.read[0] = mine;
    } else if (c.read[0].thread / 32 != mine.thread / 32 || before(c.read[1])) {
      c.read[1] = mine;
    }
  }
}

// Copies in the background: until they are waited for nobody may touch where they go to, or write
// where they come from.
inline void begin_copy(const mk_host::Pending& p, uint32_t pc) {
  for (int at = 0; at < p.bytes; at += 4) {
    arriving[reinterpret_cast<uintptr_t>(p.to + at) / 4] = {me(), pc};
    if (at < p.there) leaving[reinterpret_cast<uintptr_t>(p.from + at) / 4] = {me(), pc};
  }
}
inline void end_copy(const mk_host::Pending& p) {
  for (int at = 0; at < p.bytes; at += 4) {
    arriving.erase(reinterpret_cast<uintptr_t>(p.to + at) / 4);
    leaving.erase(reinterpret_cast<uintptr_t>(p.from + at) / 4);
  }
}
inline void touch_copies(const Region& r, uintptr_t p, size_t bytes, bool write, uint32_t pc) {
  for (uintptr_t at = p / 4; at <= (p + bytes - 1) / 4; at++) {
    auto found = arriving.find(at);
    const bool into = found != arriving.end();
    if (!into && (!write || (found = leaving.find(at)) == leaving.end())) continue;
    report("race", pc, found->second.pc, 0, true,
           who(block, me()) + (write ? " writes " : " reads ") + place(r, p) + ", which a copy of " +
               who(block, found->second.thread) + " in the background may still " +
               (into ? "write" : "read") + ": it has not been waited for");
    return;
  }
}

inline Region* region_of(uintptr_t p) {
  for (Region& r : regions)
    if (p - (r.start - r.guard) < r.bytes + 2 * r.guard) return &r;
  return nullptr;
}

inline void touch(const void* at, size_t bytes, bool write, uint32_t pc, bool aligned = true) {
  if (!mk_host::world || !mk_host::warp) return;
  settle();
  last_pc = pc;
  const uintptr_t p = reinterpret_cast<uintptr_t>(at);
  if (p - stacks < stacks_bytes) return;
  if (p - tls >= tls_bytes && p - arena >= arena_bytes) return;
  if (aligned && p % (bytes > 16 ? 16 : bytes))
    report("misaligned", pc, 0, 0, true,
           who(block, me()) + " takes " + std::to_string(bytes) + " bytes at once at an address "
           "that is no multiple of that");
  if (Region* r = region_of(p)) {
    if (!r->guard_word) touch_region(*r, p, bytes, write, pc);
    if (!arriving.empty()) touch_copies(*r, p, bytes, write, pc);
  } else if (p - tls < tls_bytes) {
    report("out of bounds", pc, 0, 0, true,
           who(block, me()) + (write ? " writes" : " reads") + " shared memory that no array has");
  }
}

// An atomic: later ones on the same place come after it, and what came before each of them.
inline void touch_atomic(const void* at, size_t bytes, bool order_matters, int line) {
  settle();
  const uintptr_t p = reinterpret_cast<uintptr_t>(at);
  Region* r = region_of(p);
  std::vector<uint32_t>& blocks = released[p];
  for (uint32_t b : blocks) acquired.insert(b);
  if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
  if (!r) return;
  if (p < r->start || p + bytes > r->start + r->bytes) {
    report("out of bounds", 0, 0, line, true,
           who(block, me()) + " does an atomic at " + place(*r, p) + ", which has " +
               std::to_string(r->bytes) + " bytes");
    return;
  }
  Cell& c = r->cells[(p - r->start) >> r->shift];
  const bool known = r->shared ? c.write.block == block : r->filled || c.write.block != 0;
  if (!known)
    report("uninitialised", 0, 0, line, true,
           who(block, me()) + " does an atomic on " + place(*r, p) + ", which nothing has written");
  if (order_matters && c.write.thread == kAtomic && c.write.block >= launch_first &&
      (c.write.block != block || c.write.pc != uint32_t(me())))
    report("float atomics", 0, 0, line, false,
           "several threads add floating-point numbers to " + place(*r, p) +
               ": the sum depends on their order");
  for (size_t i = 0; i < bytes; i += size_t(1) << r->shift)
    r->cells[(p + i - r->start) >> r->shift].write = {block, epoch, 0, uint32_t(me()), kAtomic};
}

// Lanes of the running warp have met: each knows what all of them knew.
inline void joined(uint32_t lanes) {
  uint32_t(&c)[32][32] = clocks[mk_host::warp->index];
  uint32_t all[32] = {};
  for (int l = 0; l < 32; l++)
    for (int i = 0; lanes >> l & 1 && i < 32; i++) all[i] = c[l][i] > all[i] ? c[l][i] : all[i];
  for (int l = 0; l < 32; l++) {
    if (!(lanes >> l & 1)) continue;
    memcpy(c[l], all, sizeof all);
    c[l][l]++;
  }
}

}  // namespace mk_watch
