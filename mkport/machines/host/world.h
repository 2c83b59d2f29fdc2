// The world of the host build: workers, their warps and lanes as fibers in one thread of the
// system, stepped in a seeded random order, and copies that end at a random later time. It finds
// deadlocks (no lane can move) and lanes that slip out of step; the primitives are in device.h.
#pragma once
#include <stdarg.h>
#include <stdio.h>

#include <string>
#include <vector>

#include "fiber.h"

namespace mk_host {

constexpr int kLanes = 32;
constexpr int kNamed = 16;

// An mbarrier in its 8 bytes: arrivals and bytes that the running phase still waits for, and whether
// anybody has seen that the one before it is over, which must be before the next arrival.
struct Mbarrier {
  uint64_t arrivals : 15;
  uint64_t pending : 15;
  uint64_t seen : 1;
  uint64_t bytes : 30;  // announced and not yet copied, plus kNoBytes
  uint64_t phase : 1;
  uint64_t alive : 1;
  uint64_t : 1;
};
static_assert(sizeof(Mbarrier) == 8, "an mbarrier is 8 bytes");
constexpr uint64_t kNoBytes = 1 << 29;

enum class Wait { none, warp, named, mbarrier, counter, words, meeting, done };

// A few bytes that a thread copies in the background: the first `there`, and zeros behind them.
struct Pending {
  char* to;
  const char* from;
  int group, bytes, there;
};

struct Lane {
  Fiber fiber;
  Wait wait = Wait::none;
  uint64_t generation = 0;         // of the warp's or the named barrier's meeting
  int id = 0;                      // named barrier, or parity of an mbarrier
  const void* where = nullptr;     // mbarrier, counter, or the generation of a meeting
  int32_t wanted = 0;              // of a counter
  uint64_t stores = 0;             // of all, when it last looked at flagged words
  std::vector<Pending> pending;
  int group = 0;                   // of the next copies
};

using Act = void (*)(void** given, uint32_t lanes);

// Some lanes of a warp on their way to one meeting.
struct Group {
  uint32_t mask = 0, met = 0;
  const char* what = "";
  int line = 0;  // of the call, where it is known
  Act act = nullptr;
  uint64_t generation = 0;
  void* given[kLanes] = {};
};

struct Warp {
  int worker = 0, index = 0, live = kLanes;
  uint32_t present = ~0u;  // lanes that are there and have not ended
  Lane lanes[kLanes];
  const char* meeting = "";  // what the lanes meet for
  int met = 0;
  uint64_t generation = 0;
  void* given[kLanes] = {};
  Group groups[kLanes];
};

struct Named {
  int threads = 0, met = 0;
  uint64_t generation = 0;
  bool any = false, result = false;
};

struct Copy {
  char* to;
  const char* from;
  int bytes;
  Mbarrier* barrier;
};

struct Worker {
  std::vector<Warp> warps;
  std::vector<Copy> copies;
  Named named[kNamed];
  char* shared = nullptr;
};

struct World {
  std::vector<Worker> workers;
  std::vector<Warp*> active;
  Fiber scheduler;
  void (*kernel)(void**) = nullptr;
  void** args = nullptr;
  int blocks = 0, first_block = 0, threads = 0;
  uint64_t dice = 1;
  int64_t ticks = 0;
  uint64_t stores = 0;
  bool aborted = false, preempted = false;
  void (*met)(const Group& group) = nullptr;  // told of each meeting of some lanes
  void (*ended)() = nullptr;                  // told of each lane that ends
  std::string message, fault;

