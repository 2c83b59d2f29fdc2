// The roles' loops, and the kernel. The dispatch above this picks a record's body.

// A record's words in registers, a lane each, loaded while the record before it is at work.
struct MkFetch {
  int32_t word;
  int64_t address;
};
MK_DEVICE inline MkFetch mk_fetch(const MkLaunch& launch, int r, int count) {
  MkFetch f = {0, 0};
  if (r >= count) return f;
  f.word = mk_load_immutable(launch.records +
                             int64_t(MkRole::first(launch) + r) * MK_RECORD_WORDS + mk_lane());
  // which argument words are tensors depends on the op: every word that could be a place is looked up
  if (f.word >= 0 && f.word < launch.tensors) f.address = mk_load_immutable(launch.table + f.word);
  return f;
}

MK_DEVICE inline void mk_publish(MkRole& role, int r, const MkFetch& f) {
  const int slot = r % MK_BOXES;
  role.guard.wait(role.shared.box_empty + slot, (r / MK_BOXES & 1) ^ 1, MK_WAIT_FREE_BOX, slot);
  role.guard.dead = mk_warp_any(role.guard.dead);  // the lanes stay together
  if (role.guard.dead) return;
  role.shared.boxes[slot].words[mk_lane()] = f.word;
  if (mk_lane() >= MK_ARGS) role.shared.boxes[slot].addresses[mk_lane() - MK_ARGS] = f.address;
  mk_sync_warp();
  if (mk_lane() == 0) mk_barrier_arrive(role.shared.box_full + slot);
}


// Whether the rows that a record stages are normed on their way, which the compute warps do.
MK_DEVICE inline bool mk_normed(const MkBox& box) { return MK_NORMED && box.input.norm_w; }

// A set of opcodes.
MK_DEVICE inline bool mk_among(uint64_t ops, const MkBox& box) {
  return ops >> box.words[MK_OP] & 1;
}
// Whether a product's record has nothing to do, as its stagers found out: it has one handover.
MK_DEVICE inline bool mk_unused(const MkBox& box) {
  return MK_ROWS > 8 && mk_among(MK_PRODUCTS, box) && box.plan.tokens < 0;
}
MK_DEVICE inline MkParts mk_parts(const MkBox& box) {
  return {mk_run(box), mk_among(MK_IN_TWO_PARTS, box)};
}

MK_DEVICE inline void mk_load_record(MkRole& role, const MkBox& box, MkLoad& load) {
  if (mk_among(MK_LATE, box)) mk_wait_late(role, box);
  const MkParts parts = mk_parts(box);
  load.next = parts.at(0);
  mk_dispatch_begin(box, load);
  role.agree();
  if (mk_among(MK_PRODUCTS, box)) return mk_load_product(box, parts, load);
#pragma unroll 1
  for (int i = 0; i < parts.count() && !load.ring.guard->dead; i++) {
    load.next = parts.at(i + 1);
    mk_dispatch_load(box, parts.at(i), load);
  }
}

MK_DEVICE inline void mk_loader(const MkLaunch& launch) {
  const int count = MkRole::count(launch);
  MkFetch next = mk_fetch(launch, 0, count);
  int published = 0;
  for (int r = 0; r < count; r++) {
    MkRole role(launch, r);
    MkProgress& progress = role.shared.progress[mk_warp()];
    MkLoad load = {role.ring(), mk_ring_policy(), launch.maps, role.shared.taken, progress.freed,
                   launch.ring_bytes - progress.taken, -1, {}, {}};
    for (; published < count && published <= r + MK_AHEAD; published++) {
      mk_publish(role, published, next);
      if (MK_ROWS > 16 && !role.guard.dead) mk_dispatch_near(role.box(published));
      next = mk_fetch(launch, published + 1, count);
    }
    if (!role.guard.dead) mk_load_record(role, role.box(r), load);
    if (mk_warp_any(role.guard.dead)) {
      load.drain();
      role.tell(MK_ROLE_LOAD);
      return;
    }
    role.leave(load.ring);
    role.keep();  // all lanes have read what one writes now
    if (mk_lane() == 0) {
      progress.freed = load.freed;
      progress.taken = launch.ring_bytes - load.room;
    }
  }
}

