// What a body sees. A body is a struct named as its op, derived from MkBody, with up to four
// static functions, one a role; an absent one does nothing. It never waits on or signals a counter
// and asks for no block index. A tile may be walked in `parts`, each handed over by itself: load,
// compute and store are then given tile * parts + part.
//
//   begin(a, ring)          once a record, before its loads (one warp)
//   load(a, tile, ring)     streams the tile's immutable bytes through the ring (one warp)
//   early(a, run, s)        reads what is immutable, before the record's waits (stagers)
//   stage(a, run, s)        puts a record's inputs into the stage buffer (MK_STAGERS threads)
//   compute(a, tile, c)     consumes ring slots; leaves partials, or writes the output (256 threads)
//   store(a, tile, s)       joins the partials and writes the output (one warp)

enum {
  MK_STAGERS = MK_STAGE_WARPS * 32,
  MK_COMPUTERS = MK_COMPUTE_WARPS * 32,
  MK_THREADS = MK_COMPUTERS + 64 + MK_STAGERS,  // compute, one loader warp, one storer, stagers
  MK_COMPUTE_BARRIER = 1,                       // named barriers; 0 is the whole block's
  MK_STAGE_BARRIER = 2,
};

// A record as all roles read it: its words, and the addresses of its tensor arguments.
struct MkBox {
  int32_t words[MK_RECORD_WORDS];
  int64_t addresses[MK_RECORD_WORDS - MK_ARGS];  // 0 for an absent tensor
  int32_t notes[MK_NOTES];  // from `early` and `stage` to the record's other roles
};

// The tiles of a record.
struct MkRun {
  int32_t first, stride, count;
  MK_DEVICE int tile(int i) const { return first + i * stride; }
};
MK_DEVICE inline MkRun mk_run(const MkBox& box) {
  return {box.words[MK_RUN], box.words[MK_RUN + 1], box.words[MK_RUN + 2]};
}

// One role's waits. After one of them has failed they all return at once, so that a body needs to
// know nothing about it; the role leaves at the record's end.
struct MkGuard {
  MkWatch watch;
  int32_t* place;  // where this role says what it waited for
  int32_t record;
  bool dead;

  MK_DEVICE void wait(mk_barrier* barrier, int parity, MkWaitKind kind, int slot) {
    if (dead || mk_barrier_wait(barrier, parity, watch)) return;
    note(kind, slot, parity, parity ^ 1);
  }
  MK_DEVICE void wait_counter(const int32_t* counter, int number, int32_t wanted) {
    int32_t seen;
    if (dead || mk_wait_counter(counter, wanted, watch, seen)) return;
    note(MK_WAIT_COUNTER, number, seen, wanted);
  }
  MK_DEVICE void note(MkWaitKind kind, int which, int32_t seen, int32_t wanted) {
    dead = true;
    if (mk_lane() != 0) return;
    place[1] = record;
    place[2] = which;
    place[3] = seen;
    place[4] = wanted;
    place[0] = kind;
  }
};

// The ring of equal slots. A slot's bytes are consumed by all compute warps.
struct MkRing {
  char* slots;
  mk_barrier* full;   // [slots] MK_RING_ARRIVALS and the bytes
  mk_barrier* empty;  // [slots] one arrival of each compute warp
  int32_t count;      // of slots
  int32_t at, phase;  // the next slot, and the parity of its phase
  MkGuard* guard;

  MK_DEVICE char* slot() const { return slots + at * MK_SLOT_BYTES; }
  MK_DEVICE void advance() {
    if (++at == count) at = 0, phase ^= 1;
  }
};

struct MkLoad {
  MkRing ring;
  uint64_t policy;
  int32_t notes[2];  // of each lane, from `begin` to `load`

  // The next slot, free and expecting `bytes` in all.
  MK_DEVICE char* claim(int bytes) {
    ring.guard->wait(ring.empty + ring.at, ring.phase ^ 1, MK_WAIT_FREE_SLOT, ring.at);
    ring.guard->dead = mk_warp_any(ring.guard->dead);  // the lanes stay together
    if (!ring.guard->dead) mk_ring_expect(ring.full + ring.at, bytes);
    return ring.slot();
  }
  // Up to 32 rows of a multiple of 16 bytes each.
  MK_DEVICE void rows(char* to, int to_pitch, const void* from, int64_t from_pitch, int bytes,
                      int rows) {
    if (ring.guard->dead) return;
    mk_ring_rows(ring.full + ring.at, to, to_pitch, from, from_pitch, bytes, rows, policy);
  }
  MK_DEVICE void commit() {
    if (ring.guard->dead) return;
    mk_ring_end(ring.full + ring.at);
    ring.advance();
  }
  // A block must not end while copies into its shared memory are under way: waits for what was
  // committed, and nobody may have taken.
  MK_DEVICE void drain() {
    for (int i = 0; i < ring.count; i++)
      mk_ring_drain(ring.full + i, i < ring.at ? ring.phase : ring.phase ^ 1);
  }
};

struct MkStage {
  char* buffer;    // MkLaunch.stage_bytes, 16 bytes aligned
  int thread;      // of MK_STAGERS
  int32_t* notes;  // [MK_NOTES] for compute and store to read

