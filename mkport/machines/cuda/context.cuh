// What a body sees. A body is a struct named as its op, derived from MkBody, with some of these
// static functions, each called by one role; an absent one does nothing. It never waits on or
// signals a counter and asks for no block index. A tile may be walked in `parts`, each handed over
// by itself: load, compute and store are then given tile * parts + part.
//
//   near(a, run)            asks the L2 cache for what the first tiles will load, some records before;
//                           in steps of more than 16 rows alone (one warp)
//   begin(a, run, ring)     once a record, before its loads (one warp)
//   load(a, tile, ring)     streams the tile's immutable bytes through the ring (one warp)
//                           (of a product: rows(a, tile, lower, ring) says which they are)
//   early(a, run, s)        reads what is immutable, before the record's waits (stagers)
//   prepare(a, run, s)      reads what tells where the record's bytes are: before its waits, if its
//                           loader has waited for that before another record (stagers)
//                           (of a product: input(a, run, s) says what is then staged)
//   compute(a, tile, c)     consumes ring chunks; leaves partials, or writes the output (256 threads)
//   store(a, tile, s)       joins the partials and writes the output (one warp); of a product that
//                           takes more than 8 tokens side by side, of 8 tokens at a time
//   ahead(a, tile, s)       loads what store adds, while the tile is computed; with `has_ahead` alone

enum {
  MK_STAGERS = MK_STAGE_WARPS * 32,
  MK_COMPUTERS = MK_COMPUTE_WARPS * 32,
  MK_THREADS = MK_COMPUTERS + 64 + MK_STAGERS,  // compute, one loader warp, one storer, stagers
  MK_COMPUTE_BARRIER = 1,                       // named barriers; 0 is the whole block's
  MK_STAGE_BARRIER = 2,
};

// What a product's stagers tell its compute warps.
struct MkPlan {
  int32_t k, tokens;          // width and number of the staged rows
  int32_t parts;              // of a tile
  int32_t table;              // bytes from the stage buffer to an MkEntry a slot; -1: none
  int32_t slot, step, slots;  // the first tile's slot; the next tile's is (slot + step) % slots
  int32_t spare;              // bytes to the room for rows that did not fit, fetched when needed,
  const float* x;             // from here
};
// One slot's rows: where they are staged, how many they are (0: the slot is not used), and a tag for
// each column of its products, for `store`.
struct MkEntry {
  int32_t place;  // bytes from the stage buffer, or -1 - (first row of x)
  int32_t tokens;
  int32_t tags[MK_TAGS];
};

// Rows for the stage buffer, of n values each, a multiple of 4 and 16 bytes aligned.
struct MkInput {
  const float* x;
  int n, rows;
  int pitch;              // staged elements from one row to the next
  int32_t source;         // place in shared memory of each one's place in x; -1: in their order
  const float* norm_w;    // [n] of the norm that they go through on their way; null: of none
  float norm_eps;
  float* norm_y;          // [rows][n] where the normed rows are left too, or null
};

// A record as all roles read it: its words, and the addresses of its tensor arguments.
struct MkBox {
  int32_t words[MK_RECORD_WORDS];
  int64_t addresses[MK_RECORD_WORDS - MK_ARGS];  // 0 for an absent tensor
  MkPlan plan;
  int32_t notes[MK_NOTES];  // from `early` and `prepare` to the record's other roles
  MkInput input;            // rows to stage, if there are any
  int32_t busy;             // the compute warps are, so the stagers bring them
  int32_t staged;           // elements that the stagers have brought, where words are awaited
};

// Divides by one number, again and again, without dividing.
struct MkDivider {
  int32_t by;
  uint32_t factor;  // (2^32 - 1) / by, rounded down
  MK_DEVICE static MkDivider of(int32_t by) { return {by, ~0u / by}; }
  MK_DEVICE int divide(int n, int& rest) const {
    int q = static_cast<int>(static_cast<uint64_t>(n) * factor >> 32);  // or one less
    rest = n - q * by;
    if (rest >= by) q++, rest -= by;
    return q;
  }
};

// The tiles of a record.
struct MkRun {
  int32_t first, stride, count;
  MK_DEVICE int tile(int i) const { return first + i * stride; }
};
MK_DEVICE inline MkRun mk_run(const MkBox& box) {
  return {box.words[MK_RUN], box.words[MK_RUN + 1], box.words[MK_RUN + 2]};
}

// What a warp remembers from record to record. It lies in shared memory: registers that live through
// every op's code would be spilled in all of it.
struct MkProgress {
  int32_t record;
  int32_t tile;       // handovers so far (of tiles, parts, empty records); all roles count alike
  int32_t at;         // of the ring
  uint32_t number;
  uint32_t freed;     // the loader's, as the next
  int32_t taken;      // of the ring
  int32_t dead;       // a wait has failed
  int32_t kind, which, seen, wanted;  // that wait, as the error block tells it
  int32_t unwritten;  // it was for flagged words; what fails behind it is no cause
};

