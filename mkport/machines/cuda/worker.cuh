// The roles' loops, and the kernel. The dispatch above this picks a record's body.

// A record's words in registers, a lane each, loaded while the record before it is at work.
struct MkFetch {
  int32_t word;
  int64_t address;
};
MK_DEVICE inline MkFetch mk_fetch(const MkRole& role, int r) {
  MkFetch f = {0, 0};
  if (r >= role.count) return f;
  f.word = mk_load_immutable(role.launch.records + int64_t(role.first + r) * MK_RECORD_WORDS +
                             mk_lane());
  // which argument words are tensors depends on the op: every word that could be a place is looked up
  if (f.word >= 0 && f.word < role.launch.tensors)
    f.address = mk_load_immutable(role.launch.table + f.word);
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

MK_DEVICE inline void mk_loader(MkRole& role) {
  MkLoad load = {role.ring(), mk_ring_policy(), {0, 0}};
  MkFetch next = mk_fetch(role, 0);
  int published = 0;
  for (int r = 0; r < role.count; r++) {
    role.guard.record = r;
    for (; published < role.count && published <= r + MK_AHEAD; published++) {
      mk_publish(role, published, next);
      next = mk_fetch(role, published + 1);
    }
    if (role.guard.dead) break;
    mk_dispatch_load(role, role.box(r), load);
  }
  if (mk_warp_any(role.guard.dead)) load.drain();
}

MK_DEVICE inline void mk_stager(MkRole& role) {
  const int thread = mk_thread() - (MK_THREADS - MK_STAGERS);
  for (int r = 0; r < role.count; r++) {
    MkBox& box = role.open(r);
    if (thread == 0) role.stamp(r, 0);
    role.guard.wait(role.shared.stage_free + (r & 1), (r / 2 & 1) ^ 1, MK_WAIT_FREE_STAGE, r & 1);
    const MkStage stage = {role.stage_buffer(r), thread, box.notes};
    if (!role.guard.dead) mk_dispatch_early(box, stage);
    if (thread == 0 && !role.guard.dead) {
      role.wait_counters(box);
      role.stamp(r, 1);
    }
    mk_sync_warp();
    // what thread 0 has acquired, all stagers may read behind this barrier
    role.guard.dead = mk_barrier_any(MK_STAGE_BARRIER, MK_STAGERS, role.guard.dead);
    if (role.guard.dead) break;
    mk_dispatch_stage(box, stage);
    mk_barrier_arrive(role.shared.staged + (r & 1));
  }
}

MK_DEVICE inline void mk_computer(MkRole& role) {
  MkCompute compute = {role.ring(), nullptr, nullptr, nullptr, nullptr, nullptr};
  for (int r = 0; r < role.count; r++) {
    const MkBox& box = role.open(r);
    role.guard.wait(role.shared.staged + (r & 1), r / 2 & 1, MK_WAIT_STAGED, r & 1);
    role.guard.dead = mk_barrier_any(MK_COMPUTE_BARRIER, MK_COMPUTERS, role.guard.dead);
    if (role.guard.dead) break;
    compute.staged = compute.arena = role.stage_buffer(r);
    compute.notes = box.notes;
    if (box.words[MK_RUN + 2] > 0) {
      mk_dispatch_compute(role, box, compute);
    } else {
      if (mk_lane() == 0) mk_barrier_arrive(role.shared.joined + role.tile % MK_JOIN_SLOTS);
      role.tile++;
    }
    mk_sync_warp();
    if (mk_lane() == 0) mk_barrier_arrive(role.shared.stage_free + (r & 1));
  }
}

MK_DEVICE inline void mk_storer(MkRole& role) {
  for (int r = 0; r < role.count; r++) {
    const MkBox& box = role.open(r);
    if (mk_warp_any(role.guard.dead)) break;
    if (box.words[MK_RUN + 2] > 0) {
      mk_dispatch_store(role, box);
    } else {
      const int slot = role.tile % MK_JOIN_SLOTS;
      role.guard.wait(role.shared.joined + slot, role.tile / MK_JOIN_SLOTS & 1, MK_WAIT_JOINED,
                      slot);
      mk_sync_warp();
      if (mk_lane() == 0) mk_barrier_arrive(role.shared.join_free + slot);
      role.tile++;
    }
    if (mk_warp_any(role.guard.dead)) break;
    mk_sync_warp();  // all lanes' stores precede the signal
    if (mk_lane() == 0) {
      const int32_t counter = box.words[MK_SIGNAL];
      if (counter >= 0)
        mk_signal_counter(role.launch.counters + int64_t(counter) * MK_COUNTER_STRIDE,
                          box.words[MK_SIGNAL + 1]);
      role.stamp(r, 2);
      mk_barrier_arrive(role.shared.box_empty + r % MK_BOXES);
    }
  }
}

extern "C" __global__ void __launch_bounds__(MK_THREADS, 1)
    megakernel(const int32_t* records, const int32_t* firsts, const int64_t* table, int32_t tensors,
               int32_t* counters, int32_t* errors, int64_t* trace, int64_t limit_ns, int32_t step,
               int32_t slots, int32_t stage_bytes) {
  const MkLaunch launch = {records, firsts,   table, tensors, counters,   errors,
                           trace,   limit_ns, step,  slots,   stage_bytes};
  if (mk_thread() == 0) {
    reinterpret_cast<MkShared*>(mk_shared())->init(slots);
    mk_fence_barrier_init();
  }
  mk_sync_block();
  const int warp = mk_warp() - MK_COMPUTE_WARPS;
  MkRole role(launch, warp < 0    ? MK_ROLE_COMPUTE
                      : warp == 0 ? MK_ROLE_LOAD
                      : warp == 1 ? MK_ROLE_STORE
                                  : MK_ROLE_STAGE);
  if (warp < 0)
    mk_computer(role);
  else if (warp == 0)
    mk_loader(role);
  else if (warp == 1)
    mk_storer(role);
  else
    mk_stager(role);
}
