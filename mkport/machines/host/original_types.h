// What an original kernel's file and the program that runs it say to each other.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct MkSync {  // what a block-wide barrier has heard from its threads
  int any, all, count;
};
struct MkIndex3 {
  unsigned x, y, z;
};
struct MkKernel {
  void (*call)(void** args);
  const int* sizes;  // of the arguments, in bytes
  int count;
};