// One role's waits. After one of them has failed they all return at once, so that a body needs to
// know nothing about it; the role leaves at the record's end.
struct MkGuard {
  MkWatch watch;
  MkProgress* progress;
  bool dead;

  int64_t* ready;  // where the time goes at which a record's flagged inputs were there, or null

  MK_DEVICE void wait(mk_barrier* barrier, int parity, MkWaitKind kind, int slot) {
    if (dead || mk_barrier_test(barrier, parity)) return;
    if (mk_barrier_wait(barrier, parity, watch)) return;
    note(kind, slot, parity, parity ^ 1);
  }
  // what failed, by one lane; there are so many waits that each must be little code
  MK_DEVICE void note(MkWaitKind kind, int which, int32_t seen, int32_t wanted, int lane = 0) {
    dead = true;
    if (mk_lane() != lane) return;
    progress->kind = kind;
    progress->which = which;
    progress->seen = seen;
    progress->wanted = wanted;
  }
};

// What another worker wrote in this step, a word or four floats: where memory is flagged, to be awaited.
template <class T>  // float or int32_t
MK_DEVICE inline void mk_read(T& x, const T* p) {
  if (MK_FLAGGED) mk_load_flagged(x, p);
  else x = mk_load_coherent(p);
}
MK_DEVICE inline void mk_read(mk_float4& x, const float* p) {
  if (MK_FLAGGED) mk_load_flagged(x, p);
  else x = mk_load_coherent4(p);
}
// A wait for flagged words, which a loop reads again as long as `again` says so. In a program without
// flagged memory a loop runs once.
struct MkAwait {
  MkGuard& guard;
  mk_glance last;
  int64_t since;
  uint32_t tries;

  MK_DEVICE explicit MkAwait(MkGuard& g) : guard(g), last(mk_glance_first()), since(0), tries(0) {}
  MK_DEVICE bool again(bool late) {
    if (!MK_FLAGGED) return false;
    if (!late) {
      if (tries && guard.ready) *guard.ready = mk_now_ns();
      return false;
    }
    if (guard.dead) return false;
    if (mk_look_again(last, ++tries, since, guard.watch)) return true;
    guard.dead = true;
    guard.progress->unwritten = 1;  // by whichever lanes
    return false;
  }
};
// Reads v[i] from x + at[i], side by side, until all are written.
template <int N, class T, class U>
MK_DEVICE inline void mk_await(T (&v)[N], const U* x, const int (&at)[N], MkGuard& guard) {
  MkAwait wait(guard);
  bool late;
#pragma unroll 1
  do {
#pragma unroll
    for (int i = 0; i < N; i++) mk_read(v[i], x + at[i]);
    late = false;
#pragma unroll
    for (int i = 0; i < N; i++) late |= mk_unwritten(v[i]);
  } while (wait.again(late));
}

// The ring: chunks of any size, one behind the other, consumed in their order by all compute warps.
// A chunk that would reach over the end begins at the beginning.
struct MkRing {
  char* base;
  mk_barrier* full;   // [MK_CHUNKS] MK_RING_ARRIVALS and the bytes
  mk_barrier* empty;  // [MK_CHUNKS] an arrival for each compute warp
  int32_t bytes;      // of all
  int32_t at;         // where the next chunk begins, if it does not reach over the end
  uint32_t number;    // of the next chunk
  MkGuard* guard;

  MK_DEVICE int which() const { return number % MK_CHUNKS; }
  MK_DEVICE static int parity(uint32_t number) { return number / MK_CHUNKS & 1; }
  MK_DEVICE int place(int size) const { return at + size > bytes ? 0 : at; }
};

// What mk_ring_box leaves: blocks of 128 bytes of k, each of 8 rows; vectors of 16 bytes change their
// places within a row by an exclusive or with its number, so that a column's banks differ.
MK_DEVICE inline int mk_box_bytes(int row_bytes) { return (row_bytes + 127) / 128 * 1024; }
MK_DEVICE inline int mk_box_place(int row, int vector) {
  return vector / 8 * 1024 + row * 128 + (vector % 8 ^ row) * 16;
}

// 8 neighbouring rows of a weight matrix [.., k]: half of a product's part, as one lane loads it.
struct MkRows {
  const mk_weight* w;  // the matrix
  int32_t place;       // of it in the tensor table
  int32_t k;           // 0: there is nothing to load
  int64_t first;
  int32_t count;       // of rows that are there; may be more than 8, or less than 1

