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

MK_DEVICE inline void mk_loader(const MkLaunch& launch) {
  const int count = MkRole::count(launch);
  MkFetch next = mk_fetch(launch, 0, count);
  int published = 0;
  for (int r = 0; r < count; r++) {
    MkRole role(launch, MK_ROLE_LOAD, r);
    MkProgress& progress = role.shared.progress[mk_warp()];
    MkLoad load = {role.ring(), mk_ring_policy(), role.shared.begins, progress.freed,
                   progress.oldest, -1, {}, {}};
    for (; published < count && published <= r + MK_AHEAD; published++) {
      mk_publish(role, published, next);
      next = mk_fetch(launch, published + 1, count);
    }
    if (!role.guard.dead) mk_dispatch_load(role, role.box(r), load);
    if (mk_warp_any(role.guard.dead)) {
      load.drain();
      return;
    }
    role.leave(load.ring);
    if (mk_lane() == 0) progress.freed = load.freed, progress.oldest = load.oldest;
    role.keep();
  }
}

MK_DEVICE inline void mk_stager(const MkLaunch& launch) {
  const int thread = mk_thread() - (MK_THREADS - MK_STAGERS), count = MkRole::count(launch);
  for (int r = 0; r < count; r++) {
    MkRole role(launch, MK_ROLE_STAGE, r);
    MkBox& box = role.open(r);
    if (thread == 0) role.stamp(r, 0);
    role.wait_stage_free(box, r);
    const MkStage stage = {role.stage_buffer(box), thread, box.notes, &box.plan};
    if (!role.guard.dead) mk_dispatch_early(box, stage);
    if (thread < 32) role.wait_counters(box);
    if (thread == 0) role.stamp(r, 1);
    // what the first warp has acquired, all stagers may read behind this barrier
    if (mk_barrier_any(MK_STAGE_BARRIER, MK_STAGERS, role.guard.dead)) return;
    if (!(box.words[MK_FLAGS] & MK_FLAG_STAGED)) mk_dispatch_stage(box, stage);
    mk_barrier_arrive(role.shared.staged + r % MK_BOXES);
  }
}

MK_DEVICE inline void mk_computer(const MkLaunch& launch) {
  const int count = MkRole::count(launch);
  for (int r = 0; r < count; r++) {
    MkRole role(launch, MK_ROLE_COMPUTE, r);
    const MkBox& box = role.open(r);
    const int place = r % MK_BOXES;
    role.guard.wait(role.shared.staged + place, r / MK_BOXES & 1, MK_WAIT_STAGED, place);
    if (mk_barrier_any(MK_COMPUTE_BARRIER, MK_COMPUTERS, role.guard.dead)) return;
    char* buffer = role.stage_buffer(box);
    MkCompute compute = {role.ring(), buffer, nullptr, buffer, box.notes, nullptr, -1, -1, {}};
    if (box.words[MK_RUN + 2] > 0) {
      mk_dispatch_compute(role, box, compute);
    } else {
      if (mk_lane() == 0) mk_barrier_arrive(role.shared.joined + role.tile % MK_JOIN_SLOTS);
      role.tile++;
    }
    role.leave(compute.ring);
    role.keep();
    if (mk_lane() == 0) {
      mk_barrier_arrive(role.shared.computed + place);
      mk_barrier_arrive(role.shared.box_empty + place);
    }
  }
}

MK_DEVICE inline void mk_storer(const MkLaunch& launch) {
  const int count = MkRole::count(launch);
  for (int r = 0; r < count; r++) {
    MkRole role(launch, MK_ROLE_STORE, r);
    const MkBox& box = role.open(r);
    if (mk_warp_any(role.guard.dead)) return;
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
    if (mk_warp_any(role.guard.dead)) return;
    role.keep();  // and all lanes' stores precede the signal
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
               int32_t stage_bytes, int32_t ring_bytes) {
  const MkLaunch launch = {records, firsts,   table, tensors, counters,   errors,
                           trace,   limit_ns, step,  stage_bytes, ring_bytes};
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
