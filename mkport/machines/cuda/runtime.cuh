// The persistent worker: a block whose warps have four roles. All roles walk the worker's records
// in the same order and hand over through barriers in shared memory:
//
//   loader   publishes the records (box), and fills ring slots ahead of everybody
//   stagers  wait for the record's counters, put its inputs into one of two stage buffers
//   compute  a tile at a time: stage buffer and ring slots -> partials in a join slot
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
  int32_t* counters;        // one every MK_COUNTER_STRIDE words
  int32_t* errors;          // [1 + workers * MK_ROLES][MK_COUNTER_STRIDE]; the first is the abort flag
  int64_t* trace;           // [all records][3] (start, ready, end) in ns, or null
  int64_t limit_ns;         // of any one wait
  int32_t step;             // steps that the counters have finished
  int32_t slots;            // of the ring
  int32_t stage_bytes;      // of one stage buffer
};

struct MkShared {
  mk_barrier ring_full[MK_MAX_SLOTS], ring_empty[MK_MAX_SLOTS];
  mk_barrier box_full[MK_BOXES], box_empty[MK_BOXES];
  mk_barrier staged[2], stage_free[2];
  mk_barrier joined[MK_JOIN_SLOTS], join_free[MK_JOIN_SLOTS];
  MkBox boxes[MK_BOXES];
  int32_t tags[MK_JOIN_SLOTS][MK_TAGS];
  alignas(16) float partials[MK_JOIN_SLOTS][MK_COMPUTE_WARPS][MK_PARTIAL];

  MK_DEVICE void init(int slots) {
    for (int i = 0; i < slots; i++) {
      mk_barrier_init(ring_full + i, MK_RING_ARRIVALS);
      mk_barrier_init(ring_empty + i, MK_COMPUTE_WARPS);
    }
    for (int i = 0; i < MK_BOXES; i++) {
      mk_barrier_init(box_full + i, 1);
      mk_barrier_init(box_empty + i, 1);
    }
    for (int i = 0; i < 2; i++) {
      mk_barrier_init(staged + i, MK_STAGERS);
      mk_barrier_init(stage_free + i, MK_COMPUTE_WARPS);
    }
    for (int i = 0; i < MK_JOIN_SLOTS; i++) {
      mk_barrier_init(joined + i, MK_COMPUTE_WARPS);
      mk_barrier_init(join_free + i, 1);
    }
  }
};
static_assert(sizeof(MkShared) <= MK_FIXED_BYTES, "the stage buffers begin behind MkShared");

// One role of one worker on its way through the records.
struct MkRole {
  const MkLaunch& launch;
  MkShared& shared;
  MkGuard guard;
  int first, count;  // the worker's records
  int tile = 0;      // handovers so far (of tiles, parts, empty records); all roles count alike

  MK_DEVICE MkRole(const MkLaunch& l, int role)
      : launch(l), shared(*reinterpret_cast<MkShared*>(mk_shared())) {
    const int worker = mk_worker();
    first = mk_load_immutable(l.firsts + worker);
    count = mk_load_immutable(l.firsts + worker + 1) - first;
    int32_t* place = l.errors + (1 + worker * MK_ROLES + role) * MK_COUNTER_STRIDE;
    guard = {{l.errors, l.limit_ns}, place, 0, false};
  }
  MK_DEVICE MkBox& box(int r) const { return shared.boxes[r % MK_BOXES]; }
  MK_DEVICE MkBox& open(int r) {  // waits until record r is published
    guard.record = r;
    guard.wait(shared.box_full + r % MK_BOXES, r / MK_BOXES & 1, MK_WAIT_BOX, r % MK_BOXES);
    return box(r);
  }
  MK_DEVICE char* stage_buffer(int r) const {
    return mk_shared() + MK_FIXED_BYTES + (r & 1) * launch.stage_bytes;
  }
  MK_DEVICE MkRing ring() {
    char* slots = mk_shared() + MK_FIXED_BYTES + 2 * launch.stage_bytes;
    return {slots, shared.ring_full, shared.ring_empty, launch.slots, 0, 0, &guard};
  }
  // Polls the record's counters; one thread does. Counters gain the same amount each step.
  MK_DEVICE void wait_counters(const MkBox& box) {
    for (int w = MK_WAITS; w < MK_WAITS + 2 * MK_MAX_WAITS; w += 2) {
      const int32_t counter = box.words[w];
      if (counter < 0) break;
      const uint32_t wanted = static_cast<uint32_t>(box.words[w + 1]) * (launch.step + 1u);
      guard.wait_counter(launch.counters + int64_t(counter) * MK_COUNTER_STRIDE, counter,
                         static_cast<int32_t>(wanted));
    }
  }
  MK_DEVICE void stamp(int r, int which) const {
    if (launch.trace) launch.trace[int64_t(first + r) * 3 + which] = mk_now_ns();
  }
};

