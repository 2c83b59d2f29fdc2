// The persistent worker: a block whose warps have four roles. All roles walk the worker's records
// in the same order and hand over through barriers in shared memory:
//
//   loader   publishes the records (box), and fills the ring ahead of everybody
//   stagers  wait for the record's counters, put its inputs into its stage buffer (or leave that to
//            compute warps that have nothing else to do)
//   compute  a tile at a time: stage buffer and ring -> partials in a join slot
//   storer   joins, writes the output; after the last tile signals the record's counter
//
// A record without tiles passes through all roles as one empty handover, so that it signals after
// its waits. Every wait is bounded; a role that gives up leaves at a record's end, all its warps
// together.

struct MkLaunch {
  const int32_t* records;   // [all records][MK_RECORD_WORDS]
  const int32_t* firsts;    // [workers + 1] a worker's first record
  const int64_t* table;     // [tensors] addresses
  int32_t tensors;
  const char* maps;         // [tensors][MK_MAP_BYTES]
  int32_t* counters;        // one every MK_COUNTER_STRIDE words
  int32_t* errors;          // [1 + workers * MK_ROLES][MK_COUNTER_STRIDE]; the first is the abort flag
  int64_t* trace;           // [all records][3] (start, ready, end) in ns, or null
  int64_t limit_ns;         // of any one wait
  int32_t step;             // steps that the counters have finished
  int32_t stage_bytes;      // of all stage buffers, which records share by turns
  int32_t ring_bytes;
};

struct MkShared {
  mk_barrier ring_full[MK_CHUNKS], ring_empty[MK_CHUNKS];
  mk_barrier box_full[MK_BOXES], box_empty[MK_BOXES];
  mk_barrier staged[MK_BOXES], computed[MK_BOXES];
  mk_barrier joined[MK_JOIN_SLOTS], join_free[MK_JOIN_SLOTS];
  MkBox boxes[MK_BOXES];
  MkProgress progress[MK_THREADS / 32];
  int32_t taken[MK_CHUNKS];  // bytes, by chunk, for the loader
  int32_t tags[MK_JOIN_SLOTS][MK_TAGS];
  int32_t broken;  // the stagers have given up: what they staged last means nothing
  alignas(16) float partials[MK_JOIN_SLOTS][MK_COMPUTE_WARPS][MK_PARTIAL];

  MK_DEVICE void init() {
    broken = 0;
    for (int i = 0; i < MK_THREADS / 32; i++) progress[i] = {};
    for (int i = 0; i < MK_CHUNKS; i++) {
      mk_barrier_init(ring_full + i, MK_RING_ARRIVALS);
      mk_barrier_init(ring_empty + i, MK_COMPUTE_WARPS);
    }
    for (int i = 0; i < MK_BOXES; i++) {
      mk_barrier_init(box_full + i, 1);
      mk_barrier_init(box_empty + i, 1);
      mk_barrier_init(staged + i, MK_STAGERS);
      mk_barrier_init(computed + i, MK_COMPUTE_WARPS);
    }
    for (int i = 0; i < MK_JOIN_SLOTS; i++) {
      mk_barrier_init(joined + i, MK_COMPUTE_WARPS);
      mk_barrier_init(join_free + i, 1);
    }
  }
};
static_assert(sizeof(MkShared) <= MK_FIXED_BYTES, "the stage buffers begin behind MkShared");

// One role of one worker, for one record.
struct MkRole {
  const MkLaunch& launch;
  MkShared& shared;
  MkGuard guard;
  int tile, at;  // as in MkProgress
  uint32_t number;