  MK_DEVICE void sync() const { mk_named_barrier(MK_STAGE_BARRIER, MK_STAGERS); }

  // Copies rows of n values, a multiple of 4 and 16 bytes aligned, that other workers wrote earlier
  // in this step. Many loads are under way before the first is used: each takes most of 1 us.
  template <class T>
  MK_DEVICE void copy(T* to, int to_pitch, const float* from, int n, int rows) const {
    gather(to, to_pitch, from, n, rows, [](int row) { return row; });
  }
  // The same with rows from here and there: `place(row)` is each one's row in `from`. A thread has
  // 8 or 16 vectors under way: some columns of MK_ROWS rows. Loops are not unrolled further, since code
  // that runs once a record must be fetched each time.
  template <class T, class Place>
  MK_DEVICE void gather(T* to, int to_pitch, const float* from, int n, int rows,
                        Place place) const {
    enum { COLUMNS = MK_ROWS == 1 ? 8 : 16 / MK_ROWS };
#pragma unroll 1
    for (int first = 0; first < rows; first += MK_ROWS) {
      const float* rows_from[MK_ROWS];
#pragma unroll
      for (int r = 0; r < MK_ROWS; r++)
        rows_from[r] = first + r < rows ? from + int64_t(place(first + r)) * n : nullptr;
#pragma unroll 1
      for (int at = thread * 4; at < n; at += COLUMNS * MK_STAGERS * 4) {
        mk_float4 x[COLUMNS][MK_ROWS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
          for (int r = 0; r < MK_ROWS; r++) {
            const int column = at + c * MK_STAGERS * 4;
            if (column < n && rows_from[r]) x[c][r] = mk_load_coherent4(rows_from[r] + column);
          }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
          for (int r = 0; r < MK_ROWS; r++) {
            const int column = at + c * MK_STAGERS * 4;
            if (column < n && rows_from[r]) put(to + (first + r) * to_pitch + column, x[c][r]);
          }
      }
    }
  }
  MK_DEVICE static void put(float* to, const mk_float4& x) {
    *reinterpret_cast<mk_float4*>(to) = x;
  }
  MK_DEVICE static void put(mk_bf16* to, const mk_float4& x) {
    uint32_t* pair = reinterpret_cast<uint32_t*>(to);
    pair[0] = mk_narrow2(x.v[0], x.v[1]);
    pair[1] = mk_narrow2(x.v[2], x.v[3]);
  }
};

struct MkCompute {
  MkRing ring;
  const char* staged;  // what `stage` left
  float* partial;      // this warp's MK_PARTIAL floats of the tile's join slot
  char* arena;         // the stage buffer, for a body that has no `stage`
  const int32_t* notes;
  int32_t* tags;       // [MK_TAGS] of the tile, for `store` to read

  MK_DEVICE void sync() const { mk_named_barrier(MK_COMPUTE_BARRIER, MK_COMPUTERS); }
  MK_DEVICE bool any(bool p) const {  // meets as `sync` does
    return mk_barrier_any(MK_COMPUTE_BARRIER, MK_COMPUTERS, p);
  }
  // The sum of x over the compute threads, for all of them: each warp's by halves, then the warps
  // in order. `place` is another number in each of a tile's sums.
  MK_DEVICE float sum(float x, int place) const {
    x = mk_warp_sum(x);
    if (mk_lane() == 0) partial[place] = x;
    sync();
    const float* first = partial - mk_warp() * MK_PARTIAL;
    float total = first[place];
    for (int warp = 1; warp < MK_COMPUTE_WARPS; warp++)
      total = mk_add(total, first[warp * MK_PARTIAL + place]);
    return total;
  }
  // The next slot, full; every compute warp takes and gives back every slot.
  MK_DEVICE const char* take() {
    ring.guard->wait(ring.full + ring.at, ring.phase, MK_WAIT_FULL_SLOT, ring.at);
    return ring.slot();
  }
  MK_DEVICE void give_back() {
    mk_sync_warp();  // all lanes have read it
    if (mk_lane() == 0) mk_barrier_arrive(ring.empty + ring.at);
    ring.advance();
  }
};

struct MkStore {
  const float* partials;  // [MK_COMPUTE_WARPS][MK_PARTIAL], 16 bytes aligned
  const int32_t* notes;
  const int32_t* tags;    // [MK_TAGS]
};

struct MkBody {
  // True when the addresses of `load` are data: it then runs after the record's waits.
  static constexpr bool late = false;
  static constexpr int parts = 1;
  template <class A>
  MK_DEVICE static void begin(const A&, MkLoad&) {}
  template <class A>
  MK_DEVICE static void load(const A&, int, MkLoad&) {}
  template <class A>
  MK_DEVICE static void early(const A&, const MkRun&, const MkStage&) {}
  template <class A>
  MK_DEVICE static void stage(const A&, const MkRun&, const MkStage&) {}
  template <class A>
  MK_DEVICE static void compute(const A&, int, MkCompute&) {}
  template <class A>
  MK_DEVICE static void store(const A&, int, const MkStore&) {}
};