  uint32_t roll(uint32_t sides) {  // xorshift64*
    dice ^= dice >> 12, dice ^= dice << 25, dice ^= dice >> 27;
    return static_cast<uint32_t>((dice * 2685821657736338717ull >> 32) % sides);
  }
};

inline World* world = nullptr;
inline Warp* warp = nullptr;  // of the running lane
inline int lane = 0;

inline Lane& self() { return warp->lanes[lane]; }

// Gives the thread back to the scheduler until the lane's wait is over.
inline void leave(bool last = false) {
  switch_fiber(self().fiber, world->scheduler, last);
}

// A place where another warp may run first.
inline void maybe_leave() {
  Quiet quiet;
  if (world->roll(16) == 0) {
    world->preempted = true;
    leave();
  }
}

// Ends the run: something that a GPU would hang on or answer with garbage.
[[noreturn]] inline void fault(const char* format, ...) {
  char text[400];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  char place[80];
  snprintf(place, sizeof place, "worker %d warp %d lane %d: ", warp->worker, warp->index, lane);
  world->fault = std::string(place) + text;
  leave(true);
  __builtin_unreachable();
}

// All 32 lanes meet; the last one does `all` with what each has given.
template <class All>
void meet(const char* what, void* given, All all) {
  Quiet quiet;
  Warp& w = *warp;
  if (w.live < kLanes) fault("%s in a warp that lanes have left", what);
  if (w.met && strcmp(w.meeting, what) != 0)
    fault("the lanes slipped: %s here, %s in another lane of the warp", what, w.meeting);
  w.meeting = what;
  w.given[lane] = given;
  if (++w.met == kLanes) {
    all(w.given);
    w.met = 0;
    w.generation++;
    return;
  }
  self().wait = Wait::warp;
  self().generation = w.generation;
  leave();
}

inline bool end_meeting(Group& g) {
  const uint32_t wanted = g.mask & warp->present;
  if (!g.met || (g.met & wanted) != wanted) return false;
  g.act(g.given, g.met);
  if (world->met) world->met(g);
  g.met = 0;
  g.generation++;
  return true;
}

// The lanes in `mask` meet, but for those that have ended; the last one does `act` with what each
// has given. `line` says where the call is, 0 where nobody knows.
inline void meet_some(uint32_t mask, const char* what, int line, void* given, Act act) {
  Quiet quiet;
  Warp& w = *warp;
  if (!(mask >> lane & 1)) fault("%s with the mask %08x, which leaves out the caller", what, mask);
  Group* group = nullptr;
  for (Group& g : w.groups)
    if (g.met && g.mask == mask) group = &g;
  for (Group& g : w.groups)
    if (!group && !g.met) group = &g;
  Group& g = *group;
  if (g.met && strcmp(g.what, what) != 0)
    fault("the lanes slipped: %s here (line %d), %s in another lane of the warp (line %d)", what,
          line, g.what, g.line);
  g.mask = mask, g.what = what, g.act = act, g.line = line;
  g.given[lane] = given;
  g.met |= 1u << lane;
  if (end_meeting(g)) return;
  self().wait = Wait::meeting;
  self().where = &g.generation;
  self().generation = g.generation;
  leave();
}

inline bool over(const Mbarrier& b, int parity) { return static_cast<int>(b.phase) != parity; }
inline bool look(Mbarrier& b, int parity) {
  if (over(b, parity)) b.seen = 1;
  return over(b, parity);
}

inline void advance(Mbarrier& b) {
  if (b.pending == 0 && b.bytes == kNoBytes) {
    b.phase ^= 1;
    b.pending = b.arrivals;
    b.seen = 0;
  }
}

inline bool ready(const Warp& w, const Lane& l) {
  switch (l.wait) {
    case Wait::none: return true;
    case Wait::warp: return w.generation != l.generation;
    case Wait::named: return world->workers[w.worker].named[l.id].generation != l.generation;
    case Wait::mbarrier:
      return world->aborted || over(*static_cast<const Mbarrier*>(l.where), l.id);
    case Wait::counter: {
      const uint32_t seen = *static_cast<const uint32_t*>(l.where);
      return world->aborted || static_cast<int32_t>(seen - static_cast<uint32_t>(l.wanted)) >= 0;
    }
    case Wait::words: return world->aborted || world->stores != l.stores;
    case Wait::meeting: return *static_cast<const uint64_t*>(l.where) != l.generation;
    case Wait::done: return false;
  }
  return false;
}

inline void finish_copy(Worker& worker, size_t place) {
  const Copy copy = worker.copies[place];
  worker.copies.erase(worker.copies.begin() + place);
  memcpy(copy.to, copy.from, copy.bytes);
  leaving(copy.barrier);
  copy.barrier->bytes -= copy.bytes;
  advance(*copy.barrier);
}

inline std::string describe(const Warp& w) {
  char text[200];
  std::string lines;
  for (int i = 0; i < kLanes; i++) {
    const Lane& l = w.lanes[i];
    const Lane* before = i ? &w.lanes[i - 1] : nullptr;
    if (l.wait == Wait::done) continue;
    if (before && before->wait == l.wait && before->where == l.where && before->id == l.id) continue;
    const long at = static_cast<const char*>(l.where) - world->workers[w.worker].shared;
    const char* what = "can move";
    char detail[100] = "";
    if (l.wait == Wait::warp) what = "waits in the warp for ", snprintf(detail, 100, "%s", w.meeting);
    for (const Group& g : w.groups)
      if (l.wait == Wait::meeting && l.where == &g.generation) {
        what = "waits in the warp for ";
        snprintf(detail, 100, "%s of the lanes %08x (%08x are there)", g.what, g.mask, g.met);
      }
    if (l.wait == Wait::named) {
      const Named& n = world->workers[w.worker].named[l.id];
      what = "waits at ";
      snprintf(detail, 100, "named barrier %d (%d of %d are there)", l.id, n.met, n.threads);
    }
    if (l.wait == Wait::mbarrier) {
      const Mbarrier& b = *static_cast<const Mbarrier*>(l.where);
      what = "waits at ";
      snprintf(detail, 100, "mbarrier %ld, parity %d (%d arrivals, %d bytes missing)", at / 8, l.id,
               int(b.pending), int(b.bytes - kNoBytes));
    }
    if (l.wait == Wait::counter) {
      what = "waits for a counter: ";
      snprintf(detail, 100, "has %d, needs %d", *static_cast<const int32_t*>(l.where), l.wanted);
    }
    if (l.wait == Wait::words) what = "waits for words that nobody has written";
    snprintf(text, sizeof text, "  worker %d warp %d lane %d %s%s\n", w.worker, w.index, i, what,
             detail);
    lines += text;
  }
  return lines;
}

// Nothing can move: every bounded wait ends, once; a second time there is no way on.
inline void deadlock() {
  std::string lines;
  for (const Warp* w : world->active) lines += describe(*w);
  if (world->aborted)
    world->fault = "threads wait where no time limit helps them:\n" + lines;
  else
    world->message = lines;
  world->aborted = true;
}

inline bool any_ready(const Warp& w) {
  for (const Lane& l : w.lanes)
    if (ready(w, l)) return true;
  return false;
}

// Runs lanes of one warp until none can move, the budget is spent, or one asked to be preempted.
inline void run_warp(Warp& w) {
  static const int kBudgets[] = {1, 40, 400, 4000};
  int budget = kBudgets[world->roll(4)], at = world->roll(kLanes), blocked = 0;
  world->preempted = false;
  warp = &w;
  while (blocked < kLanes && budget > 0 && !world->preempted) {
    Lane& l = w.lanes[at];
    if (ready(w, l)) {
      l.wait = Wait::none;
      lane = at;
      switch_fiber(world->scheduler, l.fiber);
      if (!world->fault.empty()) return;
      if (l.wait == Wait::done && overrun(l.fiber)) world->fault = "a fiber's stack was overrun";
      blocked = 0;
      budget--;
    } else {
      blocked++;
    }
    at = (at + 1) % kLanes;
  }
}

inline void end_warp(const Worker& worker) {
  for (const Warp& w : worker.warps)
    if (w.live) return;
  if (!worker.copies.empty()) world->fault = "a block ends while copies into it are under way";
}

inline void schedule() {
  std::vector<Worker*> copying;
  while (!world->active.empty() && world->fault.empty()) {
    const size_t count = world->active.size(), start = world->roll(count);
    size_t tried = 0;
    while (tried < count && !any_ready(*world->active[(start + tried) % count])) tried++;
    copying.clear();
    for (Worker& worker : world->workers)
      if (!worker.copies.empty()) copying.push_back(&worker);
    if (!copying.empty() && (tried == count || world->roll(2))) {
      Worker& worker = *copying[world->roll(copying.size())];
      finish_copy(worker, world->roll(worker.copies.size()));
    }
    if (tried == count) {
      if (copying.empty()) deadlock();
      continue;
    }
    const size_t place = (start + tried) % count;
    run_warp(*world->active[place]);
    if (world->active[place]->live == 0) {
      end_warp(world->workers[world->active[place]->worker]);
      world->active[place] = world->active.back();
      world->active.pop_back();
    }
  }
}

inline void start_lane() {
#if MK_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  world->kernel(world->args);
  {
    Quiet quiet;
    self().wait = Wait::done;
    if (warp->met) fault("a lane ends while others wait in the warp for %s", warp->meeting);
    warp->live--;
    warp->present &= ~(1u << lane);
    for (Group& g : warp->groups) end_meeting(g);
    if (world->ended) world->ended();
  }
  leaving(world);
  leave(true);
}

// Runs `together` blocks at a time, each with `shared` bytes of shared memory filled with NaN.
// 0: done; 1: a deadlock that every thread could leave; 2: a fault. `message` says which.
inline int launch(void (*kernel)(void**), void** args, int blocks, int together, int threads,
                  uint64_t seed, char* shared, size_t shared_bytes, char* message, size_t size) {
  Quiet quiet;
  World here;
  world = &here;
#if MK_TSAN
  here.scheduler.known = __tsan_get_current_fiber();
#endif
  here.kernel = kernel, here.args = args, here.threads = threads, here.blocks = blocks;
  here.dice = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
  const size_t stacks = size_t(together) * threads * kStack;
  char* memory = static_cast<char*>(mmap(nullptr, stacks, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (memory == MAP_FAILED) {
    snprintf(message, size, "no memory for the fibers' stacks");
    return 2;
  }
  for (int first = 0; first < blocks && here.fault.empty(); first += together) {
    const int count = blocks - first < together ? blocks - first : together;
    here.first_block = first;
    here.workers.assign(count, Worker());
    here.active.clear();
    memset(shared, 0xff, shared_bytes * count);
    for (int w = 0; w < count; w++) {
      Worker& worker = here.workers[w];
      worker.shared = shared + shared_bytes * w;
      worker.warps = std::vector<Warp>(threads / kLanes);
      for (int i = 0; i < threads / kLanes; i++) {
        worker.warps[i].worker = w, worker.warps[i].index = i;
        here.active.push_back(&worker.warps[i]);
        for (int l = 0; l < kLanes; l++)
          prepare(worker.warps[i].lanes[l].fiber,
                  memory + (size_t(w) * threads + i * kLanes + l) * kStack, start_lane);
      }
    }
    schedule();
    entered(world);
#if MK_TSAN
    for (Worker& worker : here.workers)
      for (Warp& w : worker.warps)
        for (Lane& l : w.lanes)
          if (l.wait == Wait::done) __tsan_destroy_fiber(l.fiber.known);
#endif
  }
  munmap(memory, stacks);
  snprintf(message, size, "%s", (here.fault.empty() ? here.message : here.fault).c_str());
  world = nullptr;
  return !here.fault.empty() ? 2 : here.aborted ? 1 : 0;
}

}  // namespace mk_host