  MK_DEVICE MkRole(const MkLaunch& l, int r)
      : launch(l), shared(*reinterpret_cast<MkShared*>(mk_shared())) {
    MkProgress& progress = shared.progress[mk_warp()];
    tile = progress.tile;
    at = progress.at;
    number = progress.number;
    int64_t* ready = nullptr;
    if (MK_FLAGGED && l.trace) ready = l.trace + (int64_t(first(l)) + r) * 3 + 1;
    guard = {{l.errors, l.limit_ns}, &progress, progress.dead != 0, ready};
    mk_sync_warp();  // all lanes have read it
    if (mk_lane() == 0 && !guard.dead) progress.record = r;
  }
  MK_DEVICE void agree() {  // after lanes have awaited flagged words, each its own
    if (MK_FLAGGED) guard.dead = mk_warp_any(guard.dead);
  }
  MK_DEVICE void keep() {  // for the next record; the lanes agree
    agree();
    mk_sync_warp();
    MkProgress& progress = shared.progress[mk_warp()];
    if (mk_lane() == 0) {
      progress.tile = tile;
      progress.at = at;
      progress.number = number;
      progress.dead = guard.dead;
    }
    mk_sync_warp();
  }
  // Before a role leaves: where it is, if a wait of it failed. Its rows of the error block follow the
  // abort flag's.
  MK_DEVICE void tell(int role) const {
    mk_sync_warp();
    const MkProgress& progress = *guard.progress;
    const int32_t kind = MK_FLAGGED && progress.unwritten ? MK_WAIT_WRITTEN : progress.kind;
    if (mk_lane() != 0 || kind == MK_WAIT_NOTHING) return;
    int32_t* place = launch.errors + (1 + mk_worker() * MK_ROLES + role) * MK_COUNTER_STRIDE;
    if (MK_FLAGGED && place[0] == MK_WAIT_WRITTEN) return;  // a cause, so it is told already
    place[1] = progress.record;
    place[2] = progress.which;
    place[3] = progress.seen;
    place[4] = progress.wanted;
    place[0] = kind;
  }
  MK_DEVICE static int first(const MkLaunch& l) { return mk_load_immutable(l.firsts + mk_worker()); }
  MK_DEVICE static int count(const MkLaunch& l) {  // of the worker's records
    return mk_load_immutable(l.firsts + mk_worker() + 1) - first(l);
  }
  MK_DEVICE MkBox& box(int r) const { return shared.boxes[r % MK_BOXES]; }
  MK_DEVICE MkBox& open(int r) {  // waits until record r is published
    guard.wait(shared.box_full + r % MK_BOXES, r / MK_BOXES & 1, MK_WAIT_BOX, r % MK_BOXES);
    return box(r);
  }
  // Where the record's stage buffer lies, and which record used that place last: the launcher wrote
  // both into its flags.
  MK_DEVICE static char* stage_buffer(const MkBox& box) {
    const int place = box.words[MK_FLAGS] & MK_FLAG_PLACE;
    return mk_shared() + MK_FIXED_BYTES + place * MK_STAGE_ALIGN;
  }
  MK_DEVICE void wait_stage_free(const MkBox& box, int r) {
    const int back = box.words[MK_FLAGS] / MK_FLAG_BACK % MK_BOXES, before = r - back;
    if (back == 0) return;  // nobody did, or long ago
    guard.wait(shared.computed + before % MK_BOXES, before / MK_BOXES & 1, MK_WAIT_FREE_STAGE,
               before % MK_BOXES);
  }
  MK_DEVICE MkRing ring() {
    char* base = mk_shared() + MK_FIXED_BYTES + launch.stage_bytes;
    return {base, shared.ring_full, shared.ring_empty, launch.ring_bytes, at, number, &guard};
  }
  MK_DEVICE void leave(const MkRing& ring) {
    at = ring.at;
    number = ring.number;
  }
  // Whether nothing is computed before record r any more.
  MK_DEVICE bool computed_before(int r) const {
    return r == 0 || mk_barrier_test(shared.computed + (r - 1) % MK_BOXES, (r - 1) / MK_BOXES & 1);
  }
  // Waits for the record's counters: a warp does, a counter a lane. They gain the same amount each
  // step.
  MK_DEVICE void wait_counters(const MkBox& box) {
    int32_t counter = -1, wanted = 0, seen = 0;
    if (mk_lane() < MK_MAX_WAITS) {
      counter = box.words[MK_WAITS + 2 * mk_lane()];
      wanted = static_cast<int32_t>(static_cast<uint32_t>(box.words[MK_WAITS + 2 * mk_lane() + 1]) *
                                    (launch.step + 1u));
    }
    bool late = guard.dead;
    if (counter >= 0 && !late)
      late = !mk_wait_counter(launch.counters + int64_t(counter) * MK_COUNTER_STRIDE, wanted,
                              guard.watch, seen);
    mk_sync_warp();
    if (!mk_warp_any(late) || guard.dead) return;
    int lane = 0;  // one of those that are late
    while (!mk_shuffle(int32_t(late), lane)) lane++;
    guard.note(MK_WAIT_COUNTER, counter, seen, wanted, lane);
  }
  MK_DEVICE void stamp(int r, int which) const {
    if (launch.trace) launch.trace[int64_t(first(launch) + r) * 3 + which] = mk_now_ns();
  }
};

