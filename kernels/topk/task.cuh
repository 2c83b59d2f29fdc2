// The topk body: a token's experts, best first, and their weights, by a warp; then, if that is asked
// for, the (token, choice) pairs of all tokens by expert. The largest logit is taken k times, of
// equal ones the first.
// Order: exponentials summed in 32 lanes, expert e in lane e % 32, lanes joined in halves; the
// chosen weights summed best first.
struct topk : MkBody {
  enum { ACROSS = 4 * 32 };  // experts that a warp looks at together
  static constexpr int32_t NONE = 0x7fffffff;

  // The stage buffer, in words; each part is a multiple of 4 long.
  struct Room {
    uint32_t* seen;    // [padded / 32] a bit for each expert that a token has chosen
    int32_t* chosen;   // [tokens, k] as `choice` makes them, NONE for none; then 8 times NONE
    uint32_t* keys;    // [padded] of each warp: the logits, as integers in the same order
    float* scores;     // [k] of each warp, then up to 3 zeros
  };
  MK_DEVICE static int padded(const TopkArgs& a) { return (a.experts + ACROSS - 1) & -ACROSS; }
  MK_DEVICE static Room room(const TopkArgs& a, char* buffer, int tokens) {
    uint32_t* seen = reinterpret_cast<uint32_t*>(buffer);
    uint32_t* chosen = seen + padded(a) / 32;
    uint32_t* keys = chosen + ((tokens * a.k + 8 + 3) & -4);
    keys += mk_warp() * (padded(a) + ((a.k + 3) & -4));
    return {seen, reinterpret_cast<int32_t*>(chosen), keys,
            reinterpret_cast<float*>(keys + padded(a))};
  }

  // A choice as a number: its expert, and its place among all choices. In order of these numbers
  // they are grouped.
  MK_DEVICE static int32_t choice(int expert, int place) {
    return (expert << 16) | place;
  }

  MK_DEVICE static void early(const TopkArgs& a, const MkRun&, const MkStage& s) {
    const int live = mk_load_immutable(a.count), words = padded(a) / 32;
    if (s.thread == 0) s.notes[0] = live;
    int32_t* room = reinterpret_cast<int32_t*>(s.buffer);
#pragma unroll 1
    for (int i = s.thread; i < words + (a.pairs ? live * a.k + 8 : 0); i += MK_STAGERS)
      room[i] = i < words ? 0 : NONE;
  }

  MK_DEVICE static void compute(const TopkArgs& a, int tile, MkCompute& c) {
    const int live = c.notes[0], first = a.pairs ? 0 : tile, end = a.pairs ? live : tile + 1;
    const Room r = room(a, c.arena, end - first);
    const int token = first + mk_warp();  // there are at most as many as warps
    if (token < end && token < live) choose(a, token, r, mk_warp() * a.k, c);
    if (!a.pairs) return;
    c.sync();
    group(a, r, live * a.k);
  }

