// Runs original kernels, as a program of its own: reads a job, runs its launches several times in
// different orders, each in a process of its own that may crash, and writes what the buffers hold
// and what was found. Blocks run one after another, a block's threads interleaved. The job is
// read in original_job.h.
#pragma once
#define MK_STACK_KB 256
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "original_job.h"

#if MK_ASAN
#include "address.h"
#endif

namespace mk_run {

// The block-wide barrier: of all threads that have not ended.
struct Sync {
  uint64_t generation = 0;
  int met = 0, live = 0;
  MkSync given = {0, 1, 0}, result = {0, 1, 0};
  int line[1024], count[1024];
  bool ended[1024];
};

inline Sync sync_state;
inline const Launch* launch = nullptr;
inline MkIndex3 block_index;
inline uint64_t junk_state = 1;

inline unsigned char junk_byte() {
  junk_state = junk_state * 6364136223846793005ull + 1442695040888963407ull;
  return junk_state >> 56;
}
// The first run's junk is NaN, so that what depends on it shows; the other runs' is anything.
inline void fill_junk(void* to, size_t bytes, int run) {
  if (run == 0) {
    memset(to, 0xff, bytes);
    return;
  }
  for (size_t i = 0; i < bytes; i++) static_cast<unsigned char*>(to)[i] = junk_byte();
}
inline int run_number = 0;

inline int threads() { return launch->block[0] * launch->block[1] * launch->block[2]; }

inline void check_lines() {
  int first = -1;
  for (int t = 0; t < threads(); t++) {
    if (sync_state.ended[t]) continue;
    if (first < 0) first = t;
    if (sync_state.line[t] == sync_state.line[first]) continue;
    char text[200];
    snprintf(text, sizeof text,
             "thread %d of a block is at the barrier in line %d while thread %d is at the one in "
             "line %d: they slip past each other", first, sync_state.line[first], t,
             sync_state.line[t]);
    mk_watch::report("divergent barrier", 0, 0, sync_state.line[t], true, text);
    return;
  }
}

inline void release() {
  check_lines();
  mk_watch::settle();
  mk_watch::epoch++;
  sync_state.result = sync_state.given;
  sync_state.given = {0, 1, 0};
  sync_state.met = 0;
  sync_state.generation++;
}

inline void ended() {
  sync_state.ended[mk_watch::me()] = true;
  sync_state.live--;
  if (sync_state.met && sync_state.met == sync_state.live) release();
}

// Threads that left before others' last barrier: a GPU's barrier no longer counts them.
inline void check_counts() {
  int most = 0;
  for (int t = 1; t < threads(); t++)
    if (sync_state.count[t] > sync_state.count[most]) most = t;
  for (int t = 0; t < threads(); t++) {
    if (sync_state.count[t] == sync_state.count[most]) continue;
    char text[200];
    snprintf(text, sizeof text,
             "thread %d of a block ends after %d barriers, thread %d meets %d, the last in line %d",
             t, sync_state.count[t], most, sync_state.count[most], sync_state.line[most]);
    mk_watch::report("early exit", 0, 0, sync_state.line[most], false, text);
    return;
  }
}

inline std::string waiting() {
  std::string text;
  int named = 0;
  for (const mk_host::Warp* w : mk_host::world->active)
    for (int l = 0; l < 32; l++) {
      if (!(w->present >> l & 1) || w->lanes[l].wait != mk_host::Wait::meeting) continue;
      const int t = w->index * 32 + l;
      char part[160] = "";
      if (w->lanes[l].where == &sync_state.generation)
        snprintf(part, sizeof part, "thread %d at the barrier in line %d", t, sync_state.line[t]);
      for (const mk_host::Group& g : w->groups)
        if (w->lanes[l].where == &g.generation)
          snprintf(part, sizeof part, "thread %d at %s of the lanes %08x in line %d", t, g.what,
                   g.mask, g.line);
      const char* at = strstr(part, " at ");
      if (at && text.find(at) != std::string::npos) continue;
      text += (named++ ? "; " : "") + std::string(part);
    }
  return text;
}

inline void run_block(unsigned index, char* stacks, void (*kernel)(void**), void** args) {
  mk_host::World& world = *mk_host::world;
  const int count = threads(), warps = (count + 31) / 32;
  mk_watch::block++;
  mk_watch::epoch = 0;
  mk_watch::acquired.clear();
  mk_watch::arriving.clear();
  mk_watch::leaving.clear();
  memset(mk_watch::clocks, 0, sizeof mk_watch::clocks);
  for (auto& warp : mk_watch::clocks)
    for (int l = 0; l < 32; l++) warp[l][l] = 1;
  world.first_block = index;
#if MK_ASAN
  mk_address::open_shared();
#endif
  block_index = {index % launch->grid[0], index / launch->grid[0] % launch->grid[1],
                 index / launch->grid[0] / launch->grid[1]};
  fill_junk(reinterpret_cast<void*>(mk_watch::tls),
            mk_dynamic - reinterpret_cast<char*>(mk_watch::tls), run_number);
  for (const mk_watch::Region& r : mk_watch::regions)  // no constructor runs in shared memory
    if (r.guard_word) memset(reinterpret_cast<void*>(r.start), 0xff, r.bytes);
  fill_junk(mk_dynamic, launch->shared, run_number);
#if MK_ASAN
  mk_address::close_shared();
#endif
  sync_state = Sync();
  sync_state.live = count;
  world.workers.assign(1, mk_host::Worker());
  world.workers[0].shared = mk_dynamic;
  world.workers[0].warps = std::vector<mk_host::Warp>(warps);
  world.active.clear();
  for (int i = 0; i < warps; i++) {
    mk_host::Warp& w = world.workers[0].warps[i];
    w.index = i;
    w.live = count - i * 32 < 32 ? count - i * 32 : 32;
    w.present = w.live == 32 ? ~0u : (1u << w.live) - 1;
    world.active.push_back(&w);
    for (int l = 0; l < 32; l++) {
      if (l >= w.live) {
        w.lanes[l].wait = mk_host::Wait::done;
        continue;
      }
      char* stack = stacks + size_t(i * 32 + l) * mk_host::kStack;
      fill_junk(stack + mk_host::kStack - 2048, 2048, run_number);
      mk_host::prepare(w.lanes[l].fiber, stack, mk_host::start_lane);
    }
  }
  std::shuffle(world.active.begin(), world.active.end(), std::minstd_rand(world.roll(1 << 30)));
  mk_host::schedule();
  mk_host::warp = nullptr;
  mk_watch::settle();
  if (world.fault.empty()) check_counts();
}

inline void run_launch(const Launch& given, char* stacks) {
  launch = &given;
  mk_host::World world;
  mk_host::world = &world;
  world.dice = (job.seed + run_number) * 0x9e3779b97f4a7c15ull + 0x1234567;
  world.met = [](const mk_host::Group& g) { mk_watch::joined(g.met); };
  world.ended = ended;
  const unsigned blocks = given.grid[0] * given.grid[1] * given.grid[2];
  world.threads = threads();
  world.blocks = blocks;
  const MkKernel kernel = mk_kernel(given.kernel);
  std::vector<std::string> values;
  std::vector<void*> args;
  for (const Argument& arg : given.args) {
    uintptr_t p = arg.buffer < 0 ? 0 : mk_watch::regions[arg.buffer].start;
    values.push_back(arg.buffer < 0 ? arg.bytes
                                    : std::string(reinterpret_cast<char*>(&p), sizeof p));
    values.back().reserve(64);
  }
  for (std::string& value : values) args.push_back(&value[0]);
  world.kernel = kernel.call;
  world.args = args.data();
  for (mk_watch::Region& r : mk_watch::regions)
    if (r.shared && r.start == reinterpret_cast<uintptr_t>(mk_dynamic)) {
      r.bytes = given.shared;
      r.cells.resize(given.shared + 1);
    }
  mk_watch::launch_first = mk_watch::block + 1;
  mk_watch::released.clear();
  std::vector<unsigned> order(blocks);
  for (unsigned i = 0; i < blocks; i++) order[i] = i;
  if (run_number) std::shuffle(order.begin(), order.end(), std::minstd_rand(world.roll(1 << 30)));
  for (unsigned i = 0; i < blocks && world.fault.empty(); i++)
    run_block(order[i], stacks, kernel.call, args.data());
  if (!world.fault.empty()) {
    const bool stuck = world.fault.find("no time limit") != std::string::npos;
    const bool slipped = world.fault.find("slipped") != std::string::npos;
    mk_watch::report(stuck ? "deadlock" : slipped ? "divergent barrier" : "crash", 0, 0, 0, true,
                     stuck ? "no thread can move: " + waiting() : world.fault);
    _exit(3);
  }
  mk_host::world = nullptr;
}

inline void on_signal(int number, siginfo_t* info, void* context) {
  const ucontext_t& c = *static_cast<ucontext_t*>(context);
#if defined(__x86_64__)
  const uint64_t pc = c.uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  const uint64_t pc = c.uc_mcontext.pc;
#else
  const uint64_t pc = 0;
  (void)c;
#endif
  char text[200];
  const std::string place = mk_host::warp ? mk_watch::who(mk_watch::block, mk_watch::me()) : "";
  const char* what = number == SIGALRM ? "is still at work when the time is over"
                     : number == SIGFPE ? "divides an integer by zero"
                     : number == SIGABRT ? "fails an assertion"
                                         : "touches memory that is nobody's";
  snprintf(text, sizeof text, "%s %s", place.c_str(), what);
  // where that is no place in the file, the last access is the nearest that is known
  mk_watch::report(number == SIGALRM ? "time limit" : "crash", uint32_t(pc + 1), mk_watch::last_pc,
                   0, true, text);
  (void)info;
  _exit(4);
}

inline void watch_signals() {
  static char stack[1 << 16];
  stack_t other = {};
  other.ss_sp = stack;
  other.ss_size = sizeof stack;
  sigaltstack(&other, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGALRM, SIGILL})
    sigaction(number, &action, nullptr);
}