// What the stagers do for a record, in turns.
enum { MK_TURN_PREPARE = 1, MK_TURN_WAIT, MK_TURN_GATHER };
#define MK_TURNS(a, b, c) (MK_TURN_##a + MK_TURN_##b * 4 + MK_TURN_##c * 16)

// Of so many elements to stage, those that the stagers wait for first: what they load side by side.
enum { MK_STAGE_FLIGHT = MK_ROWS > 1 && !MK_FLAGGED ? 16 : 8 };
MK_DEVICE inline int mk_awaited(int count) {
  const int most = MK_FLAGGED ? MK_STAGERS * 4 * MK_STAGE_FLIGHT : 0;
  return count < most ? count : most;
}

// Stages a record's input, or leaves the rest to compute warps as soon as they have nothing else to
// do: once some of the words that are awaited have come, the others are there or soon will be.
MK_DEVICE inline void mk_stage_input(MkRole& role, MkBox& box, int r, const MkStage& stage) {
  if (mk_normed(box)) return;
  const int count = box.input.rows * box.input.n, some = mk_awaited(count);
  int from = 0, to = !MK_FLAGGED && box.busy ? count : some;
#pragma unroll 1
  while (from < to) {
    mk_gather<MK_STAGE_FLIGHT, MK_STAGE_WARPS>(box.input, from, to, stage.buffer, stage.thread,
                                               role.guard);
    from = to;
    if (!MK_FLAGGED || to == count) break;
    const bool busy = stage.thread == 0 && !role.computed_before(r);
    if (mk_barrier_any(MK_STAGE_BARRIER, MK_STAGERS, busy))
      to = from + some < count ? from + some : count;
  }
  if (MK_FLAGGED && stage.thread == 0) box.staged = from;
}

MK_DEVICE inline void mk_stager(const MkLaunch& launch) {
  const int thread = mk_thread() - (MK_THREADS - MK_STAGERS), count = MkRole::count(launch);
  for (int r = 0; r < count; r++) {
    MkRole role(launch, r);
    MkBox& box = role.open(r);
    if (thread == 0) role.stamp(r, 0);
    // before its inputs come, a product leaves the buffer alone
    const bool product = MK_ROWS > 8 && mk_among(MK_PRODUCTS, box);
    if (!product) role.wait_stage_free(box, r);
    if (MK_FLAGGED) {  // bodies meet at the stagers' barrier: all of them come in, or none
      role.guard.dead |= role.shared.broken != 0;
      if (mk_barrier_any(MK_STAGE_BARRIER, MK_STAGERS, role.guard.dead)) {
        role.tell(MK_ROLE_STAGE);
        return;
      }
    }
    const MkStage stage = {role.stage_buffer(box), thread, box.notes, &box.plan, &role.guard};
    if (!role.guard.dead) mk_dispatch_early(box, stage);
    const bool late = mk_among(MK_LATE, box) && !(box.words[MK_FLAGS] & MK_FLAG_KNOWN);
    // what is known is prepared before the waits; flagged inputs need none
    const bool first = MK_FLAGGED && late && mk_among(MK_INPUT_FIRST, box) &&
                       box.words[MK_FLAGS] & MK_FLAG_FLAGGED;
    const int order = first ? MK_TURNS(GATHER, WAIT, PREPARE)
                      : late ? MK_TURNS(WAIT, PREPARE, GATHER)
                             : MK_TURNS(PREPARE, WAIT, GATHER);
#pragma unroll 1
    for (int turns = order; turns; turns /= 4) {
      if (turns % 4 == MK_TURN_PREPARE) {
        if (!role.guard.dead) mk_dispatch_prepare(box, stage);
        role.agree();
        if (thread == 0 && !first) box.input = mk_dispatch_input(box, stage);
      } else if (turns % 4 == MK_TURN_WAIT) {
        const bool again = MK_ROWS > 8 && box.words[MK_FLAGS] & MK_FLAG_AGAIN;
        if (thread < 32 && !again) role.wait_counters(box);
        if (thread == 0) {
          role.stamp(r, 1);
          if (!MK_FLAGGED) box.busy = !role.computed_before(r);
        }
        // what the first warp has acquired, all stagers may read behind this barrier
        if (mk_barrier_any(MK_STAGE_BARRIER, MK_STAGERS, role.guard.dead)) {
          role.tell(MK_ROLE_STAGE);
          return;
        }
      } else if (!(box.words[MK_FLAGS] & MK_FLAG_STAGED)) {
        if (first && thread == 0) box.input = mk_dispatch_input(box, stage);
        if (late) stage.sync();  // the input is there
        if (product && box.input.rows > 0) role.wait_stage_free(box, r);
        mk_stage_input(role, box, r, stage);
        role.agree();
      }
    }
    if (MK_FLAGGED && role.guard.dead) {  // words that were awaited behind the record's counters
      role.tell(MK_ROLE_STAGE);
      role.shared.broken = 1;
    }
    mk_barrier_arrive(role.shared.staged + r % MK_BOXES);
  }
}