  // One token's experts and weights, by one warp; its choices are those from `place` on.
  MK_DEVICE static void choose(const TopkArgs& a, int token, const Room& r, int place,
                               const MkCompute& c) {
    const int lane = mk_lane(), experts = a.experts, length = padded(a), softmax = a.softmax;
    const float* z = a.z + token * experts;
    float strange = 0.0f;  // NaN if a logit is infinite or NaN
#pragma unroll 1
    for (int e = lane; e < length; e += ACROSS) {
      float x[4];
      int at[4];  // in place of a logit that is not there, the first one
#pragma unroll
      for (int j = 0; j < 4; j++) at[j] = e + 32 * j < experts ? e + 32 * j : 0;
      mk_await(x, z, at, *c.ring.guard);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        strange = mk_add(strange, mk_add(x[j], -x[j]));
        r.keys[e + 32 * j] = e + 32 * j < experts ? MkExperts::key(x[j]) : 0;
      }
    }
    const bool broken = mk_warp_any(strange != 0.0f);
    mk_sync_warp();
    const int k = a.k, out = token * k;
    float highest = 0.0f, total = 1.0f;
#pragma unroll 1
    for (int i = broken ? k : 0; i < k; i++) {
      uint32_t best = 0, at = 4 * lane;
#pragma unroll 1
      for (int e = 4 * lane; e < length; e += ACROSS) {
        const mk_word4 some = *reinterpret_cast<const mk_word4*>(r.keys + e);
        for (int j = 0; j < 4; j++)
          if (some.v[j] > best) best = some.v[j], at = e + j;
      }
      const uint32_t top = mk_warp_max(best);
      const uint32_t expert = mk_warp_min(best == top ? at : ~0u);
      if (softmax && i == 0) {
        highest = value(top);
        total = sum(r.keys, experts, highest);
        mk_sync_warp();  // all have read the keys of which one lane takes the best
      }
      if (at == expert) {  // one lane's
        r.keys[at] = 0;
        r.chosen[place + i] = choice(at, place + i);
        r.scores[i] = value(best);
        mk_set_bits(r.seen + at / 32, 1u << at % 32);
      }
    }
    mk_sync_warp();
#pragma unroll 1
    for (int i = lane; i < ((k + 3) & -4); i += 32) {
      const float x = r.scores[i], power = exp(softmax ? mk_add(x, -highest) : -x);
      const float score = mk_div(softmax ? power : 1.0f, softmax ? total : mk_add(1.0f, power));
      r.scores[i] = i < k ? score : 0.0f;
    }
    float all = 0.0f;
    if (a.renormalise) {
      mk_sync_warp();
#pragma unroll 1
      for (int i = 0; i < k; i += 4) {
        const mk_float4 some = *reinterpret_cast<const mk_float4*>(r.scores + i);
        for (int j = 0; j < 4; j++) all = mk_add(all, some.v[j]);
      }
    }
#pragma unroll 1
    for (int i = lane; i < k; i += 32) {
      float weight = r.scores[i];
      if (a.renormalise) weight = mk_div(weight, all);
      weight = mk_mul(weight, a.scale);
      const int expert = r.chosen[place + i] >> 16;
      mk_store(a.ids + (out + i), broken ? -1 : expert);
      mk_store(a.weights + (out + i), broken ? mk_float(0x7fc00000) : weight);
    }
  }

  // The places of the pairs and of their experts, by all: two threads a pair, which count every
  // other four pairs and every other word of experts. The pair behind the last one knows how many
  // pairs and experts there are.
  MK_DEVICE static void group(const TopkArgs& a, const Room& r, int choices) {
    const int part = mk_lane() % 2, length = padded(a);
#pragma unroll 1
    for (int first = mk_warp() * 16; first <= choices; first += MK_COMPUTERS / 2) {
      const int p = first + mk_lane() / 2;
      const int32_t mine = p < choices ? r.chosen[p] : NONE, base = mine & ~0xffff;
      int place = 0, start = 0, slot = 0;  // choices before it, those before its expert's, experts
#pragma unroll 1
      for (int q = part * 4; q < choices; q += 8) {
        const mk_word4 other = *reinterpret_cast<const mk_word4*>(r.chosen + q);
        for (int j = 0; j < 4; j++) {
          place += (other.v[j] - mine) >> 31;  // 1 if it is less
          start += (other.v[j] - base) >> 31;
        }
      }
      const int expert = mine >> 16, below = expert < length ? expert : length;
#pragma unroll 1
      for (int e = part * 32; e < below; e += 64) {
        const uint32_t bits = r.seen[e / 32];
        slot += mk_count_bits(below - e < 32 ? bits & ((1u << (below - e)) - 1) : bits);
      }
      place += mk_shuffle_xor(place, 1);
      start += mk_shuffle_xor(start, 1);
      slot += mk_shuffle_xor(slot, 1);
      if (mine != NONE && part == 0) {
        mk_store(a.pairs + place, p);
        if (place == start) put(a, slot, expert, place);
      }
      if (p == choices)
#pragma unroll 1
        for (int s = slot + part; s <= a.slot_count; s += 2) put(a, s, -1, place);
    }
  }
  MK_DEVICE static void put(const TopkArgs& a, int slot, int expert, int place) {
    const mk_word2 entry = {{static_cast<uint32_t>(expert), static_cast<uint32_t>(place)}};
    mk_store(reinterpret_cast<mk_word2*>(a.slots) + slot, entry);
  }

  // MkExperts' key, back.
  MK_DEVICE static float value(uint32_t key) {
    const int32_t inverse = ~key;
    return mk_float(key ^ ((inverse >> 31) | 0x80000000));
  }
  MK_DEVICE static float sum(const uint32_t* keys, int experts, float highest) {
    float sum = 0.0f;
#pragma unroll 1
    for (int e = mk_lane(); e < experts; e += 32)
      sum = mk_add(sum, exp(mk_add(value(keys[e]), -highest)));
    return mk_warp_sum(sum);
  }
  MK_DEVICE static float exp(float x) { return mk_exp2(mk_mul(x, 1.44269504f)); }
};
