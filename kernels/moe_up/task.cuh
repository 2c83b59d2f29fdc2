// The moe_up body: 8 columns of one slot's expert, one product of 8 gate rows and the 8 up rows of
// the same columns. Up to 8 tokens are all multiplied, as one tile of the tensor cores holds them
// anyway; only those that chose the expert are kept.
// Order: MkProduct's, for both.
struct moe_up : MkProductBody {
  typedef MkProduct P;
  typedef MkExperts E;
  static constexpr bool late = true;
  static constexpr bool input_first = !E::ALONE;
  // With one token each slot has a pair, of its own number, and nobody must wait to know that.
  enum { ONE = MK_ROWS == 1, LIVE = 2 };  // LIVE: a note of the loader

  // The node's slots, by their number in it: (expert, first pair), and of the one behind the last.
  MK_DEVICE static const int32_t* slots(const MoeUpArgs& a) { return a.slots + 2 * a.first_slot; }

  MK_DEVICE static void begin(const MoeUpArgs& a, const MkRun& run, MkLoad& ring) {
    if (ONE) ring.notes[LIVE] = mk_load_immutable(a.count);
    if (ONE && MK_FLAGGED && a.z && a.experts <= E::LOOKED_AT && a.top <= E::CHOSEN)
      E::choose(ring, a.z, a.experts, ring.notes[LIVE] > 0 ? a.top : 0, a.first_slot);
    else
      E::begin(ring, run, slots(a), a.slot_count, a.slot_step);
  }
  MK_DEVICE static MkRows rows(const MoeUpArgs& a, int tile, int lower, const MkLoad& ring) {
    int expert = E::expert(ring, slots(a), tile * a.slot_step % a.slot_count);
    if (ONE && expert < 0 && ring.notes[LIVE] > 0) expert = 0;  // its logits are NaN: any one does
    const int n0 = tile / a.slot_count * P::HALF;
    const int64_t row = int64_t(expert) * (a.n + a.up_row) + n0;
    return {lower ? a.w_up : a.w_gate, lower ? a.place_of_w_up : a.place_of_w_gate,
            expert < 0 ? 0 : a.k, lower ? row + a.up_row : row, a.n - n0};
  }

  MK_DEVICE static void early(const MoeUpArgs& a, const MkRun& run, const MkStage& s) {
    P::plan(s, a.count, a.k);
    if (E::ALONE) return;
#pragma unroll 1
    for (int slot = s.thread; ONE && slot < a.slot_count; slot += MK_STAGERS)
      E::lists(s, table(a), a.slot_count).table[slot] = {
          0, mk_load_immutable(a.count), {a.first_slot + slot, -1, -1, -1, -1, -1, -1, -1}};
    if (s.thread != 0) return;
    s.plan->table = table(a);
    E::walk(*s.plan, run, a.slot_count, a.slot_step);
  }

  // The stage buffer: the tokens, the table of slots and its lists. Of one slot alone: its tokens.
  MK_DEVICE static int table(const MoeUpArgs& a) {
    return MK_ROWS * (a.k + P::PAD) * int(sizeof(mk_weight));
  }
  MK_DEVICE static MkInput input(const MoeUpArgs& a, const MkRun&, const MkStage& s) {
    MkInput in = P::input(a.x, a.k, s.notes[0]);
    if (E::ALONE) in.source = mk_shared_place(s.notes + E::SOURCE);
    return in;
  }

  // every slot's rows are all tokens; a tag is the token's pair in this slot, or -1. Of one slot
  // alone: its rows are its pairs' tokens
  MK_DEVICE static void prepare(const MoeUpArgs& a, const MkRun& run, const MkStage& s) {
    if (E::ALONE) {
      const int row = E::row_of(s, run, slots(a), a.slot_count, a.slot_step);
      if (s.thread < E::PAIRS) s.notes[E::ROW_TAGS + s.thread] = row;
      if (row >= 0) s.notes[E::SOURCE + s.thread] = mk_load_coherent(a.pairs + row) / a.top;
      s.sync();  // the notes are there
      return;
    }
    if (ONE) return;
    const E::Lists l = E::lists(s, table(a), a.slot_count);
    s.sync();  // the number of tokens is there
    E::fetch(s, l, slots(a), a.slot_count, a.pairs, s.notes[0] * a.top);
    s.sync();  // the lists are there
#pragma unroll 1
    for (int slot = s.thread; slot < a.slot_count; slot += MK_STAGERS) {
      MkEntry& entry = l.table[slot];
      entry.place = 0;
      entry.tokens = l.slots[2 * slot] < 0 ? 0 : s.notes[0];
#pragma unroll
      for (int i = 0; i < MK_TAGS; i++) entry.tags[i] = -1;
#pragma unroll 1
      for (int i = l.slots[2 * slot + 1]; i < l.slots[2 * slot + 3]; i++)
        entry.tags[l.pairs[i] / a.top] = i;
    }
  }

  // a lane has one output column and two tokens
  MK_DEVICE static void store(const MoeUpArgs& a, int tile, const MkStore& s) {
    const int row = mk_lane() / 4;
    const int column = E::column(s, tile, a.slot_count) * P::HALF + row;
    const int32_t* pair = E::tags(s) + mk_lane() % 4 * 2;
    if (column >= a.n || (pair[0] < 0 && pair[1] < 0)) return;
    const mk_float2 gate = P::join(s, row), up = P::join(s, P::HALF + row);
    for (int i = 0; i < 2; i++)
      if (pair[i] >= 0)
        mk_store(a.act + int64_t(pair[i]) * a.n + column, P::gated(gate.v[i], up.v[i]));
  }
};
