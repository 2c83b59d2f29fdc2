// A composed file as a program of its own, which may crash: reads the arrays of one launch from a
// file, each into a block of exactly its size, runs the launch, and writes them back.
//
//   job   words (int64): tensors, blocks, threads, seed, shared bytes, step, stage, ring; then for each
//         of the records, firsts, table, maps, counters, errors and stamps, and each tensor: its bytes
//   data  their contents, one after another; those from the counters on are written back
//   out   state, the message's bytes, the message, the contents
#pragma once
#include <stdio.h>
#include <stdlib.h>

#include <vector>

extern "C" const char* __asan_default_options() { return "detect_leaks=0:exitcode=9"; }

namespace mk_apart {

enum { kRecords, kFirsts, kTable, kMaps, kCounters, kErrors, kStamps, kArrays };
struct Head {
  int64_t tensors, blocks, threads, seed, shared, step, stage, ring;
};

inline void must(bool done, const char* what) {
  if (done) return;
  fprintf(stderr, "%s failed\n", what);
  exit(7);
}
inline void* block(size_t bytes) {
  void* made = nullptr;
  must(posix_memalign(&made, 1024, bytes) == 0, "memory");
  return made;
}
inline void read(void* to, size_t bytes, FILE* file) {
  must(bytes == 0 || fread(to, bytes, 1, file) == 1, "reading");
}
inline void write(const void* from, size_t bytes, FILE* file) {
  must(bytes == 0 || fwrite(from, bytes, 1, file) == 1, "writing");
}

inline int run(const char* job, const char* data, const char* out) {
  Head head;
  FILE* file = fopen(job, "rb");
  must(file, "opening the job");
  read(&head, sizeof head, file);
  std::vector<int64_t> bytes(kArrays + head.tensors);
  read(bytes.data(), bytes.size() * 8, file);
  fclose(file);
  std::vector<void*> arrays;
  file = fopen(data, "rb");
  must(file, "opening the data");
  for (const int64_t size : bytes) {
    arrays.push_back(block(size));
    read(arrays.back(), size, file);
  }
  fclose(file);
  int64_t* const table = static_cast<int64_t*>(arrays[kTable]);
  mk_matrix* const maps = static_cast<mk_matrix*>(arrays[kMaps]);
  for (int64_t i = 0; i < head.tensors; i++) {
    const int64_t at = reinterpret_cast<int64_t>(arrays[kArrays + i]);
    table[i] = at;
    if (maps[i].at) maps[i].at = at;
  }
  int32_t tensors = head.tensors, step = head.step, stage = head.stage, ring = head.ring;
  int64_t limit = 0;
  void* given[kArrays];
  for (int i = 0; i < kArrays; i++) given[i] = bytes[i] ? arrays[i] : nullptr;
  void* args[] = {&given[kRecords],  &given[kFirsts], &given[kTable],  &tensors,
                  &given[kMaps],     &given[kCounters], &given[kErrors], &given[kStamps],
                  &limit,            &step,             &stage,          &ring};
  static char message[1 << 16];
  char* shared = static_cast<char*>(block(head.shared * head.blocks));
  const int state = host_megakernel(args, head.blocks, head.blocks, head.threads, head.seed, shared,
                                    head.shared, message, sizeof message);
  file = fopen(out, "wb");
  must(file, "opening the results");
  const int64_t said[] = {state, int64_t(strlen(message))};
  write(said, sizeof said, file);
  write(message, said[1], file);
  for (size_t i = kCounters; i < arrays.size(); i++) write(arrays[i], bytes[i], file);
  must(fclose(file) == 0, "writing");
  return 0;
}

}  // namespace mk_apart

int main(int, char** words) { return mk_apart::run(words[1], words[2], words[3]); }