// For a loader whose addresses are data, unless it has waited for them before an earlier record.
MK_DEVICE inline void mk_wait_late(MkRole& role, const MkBox& box) {
  if (!(box.words[MK_FLAGS] & MK_FLAG_KNOWN)) role.wait_counters(box);
}

// Handovers of a product's part: groups of a block's tokens, written by the launcher.
MK_DEVICE inline int mk_groups(const MkBox& box) {
  return MK_GROUPS == 1 ? 1 : box.words[MK_FLAGS] / MK_FLAG_GROUPS % MK_MOST_GROUPS + 1;
}

// Each role's part of one record of op Body, called by the generated dispatch. Arguments are read
// where they are: in registers they would crowd out the rest.

template <class Args>
MK_DEVICE inline const Args& mk_args(const MkBox& box) {
  return reinterpret_cast<const Args&>(box);
}

template <class Body>
constexpr bool mk_is_late = Body::late;
template <class Body>
constexpr bool mk_has_parts = Body::parts == 2;
template <class Body>
constexpr bool mk_is_input_first = Body::input_first;
template <class Body>
constexpr bool mk_loads_ahead = Body::has_ahead;

template <class Body, class Args>
MK_DEVICE inline void mk_begin_record(const MkBox& box, MkLoad& load) {
  Body::begin(mk_args<Args>(box), mk_run(box), load);
}
template <class Body, class Args>
MK_DEVICE inline void mk_near_record(const MkBox& box) {
  Body::near(mk_args<Args>(box), mk_run(box));
}
template <class Body, class Args>
MK_DEVICE inline void mk_load_part(const MkBox& box, int part, MkLoad& load) {
  Body::load(mk_args<Args>(box), part, load);
}
template <class Body, class Args>
MK_DEVICE inline MkRows mk_rows_part(const MkBox& box, int part, MkLoad& load) {
  return Body::rows(mk_args<Args>(box), part, mk_lane() % 2, load);
}

template <class Body, class Args>
MK_DEVICE inline void mk_early_record(const MkBox& box, const MkStage& stage) {
  Body::early(mk_args<Args>(box), mk_run(box), stage);
}
template <class Body, class Args>
MK_DEVICE inline void mk_prepare_record(const MkBox& box, const MkStage& stage) {
  Body::prepare(mk_args<Args>(box), mk_run(box), stage);
}
template <class Body, class Args>
MK_DEVICE inline MkInput mk_input_record(const MkBox& box, const MkStage& stage) {
  return Body::input(mk_args<Args>(box), mk_run(box), stage);
}
template <class Body, class Args>
MK_DEVICE inline void mk_compute_part(const MkBox& box, int part, MkCompute& compute) {
  Body::compute(mk_args<Args>(box), part, compute);
}
template <class Body, class Args>
MK_DEVICE inline void mk_ahead_part(const MkBox& box, int part, MkStore& store) {
  Body::ahead(mk_args<Args>(box), part, store);
}
template <class Body, class Args>
MK_DEVICE inline void mk_store_part(const MkBox& box, int part, const MkStore& store) {
  Body::store(mk_args<Args>(box), part, store);
}

// A record's handovers: its tiles, each in one part or two.
struct MkParts {
  MkRun run;
  int two;  // 1: tiles have two parts
  MK_DEVICE int count() const { return run.count << two; }
  MK_DEVICE int at(int i) const {  // -1 behind the last
    if (i >= count()) return -1;
    return two ? run.tile(i / 2) * 2 + i % 2 : run.tile(i);
  }
};
