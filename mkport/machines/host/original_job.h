// What the program of original kernels is to run: a job read from text, its buffers in memory.
//
//   job    text: "runs R seed S limit SECONDS", "buffer BYTES FILLED SHIFT NAME" in order,
//          "shared OFFSET BYTES NAME" for each static array ("-": a guard word),
//          "launch KERNEL GX GY GZ BX BY BZ SHARED ARGUMENTS" followed by a line for each argument:
//          "buffer N" or "value HEX"
//   data   the buffers' contents, one after another; written back after each run, appended
#pragma once
#include <link.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "device.h"
#include "original_types.h"
#include "watch.h"

extern "C" MkKernel mk_kernel(int place);
extern "C" __thread char mk_dynamic[232448];

namespace mk_run {

constexpr size_t kGuard = 64 << 10;
constexpr size_t kFar = size_t(16) << 30;  // as far as a 32-bit index of 8 bytes goes
using Size3 = unsigned[3];

struct Argument {
  int buffer = -1;  // or a value
  std::string bytes;
};
struct Launch {
  int kernel;
  Size3 grid, block;
  size_t shared;
  std::vector<Argument> args;
};
struct Job {
  int runs = 1, limit = 60;
  uint64_t seed = 0;
  std::vector<Launch> launches;
  std::vector<size_t> data;  // where a buffer's contents are in `given`
  std::string given;
};

inline Job job;

inline void add_shared(size_t offset, size_t bytes, const std::string& name) {
  mk_watch::Region r;
  r.start = mk_watch::tls + offset;
  r.bytes = bytes;
  r.shared = true;
  r.guard_word = name == "-";
  r.name = "the shared array " + name;
  r.cells.resize(bytes + 1);
  mk_watch::regions.push_back(r);
}

inline void find_tls() {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void*) {
        for (int i = 0; i < info->dlpi_phnum; i++)
          if (info->dlpi_phdr[i].p_type == PT_TLS) {
            mk_watch::tls = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
            mk_watch::tls_bytes = info->dlpi_phdr[i].p_memsz;
          }
        return 1;  // the first is this program
      },
      nullptr);
}

// Memory with nothing far around it, where that can be had.
inline void* reserve(size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
  void* at = mmap(nullptr, whole + 2 * kFar, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* wanted = at == MAP_FAILED ? nullptr : static_cast<char*>(at) + kFar;
  return mmap(wanted, whole, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_ANONYMOUS | (wanted ? MAP_FIXED : 0), -1, 0);
}

inline void read_job(const char* path) {
  std::ifstream file(path);
  std::string line, word;
  size_t at = 0, room = kGuard;
  while (std::getline(file, line)) {
    std::istringstream in(line);
    in >> word;
    if (word == "runs") {
      in >> job.runs >> word >> job.seed >> word >> job.limit;
    } else if (word == "buffer" && job.launches.empty()) {
      mk_watch::Region r;
      in >> r.bytes >> r.filled >> r.shift;
      std::getline(in >> std::ws, r.name);
      r.start = room, r.guard = kGuard;  // becomes an address below
      mk_watch::regions.push_back(r);
      job.data.push_back(at);
      at += r.bytes;
      room += (r.bytes + 255) / 256 * 256 + 2 * kGuard;
    } else if (word == "shared") {
      size_t offset, bytes;
      in >> offset >> bytes >> word;
      add_shared(offset, bytes, word);
    } else if (word == "launch") {
      Launch l;
      size_t args;
      in >> l.kernel;
      for (unsigned& size : l.grid) in >> size;
      for (unsigned& size : l.block) in >> size;
      in >> l.shared >> args;
      job.launches.push_back(l);
    } else {
      Argument arg;
      std::string value;
      if (word == "buffer") {
        in >> arg.buffer;
      } else {
        in >> value;
        for (size_t i = 0; i + 1 < value.size(); i += 2)
          arg.bytes += char(std::stoi(value.substr(i, 2), nullptr, 16));
      }
      job.launches.back().args.push_back(arg);
    }
  }
  mk_watch::arena_bytes = room;
  void* memory = reserve(room);
  mk_watch::arena = reinterpret_cast<uintptr_t>(memory);
  for (mk_watch::Region& r : mk_watch::regions)
    if (!r.shared) r.start += mk_watch::arena;
}

// Says on standard output what does not fit, and returns false.
inline bool check_arguments() {
  for (const Launch& l : job.launches) {
    const MkKernel kernel = mk_kernel(l.kernel);
    if (int(l.args.size()) != kernel.count) {
      printf("arguments\t%d\t%d\t%d\n", l.kernel, int(l.args.size()), kernel.count);
      return false;
    }
    for (int i = 0; i < kernel.count; i++) {
      const int given = l.args[i].buffer < 0 ? int(l.args[i].bytes.size()) : int(sizeof(void*));
      if (given == kernel.sizes[i]) continue;
      printf("size\t%d\t%d\t%d\t%d\n", l.kernel, i, given, kernel.sizes[i]);
      return false;
    }
  }
  return true;
}

}  // namespace mk_run