  // Those that a lane knows; all lanes take part.
  MK_DEVICE MkRows of(int lane) const {
    const int64_t from = mk_shuffle(reinterpret_cast<int64_t>(w), lane);
    return {reinterpret_cast<const mk_weight*>(from), mk_shuffle(place, lane), mk_shuffle(k, lane),
            mk_shuffle(first, lane), mk_shuffle(count, lane)};
  }
};

// One warp loads for all: what it does for each chunk must take less time than the chunk's bytes.
struct MkLoad {
  MkRing ring;
  uint64_t policy;
  const char* maps;  // a tensor map for each place of the tensor table
  int32_t* taken;    // [MK_CHUNKS] bytes that the chunks under way take, with what they leave empty
  uint32_t freed;    // chunks that have been given back, at least
  int32_t room;      // bytes that are free then
  int next;          // the tile behind the one that is loaded, or -1; to `begin`: the first
  int32_t notes[MK_ROWS > 32 ? 8 : 4];  // of each lane, from `begin` to `load`
  uint32_t shared[2];  // likewise, the same in all lanes

  // Room for a chunk of `size` bytes, a multiple of 16, of which `bytes` will come.
  MK_DEVICE char* claim(int size, int bytes) {
    const int at = ring.place(size), need = at < ring.at ? ring.bytes - ring.at + size : size;
    while ((room < need && freed != ring.number) || ring.number - freed >= MK_CHUNKS) {
      const int which = freed % MK_CHUNKS;
      ring.guard->wait(ring.empty + which, MkRing::parity(freed), MK_WAIT_FREE_CHUNK, which);
      room += taken[which];
      ring.guard->dead = mk_warp_any(ring.guard->dead);  // the lanes stay together
      if (ring.guard->dead) return ring.base;
      mk_sync_warp();  // all have read what one will write; a vote orders no memory
      freed++;
    }
    room -= need;
    ring.at = at;
    if (mk_lane() == 0) taken[ring.which()] = need;
    mk_ring_expect(ring.full + ring.which(), bytes);
    return ring.base + at;
  }
  // This lane's own piece: a multiple of 16 bytes.
  MK_DEVICE void piece(char* to, const void* from, int bytes) {
    if (!ring.guard->dead) mk_ring_copy(ring.full + ring.which(), to, from, bytes, policy);
  }
  // This lane's own piece: 8 rows of a weight matrix, from column k0 and `row` on.
  MK_DEVICE void box(char* to, int32_t place, int k0, int32_t row) {
    if (!ring.guard->dead)
      mk_ring_box(ring.full + ring.which(), to, maps + int64_t(place) * MK_MAP_BYTES,
                  k0 / int(128 / sizeof(mk_weight)), row, policy);
  }
  MK_DEVICE void commit(int size) {
    if (ring.guard->dead) return;
    mk_ring_end(ring.full + ring.which());
    ring.at += size;
    ring.number++;
  }
  // A block must not end while copies into its shared memory are under way: waits for what was
  // committed, and nobody may have taken.
  MK_DEVICE void drain() {
    for (; freed != ring.number; freed++)
      mk_ring_drain(ring.full + freed % MK_CHUNKS, MkRing::parity(freed));
  }
};

MK_DEVICE inline void mk_put(float* to, const mk_float4& x) {
  *reinterpret_cast<mk_float4*>(to) = x;
}
MK_DEVICE inline void mk_put(mk_bf16* to, const mk_float4& x) {
  const mk_word2 pairs = {{mk_narrow2(x.v[0], x.v[1]), mk_narrow2(x.v[2], x.v[3])}};
  *reinterpret_cast<mk_word2*>(to) = pairs;
}
// Where a word lies in shared memory, in bytes; and the word of a place.
MK_DEVICE inline int32_t mk_shared_place(const int32_t* p) {
  return static_cast<int32_t>(reinterpret_cast<const char*>(p) - mk_shared());
}
MK_DEVICE inline int32_t mk_shared_word(int32_t place) {
  return *reinterpret_cast<const int32_t*>(mk_shared() + place);
}

