// The rope body: up to 8 heads of a token, a warp each, normed if there is a norm, then rotated, to
// scratch or into the cache. What does not depend on other workers is fetched before the record's
// waits, or side by side with the head.
// Order: the norm's squares as MkNorm's of several groups; 1 / sqrt(mean + eps); y = (x * r) * w.
struct rope : MkBody {
  enum {
    HEADS = MK_COMPUTE_WARPS,
    NOTED = MK_ROWS <= 8,  // notes: [tokens, then each one's position and physical page]
    ACROSS = 2,            // pairs of a lane whose angles are under way
    NEXT = 32 * ACROSS,    // pairs to the next ones
  };
  struct Angles {
    float c[ACROSS], s[ACROSS];
  };
  struct Place {
    int position, page;
  };

  MK_DEVICE static Place place(const RopeArgs& a, int token) {
    const int sequence = mk_load_immutable(a.rows + 2 * token);
    const int position = mk_load_immutable(a.rows + 2 * token + 1);
    if (!a.pages) return {position, 0};
    return {position,
            mk_load_immutable(a.page_table + sequence * a.pages_per_sequence + position / a.page)};
  }
  MK_DEVICE static void early(const RopeArgs& a, const MkRun&, const MkStage& s) {
    const int count = mk_load_immutable(a.count);
    if (s.thread == 0) s.notes[0] = count;
    if (NOTED && s.thread < count) {
      const Place p = place(a, s.thread);
      s.notes[1 + 2 * s.thread] = p.position;
      s.notes[2 + 2 * s.thread] = p.page;
    }
    if (a.w) MkNorm::fetch(s, a.w, a.head_dim);
  }

  MK_DEVICE static void compute(const RopeArgs& a, int tile, MkCompute& c) {
    const int parts = (a.heads + HEADS - 1) / HEADS, token = tile / parts;
    const int head = tile % parts * HEADS + mk_warp(), lane = mk_lane();
    if (token >= c.notes[0] || head >= a.heads) return;
    const Place p = NOTED ? Place{c.notes[1 + 2 * token], c.notes[2 + 2 * token]} : place(a, token);
    const MkNorm norm = MkNorm::of(c, a.head_dim, true);
    const int64_t at = (int64_t(token) * a.heads + head) * a.head_dim;
    Angles next = angles(a, p.position, lane);
    norm.read(a.x + at, *c.ring.guard);
    float r = 1.0f;
    if (a.w) {
      float sum = 0.0f;
#pragma unroll 1
      for (int i = lane * 4; i < a.head_dim; i += 128) {
        const mk_float4 v = *norm.at(i);
        for (int j = 0; j < 4; j++) sum = mk_fma(v.v[j], v.v[j], sum);
      }
      sum = mk_div(mk_warp_sum(sum), float(a.head_dim));
      r = mk_div(1.0f, mk_sqrt(mk_add(sum, a.eps)));
    }
    mk_sync_warp();  // all lanes' vectors are there
    const int64_t slot =
        (int64_t(p.page) * a.heads + head) * a.page + (a.pages ? p.position % a.page : 0);
#pragma unroll 1
    for (int first = lane; first < a.head_dim / 2; first += NEXT) {
      const Angles now = next;
      next = angles(a, p.position, first + NEXT);
#pragma unroll
      for (int k = 0; k < ACROSS; k++) {
        const int i = first + k * 32, half = a.head_dim / 2;
        if (i >= half) break;
        const int p_at = a.half_split ? i : 2 * i, q_at = a.half_split ? i + half : 2 * i + 1;
        float p = value(norm, a.w, p_at, r), q = value(norm, a.w, q_at, r);
        if (a.rope) {
          const float before = p;
          p = mk_fma(p, now.c[k], -mk_mul(q, now.s[k]));
          q = mk_fma(q, now.c[k], mk_mul(before, now.s[k]));
        }
        if (a.y) {
          mk_store(a.y + at + p_at, p);
          mk_store(a.y + at + q_at, q);
        } else {
          keep(a.pages + slot * a.head_dim + p_at, p);
          keep(a.pages + slot * a.head_dim + q_at, q);
        }
      }
    }
    mk_sync_warp();  // the next tile's head may take the row
  }
  // Of pairs i and i + 32; in place of one that is not there, that of the first pair.
  MK_DEVICE static Angles angles(const RopeArgs& a, int position, int i) {
    Angles found = {};
    if (!a.rope) return found;
    const int half = a.head_dim / 2;
    const float* row = a.rope + int64_t(position) * a.head_dim;
#pragma unroll
    for (int k = 0; k < ACROSS; k++) {
      const int pair = i + k * 32 < half ? i + k * 32 : 0;
      found.c[k] = mk_load_immutable(row + pair);
      found.s[k] = mk_load_immutable(row + pair + half);
    }
    return found;
  }
  MK_DEVICE static float value(const MkNorm& norm, const float* w, int i, float r) {
    return w ? mk_mul(mk_mul(norm.row[i], r), norm.w[i]) : norm.row[i];
  }
  MK_DEVICE static void keep(mk_bf16* slot, float x) { mk_store(slot, mk_narrow(x)); }
  MK_DEVICE static void keep(float* slot, float x) { mk_store(slot, x); }
};
