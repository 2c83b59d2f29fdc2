// The moe_up body: 16 columns of one slot's expert, in two parts of 8: a part is one product of 8
// gate rows and the 8 up rows of the same columns. All the step's tokens are multiplied, as one
// tile of the tensor cores holds them anyway; only those that chose the expert are kept.
// Order: MkProduct's, for both.
struct moe_up : MkBody {
  typedef MkProduct P;
  typedef MkExperts E;
  static constexpr bool late = true;
  static constexpr int parts = 2;

  struct Place {
    int slot, n0, columns;  // the last part may have none
  };
  MK_DEVICE static Place place(const MoeUpArgs& a, int part) {
    const int tile = part / 2, n0 = tile / a.slot_count * P::ROWS + part % 2 * P::HALF;
    return {tile * a.slot_step % a.slot_count, n0, P::least(P::HALF, a.n - n0)};
  }
  // Behind the staged tokens: slots [slot_count + 1][2], then pairs.
  template <class T>
  MK_DEVICE static T* lists(const MoeUpArgs& a, T* buffer) {
    return buffer + MK_ROWS * (a.k + P::PAD) * sizeof(mk_weight);
  }
  MK_DEVICE static int slot_words(const MoeUpArgs& a) { return 2 * (a.slot_count + 1); }

  MK_DEVICE static void begin(const MoeUpArgs& a, MkLoad& ring) {
    E::begin(ring, a.slots, a.slot_count);
  }
  MK_DEVICE static void load(const MoeUpArgs& a, int part, MkLoad& ring) {
    const Place p = place(a, part);
    const int expert = E::expert(ring, a.slots, p.slot);
    if (expert < 0 || p.columns <= 0) return;
    const int64_t row = int64_t(expert) * (a.n + a.up_row) + p.n0;
    P::load(ring, a.w_gate + row * a.k, a.w_up + (row + a.up_row) * a.k, p.columns, a.k);
  }

  MK_DEVICE static void early(const MoeUpArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void stage(const MoeUpArgs& a, const MkRun&, const MkStage& s) {
    int32_t* slots = reinterpret_cast<int32_t*>(lists(a, s.buffer));
    int32_t* pairs = slots + slot_words(a);
    E::Words some_slots, some_pairs;
    E::take(s, some_slots, a.slots, slot_words(a));
    E::take(s, some_pairs, a.pairs, s.notes[0] * a.top);
    P::stage(s, a.x, a.k, s.notes[0]);
    E::put(s, some_slots, slots, a.slots, slot_words(a));
    E::put(s, some_pairs, pairs, a.pairs, s.notes[0] * a.top);
  }

  MK_DEVICE static void compute(const MoeUpArgs& a, int part, MkCompute& c) {
    const Place p = place(a, part);
    const int32_t* slots = reinterpret_cast<const int32_t*>(lists(a, c.staged));
    const int32_t* pairs = slots + slot_words(a);
    const int first = slots[2 * p.slot + 1], end = slots[2 * p.slot + 3];
    if (mk_warp() == 0 && mk_lane() < P::TOKENS) {  // the token's pair in this slot
      int tag = -1;
      for (int i = first; i < end; i++)
        if (pairs[i] / a.top == mk_lane()) tag = i;
      c.tags[mk_lane()] = tag;
    }
    if (slots[2 * p.slot] >= 0 && p.columns > 0) P::compute(c, c.staged, a.k);
  }

  // a lane has one output column and two tokens
  MK_DEVICE static void store(const MoeUpArgs& a, int part, const MkStore& s) {
    const int row = mk_lane() / 4, column = place(a, part).n0 + row;
    const int32_t* pair = s.tags + mk_lane() % 4 * 2;
    if (column >= a.n || (pair[0] < 0 && pair[1] < 0)) return;
    const mk_float2 gate = P::join(s, row), up = P::join(s, P::HALF + row);
    for (int i = 0; i < 2; i++)
      if (pair[i] >= 0)
        mk_store(a.act + int64_t(pair[i]) * a.n + column, P::gated(gate.v[i], up.v[i]));
  }
};