// Brings rows to a stage buffer that other workers wrote earlier in this step, from element `first`,
// a multiple of 4, to `end`; WARPS take part, a vector a thread. FLIGHT loads are under way before the
// first is used: each takes most of 1 us. So that nothing branches between them, in place of a vector
// behind the last one the thread's first is loaded again. Code that runs once a record must be
// fetched each time: no division.
template <int FLIGHT, int WARPS>
MK_DEVICE inline void mk_gather(const MkInput& in, int first, int end, char* buffer, int thread,
                                MkGuard& guard) {
  enum { STRIDE = WARPS * 32 * 4 };  // elements from a thread's vector to its next
  const int n = in.n, pad = in.pitch - n;
  int rows = 0, columns = STRIDE;  // of a stride
#pragma unroll 1
  for (; columns >= n; columns -= n) rows++;
  int row = 0, column = first + thread * 4;
#pragma unroll 1
  for (; column >= n; column -= n) row++;
  const int step = STRIDE + rows * pad;
  mk_weight* staged = reinterpret_cast<mk_weight*>(buffer);
  int to = row * in.pitch + column, from = first + thread * 4;
#pragma unroll 1
  for (int left = end - from; left > 0; left -= FLIGHT * STRIDE) {
    mk_float4 v[FLIGHT];
    int place[FLIGHT], at[FLIGHT];
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) {
      at[i] = left > i * STRIDE ? from + i * STRIDE : from;
      if (MK_ROWS > 1 && in.source >= 0)
        at[i] = mk_shared_word(in.source + (left > i * STRIDE ? row : 0) * 4) * n + column;
      place[i] = to;
      to += step;
      row += rows;
      column += columns;
      if (column >= n) column -= n, to += pad, row++;
    }
    from += FLIGHT * STRIDE;
    mk_await(v, in.x, at, guard);
#pragma unroll
    for (int i = 0; i < FLIGHT; i++)
      if (left > i * STRIDE) mk_put(staged + place[i], v[i]);
  }
}

struct MkStage {
  char* buffer;    // as many bytes as the op shares, 16 bytes aligned
  int thread;      // of MK_STAGERS
  int32_t* notes;  // [MK_NOTES] for compute and store to read
  MkPlan* plan;    // for a product's compute
  MkGuard* guard;

  MK_DEVICE void sync() const { mk_named_barrier(MK_STAGE_BARRIER, MK_STAGERS); }
};

struct MkCompute {
  MkRing ring;
  const char* staged;  // a product's inputs
  float* partial;      // this warp's MK_PARTIAL floats of the tile's join slot
  char* arena;         // the stage buffer, for a body that is no product
  const int32_t* notes;
  int32_t* tags;       // [MK_TAGS] of the tile, for `store` to read
  int next;            // the tile (part) behind this one, or -1
  int ahead_of;        // the tile that a body has loaded something for already, or -1
  mk_float4 ahead;

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
  // The next chunk, full; every compute warp takes and gives back every chunk.
  MK_DEVICE char* take(int size) {
    ring.at = ring.place(size);
    ring.guard->wait(ring.full + ring.which(), MkRing::parity(ring.number), MK_WAIT_FULL_CHUNK,
                     ring.which());
    return ring.base + ring.at;
  }
  MK_DEVICE void give_back(int size) {
    mk_sync_warp();  // all lanes have read it
    if (mk_lane() == 0) mk_barrier_arrive(ring.empty + ring.which());
    ring.at += size;
    ring.number++;
  }
  // A chunk that this warp has no use for. It must not be a lap of the ring's barriers ahead of the
  // other warps.
  MK_DEVICE void skip(int size) {
    ring.at = ring.place(size) + size;
    if (mk_lane() == 0) mk_barrier_arrive(ring.empty + ring.which());
    ring.number++;
  }
};

struct MkStore {
  const float* partials;  // [MK_COMPUTE_WARPS][MK_PARTIAL], 16 bytes aligned
  const int32_t* notes;
  const int32_t* tags;    // [MK_TAGS]
  int group;              // of a tile's tokens, 8 each
  MkGuard* guard;         // of what it reads
  float loaded[8];        // by `ahead`
};

struct MkBody {
  // True when the addresses of `load` are data: it then runs after the record's waits.
  static constexpr bool late = false;
  // True when `input` says the same before `prepare`.
  static constexpr bool input_first = false;
  // True when `ahead` has something to do.
  static constexpr bool has_ahead = false;
  static constexpr int parts = 1;
  template <class A>
  MK_DEVICE static void near(const A&, const MkRun&) {}
  template <class A>
  MK_DEVICE static void begin(const A&, const MkRun&, MkLoad&) {}
  template <class A>
  MK_DEVICE static void load(const A&, int, MkLoad&) {}
  template <class A>
  MK_DEVICE static void early(const A&, const MkRun&, const MkStage&) {}
  template <class A>
  MK_DEVICE static void prepare(const A&, const MkRun&, const MkStage&) {}
  template <class A>
  MK_DEVICE static void compute(const A&, int, MkCompute&) {}
  template <class A>
  MK_DEVICE static void ahead(const A&, int, MkStore&) {}
  template <class A>
  MK_DEVICE static void store(const A&, int, const MkStore&) {}
};

// An op of matrix products: what it has in common with all others is code that exists once, since
// code that runs seldom must be fetched each time. It has `store`, in place of `load`
//   rows(a, tile, lower, r) says which weights are a part's upper 8 rows, or its lower ones; and
//   input(a, run, s)        says what to stage, to one thread, behind `prepare`: before the record's
//                           waits, unless its loader waits for addresses too. It reads the notes.
// `early` and `prepare` leave the record's MkPlan; compute is MkProduct's.
struct MkProductBody : MkBody {};