// An op of its own: all compute warps have all its tiles.
MK_DEVICE inline void mk_compute_record(const MkBox& box, MkRole& role, MkCompute& compute) {
#pragma unroll 1
  for (;;) {  // all is read again from shared memory: bodies need the registers
    const MkParts parts = mk_parts(box);
    const int i = role.tile - role.shared.progress[mk_warp()].tile;
    if (i >= parts.count()) break;
    const int slot = role.tile % MK_JOIN_SLOTS;
    compute.arena = role.stage_buffer(box);
    role.guard.wait(role.shared.join_free + slot, (role.tile / MK_JOIN_SLOTS & 1) ^ 1,
                    MK_WAIT_FREE_JOIN, slot);
    compute.partial = role.shared.partials[slot][mk_warp()];
    compute.tags = role.shared.tags[slot];
    compute.next = parts.at(i + 1);
    mk_dispatch_compute(box, parts.at(i), compute);
    mk_sync_warp();  // all lanes have written theirs
    if (mk_lane() == 0) mk_barrier_arrive(role.shared.joined + slot);
    role.tile++;
  }
}

MK_DEVICE inline void mk_computer(const MkLaunch& launch) {
  const int count = MkRole::count(launch);
  for (int r = 0; r < count; r++) {
    MkRole role(launch, r);
    const MkBox& box = role.open(r);
    const int place = r % MK_BOXES;
    role.guard.wait(role.shared.staged + place, r / MK_BOXES & 1, MK_WAIT_STAGED, place);
    if (MK_FLAGGED) role.guard.dead |= role.shared.broken != 0;
    if (mk_barrier_any(MK_COMPUTE_BARRIER, MK_COMPUTERS, role.guard.dead)) {
      role.tell(MK_ROLE_COMPUTE);
      return;
    }
    char* buffer = role.stage_buffer(box);
    const bool normed = mk_normed(box);
    const int count = box.input.rows * box.input.n;
    const int some = normed ? 0 : MK_FLAGGED ? box.staged : box.busy ? count : 0;
    if (!(box.words[MK_FLAGS] & MK_FLAG_STAGED) && some < count) {
      if (normed) {
        mk_gather_normed(box.input, buffer, role.guard);
        role.agree();
      } else {
        mk_gather<(MK_ROWS > 8 ? 8 : 4), MK_COMPUTE_WARPS>(box.input, some, count, buffer,
                                                           mk_thread_here(), role.guard);
      }
      mk_named_barrier(MK_COMPUTE_BARRIER, MK_COMPUTERS);
    }
    MkCompute compute = {role.ring(), buffer, nullptr, buffer, box.notes, nullptr, -1, -1, {}};
    if (box.words[MK_RUN + 2] > 0 && !mk_unused(box)) {
      if (mk_among(MK_PRODUCTS, box))
        mk_compute_product(box, role, compute);
      else
        mk_compute_record(box, role, compute);
    } else {
      const uint32_t tile = role.tile, to = tile % MK_JOIN_SLOTS;
      role.guard.wait(role.shared.join_free + to, (tile / MK_JOIN_SLOTS & 1) ^ 1, MK_WAIT_FREE_JOIN,
                      to);
      mk_sync_warp();  // all lanes have seen it
      if (mk_lane() == 0) mk_barrier_arrive(role.shared.joined + to);
      role.tile++;
    }
    role.leave(compute.ring);
    role.keep();
    if (MK_FLAGGED && role.guard.dead) role.tell(MK_ROLE_COMPUTE);  // there may be no next record
    r = role.shared.progress[mk_warp()].record;  // read again: bodies need the registers
    if (mk_lane() == 0) mk_barrier_arrive(role.shared.computed + r % MK_BOXES);
  }
}

