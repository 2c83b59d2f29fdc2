// Groups (token, choice) pairs by expert on a GPU. An ordinary kernel of one block of 256 threads.
//   ids [choices] chosen experts, -1 for none; pairs [choices] their places, by expert, then by
//   token; slots [slot_count + 1, 2] each expert with the place of its first pair, then (-1, number
//   of pairs). If most > 0, an expert has a slot for each so many pairs. Shared memory: 2 choices
//   words.

extern "C" __global__ void __launch_bounds__(256)
    moe_group(const int* ids, int* pairs, int* slots, int choices, int slot_count, int most) {
  extern __shared__ __align__(16) char shared[];
  int* chosen = reinterpret_cast<int*>(shared);  // [choices]
  int* leads = chosen + choices;                 // [choices] 1: the first pair of a slot
  const int thread = threadIdx.x;
  for (int p = thread; p < choices; p += 256) chosen[p] = ids[p];
  __syncthreads();
  for (int p = thread; p < choices; p += 256) {
    int before = 0;  // its expert's pairs
    for (int q = 0; q < p; q++) before += chosen[q] == chosen[p];
    leads[p] = chosen[p] >= 0 && (most > 0 ? before % most : before) == 0;
  }
  __syncthreads();
  int used = 0, live = 0;
  for (int q = 0; q < choices; q++) {
    used += leads[q];
    live += chosen[q] >= 0;
  }
  for (int p = thread; p < choices; p += 256) {
    if (chosen[p] < 0) continue;
    int place = 0, slot = 0;  // pairs and slots before this one
    for (int q = 0; q < choices; q++) {
      const bool smaller = chosen[q] >= 0 && chosen[q] < chosen[p];
      place += smaller || (chosen[q] == chosen[p] && q < p);
      slot += (smaller || (chosen[q] == chosen[p] && q < p)) && leads[q];
    }
    pairs[place] = p;
    if (leads[p]) {
      slots[2 * slot] = chosen[p];
      slots[2 * slot + 1] = place;
    }
  }
  for (int slot = used + thread; slot <= slot_count; slot += 256) {
    slots[2 * slot] = -1;
    slots[2 * slot + 1] = live;
  }
}