// What nobody wrote in a buffer that held nothing is what the caller had there, in every run.
inline void restore() {
  for (size_t i = 0; i < job.data.size(); i++) {
    const mk_watch::Region& r = mk_watch::regions[i];
    for (size_t at = 0; !r.filled && at < r.bytes; at++)
      if (r.cells[at >> r.shift].write.block == 0)
        reinterpret_cast<char*>(r.start)[at] = job.given[job.data[i] + at];
  }
}

inline void child() {
  mk_watch::stacks_bytes = 1024 * mk_host::kStack;
  void* stacks = mmap(nullptr, mk_watch::stacks_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  mk_watch::stacks = reinterpret_cast<uintptr_t>(stacks);
  watch_signals();
  alarm(job.limit);
  for (mk_watch::Region& r : mk_watch::regions)
    if (!r.shared) r.cells.resize((r.bytes >> r.shift) + 1);
  add_shared(mk_dynamic - reinterpret_cast<char*>(mk_watch::tls), 0, "of dynamic size");
#if MK_ASAN
  mk_address::close_arena();
#endif
  for (const Launch& l : job.launches) run_launch(l, static_cast<char*>(stacks));
  restore();
  fflush(stdout);
  _exit(0);
}

inline int main_of(const char* job_file, const char* data_file, const char* out_file,
                   const char* findings_file) {
  find_tls();
  read_job(job_file);
  if (!check_arguments()) return 5;
  std::ifstream data(data_file, std::ios::binary);
  job.given.assign(std::istreambuf_iterator<char>(data), std::istreambuf_iterator<char>());
  std::ofstream out(out_file, std::ios::binary), findings(findings_file);
  void* log = mmap(nullptr, mk_watch::kLog, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                   -1, 0);
  mk_watch::log_text = static_cast<char*>(log);
  for (run_number = 0; run_number < job.runs; run_number++) {
    junk_state = job.seed * 77 + run_number;
    fill_junk(reinterpret_cast<void*>(mk_watch::arena), mk_watch::arena_bytes, run_number);
    for (size_t i = 0; i < job.data.size(); i++) {
      const mk_watch::Region& r = mk_watch::regions[i];
      if (r.filled) memcpy(reinterpret_cast<void*>(r.start), &job.given[job.data[i]], r.bytes);
    }
    mk_watch::log_text[0] = 0;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) child();
    int status = 0;
    waitpid(pid, &status, 0);
    findings << "run\t" << (WIFEXITED(status) ? WEXITSTATUS(status) : 128) << "\n"
             << mk_watch::log_text;
    for (size_t i = 0; i < job.data.size(); i++) {
      const mk_watch::Region& r = mk_watch::regions[i];
      out.write(reinterpret_cast<char*>(r.start), r.bytes);
    }
    if (status != 0) break;  // the next run would end so too
  }
  return 0;
}

}  // namespace mk_run