MK_DEVICE inline void mk_storer(const MkLaunch& launch) {
  const int count = MkRole::count(launch);
  for (int r = 0; r < count; r++) {
    MkRole role(launch, r);
    const MkBox& box = role.open(r);
    const MkParts parts = mk_parts(box);
    const int groups = mk_groups(box), place = r % MK_BOXES;
    const bool ahead = mk_among(MK_LOADS_AHEAD, box);
    if (ahead) role.guard.wait(role.shared.staged + place, r / MK_BOXES & 1, MK_WAIT_STAGED, place);
    int i = 0, group = 0;
#pragma unroll 1
    do {  // a record without tiles has one handover all the same
      const int slot = role.tile % MK_JOIN_SLOTS;
      MkStore store = {role.shared.partials[slot][0], box.notes, role.shared.tags[slot], group,
                       &role.guard, {}};
      if (ahead && i < parts.count() && !mk_unused(box) && !role.guard.dead)
        mk_dispatch_ahead(box, parts.at(i), store);
      role.guard.wait(role.shared.joined + slot, role.tile / MK_JOIN_SLOTS & 1, MK_WAIT_JOINED,
                      slot);
      role.guard.dead = mk_warp_any(role.guard.dead);  // the lanes stay together
      if (role.guard.dead) {
        role.tell(MK_ROLE_STORE);
        return;
      }
      if (mk_unused(box)) i = parts.count();
      if (i < parts.count()) mk_dispatch_store(box, parts.at(i), store);
      mk_sync_warp();
      if (mk_lane() == 0) mk_barrier_arrive(role.shared.join_free + slot);
      role.tile++;
      if (++group == groups) group = 0, i++;
    } while (i < parts.count());
    role.keep();  // and all lanes' stores precede the signal
    if (MK_FLAGGED && role.guard.dead) {
      role.tell(MK_ROLE_STORE);
      return;
    }
    if (mk_lane() == 0) {
      const int32_t counter = box.words[MK_SIGNAL];
      if (counter >= 0)
        mk_signal_counter(role.launch.counters + int64_t(counter) * MK_COUNTER_STRIDE,
                          box.words[MK_SIGNAL + 1]);
      role.stamp(r, 2);
      // the compute warps read the box until then; and somebody must look before they arrive again
      role.guard.wait(role.shared.computed + place, r / MK_BOXES & 1, MK_WAIT_COMPUTED, place);
      mk_barrier_arrive(role.shared.box_empty + place);
    }
  }
}

extern "C" __global__ void __launch_bounds__(MK_THREADS, 1)
    megakernel(const int32_t* records, const int32_t* firsts, const int64_t* table, int32_t tensors,
               const char* maps, int32_t* counters, int32_t* errors, int64_t* trace, int64_t limit_ns, int32_t step,
               int32_t stage_bytes, int32_t ring_bytes) {
  const MkLaunch launch = {records, firsts, table,    tensors, maps,        counters,
                           errors,  trace,  limit_ns, step,    stage_bytes, ring_bytes};
  if (mk_thread() == 0) {
    reinterpret_cast<MkShared*>(mk_shared())->init();
    mk_fence_barrier_init();
  }
  mk_sync_block();
  const int warp = mk_warp() - MK_COMPUTE_WARPS;
  if (warp < 0)
    mk_computer(launch);
  else if (warp == 0)
    mk_loader(launch);
  else if (warp == 1)
    mk_storer(launch);
  else
    mk_stager(launch);
}