// For a loader whose addresses are data: one lane polls, and the warp goes on together.
MK_DEVICE inline void mk_wait_late(MkRole& role, const MkBox& box) {
  if (mk_lane() == 0) role.wait_counters(box);
  role.guard.dead = mk_warp_any(role.guard.dead);
}

// Each role's part of one record of op Body, called by the generated dispatch. Staging and
// computing are functions of their own, a call a record: in one function with all ops' registers at
// once many would spill. They work on copies of their role's state, which can stay in registers.

template <class Body>
MK_DEVICE inline int mk_part(const MkRun& run, int i) {
  return run.tile(i / Body::parts) * Body::parts + i % Body::parts;
}

template <class Body, class Args>
MK_DEVICE inline void mk_load_record(const MkBox& box, MkLoad& load) {
  const Args a = Args::load(box.words, box.addresses);
  const MkRun run = mk_run(box);
  Body::begin(a, load);
  for (int i = 0; i < run.count * Body::parts; i++) {
    if (load.ring.guard->dead) break;
    Body::load(a, mk_part<Body>(run, i), load);
  }
}

template <class Body, class Args>
MK_DEVICE inline void mk_early_record(const MkBox& box, const MkStage& stage) {
  Body::early(Args::load(box.words, box.addresses), mk_run(box), stage);
}

template <class Body, class Args>
MK_DEVICE inline void mk_stage_record(const MkBox& box, const MkStage& stage) {
  Body::stage(Args::load(box.words, box.addresses), mk_run(box), stage);
}

template <class Body, class Args>
MK_DEVICE inline void mk_compute_record(const MkBox& box, MkRole& role_state, MkCompute& state) {
  MkRole role = role_state;
  MkCompute compute = state;
  compute.ring.guard = &role.guard;
  const Args a = Args::load(box.words, box.addresses);
  const MkRun run = mk_run(box);
  for (int i = 0; i < run.count * Body::parts; i++) {
    const int slot = role.tile % MK_JOIN_SLOTS;
    role.guard.wait(role.shared.join_free + slot, (role.tile / MK_JOIN_SLOTS & 1) ^ 1,
                    MK_WAIT_FREE_JOIN, slot);
    compute.partial = role.shared.partials[slot][mk_warp()];
    compute.tags = role.shared.tags[slot];
    Body::compute(a, mk_part<Body>(run, i), compute);
    mk_sync_warp();  // all lanes have written theirs
    if (mk_lane() == 0) mk_barrier_arrive(role.shared.joined + slot);
    role.tile++;
  }
  state.ring.at = compute.ring.at;
  state.ring.phase = compute.ring.phase;
  role_state.guard.dead = role.guard.dead;
  role_state.tile = role.tile;
}

template <class Body, class Args>
MK_DEVICE inline void mk_store_record(const MkBox& box, MkRole& role) {
  const Args a = Args::load(box.words, box.addresses);
  const MkRun run = mk_run(box);
  for (int i = 0; i < run.count * Body::parts; i++) {
    const int slot = role.tile % MK_JOIN_SLOTS;
    role.guard.wait(role.shared.joined + slot, role.tile / MK_JOIN_SLOTS & 1, MK_WAIT_JOINED, slot);
    const MkStore store = {role.shared.partials[slot][0], box.notes, role.shared.tags[slot]};
    role.guard.dead = mk_warp_any(role.guard.dead);  // the lanes stay together
    if (!role.guard.dead) Body::store(a, mk_part<Body>(run, i), store);
    mk_sync_warp();
    if (mk_lane() == 0) mk_barrier_arrive(role.shared.join_free + slot);
    role.tile++;
  }
}
