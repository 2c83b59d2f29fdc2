// The moe_combine body: a token's weighted sum of its experts, added to its residual row; 1024
// columns of it, or all of them and then their norm.
struct moe_combine : MkBody {
  enum { CHOICES = 8, ACROSS = 2, NEXT = MK_COMPUTERS * 4 };  // loads under way; columns to the next

  MK_DEVICE static void early(const MoeCombineArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
    if (a.w) MkNorm::fetch(s, a.w, a.n);
  }

  MK_DEVICE static void compute(const MoeCombineArgs& a, int tile, MkCompute& c) {
    int token = tile, begin = 0, end = a.n;
    if (!a.w) {
      const int parts = (a.n + NEXT - 1) / NEXT;
      token = tile / parts;
      begin = tile % parts * NEXT;
      if (begin + NEXT < end) end = begin + NEXT;
    }
    if (token >= c.notes[0]) return;
    const MkNorm norm = MkNorm::of(c, a.n, false);
    const float* weights = a.weights + int64_t(token) * a.top;
    const float* y = a.y + int64_t(token) * a.top * a.n;  // [top, n]
    const float* x = a.x + int64_t(token) * a.n;
    const float* with = a.more + int64_t(token) * a.n;
    float* out = (a.out ? a.out : a.x) + int64_t(token) * a.n;
    MkGuard& guard = *c.ring.guard;
#pragma unroll 1
    for (int first = begin + mk_thread() * 4; first < end; first += ACROSS * NEXT) {
      int n[ACROSS];  // in place of a vector that is not there, the first one is loaded again
      mk_float4 old[ACROSS], more[ACROSS] = {}, sum[ACROSS] = {};
#pragma unroll
      for (int k = 0; k < ACROSS; k++) n[k] = first + k * NEXT < end ? first + k * NEXT : first;
#pragma unroll 1
      for (int c0 = 0; c0 < a.top; c0 += CHOICES) {
        float weight[CHOICES];
        mk_float4 value[CHOICES][ACROSS];
        MkAwait wait(guard);
        bool late;
#pragma unroll 1
        do {
          late = false;
#pragma unroll
          for (int i = 0; i < CHOICES; i++) {
            const int choice = c0 + i < a.top ? c0 + i : c0;
            mk_read(weight[i], weights + choice);
#pragma unroll
            for (int k = 0; k < ACROSS; k++) mk_read(value[i][k], y + int64_t(choice) * a.n + n[k]);
          }
#pragma unroll
          for (int k = 0; k < ACROSS; k++) mk_read(old[k], x + n[k]);
#pragma unroll
          for (int i = 0; i < CHOICES * ACROSS; i++)
            late |= mk_unwritten(value[i / ACROSS][i % ACROSS]);
          // a token whose logits are NaN has no experts: nobody writes their outputs
          if (weight[0] != weight[0]) late = false;
#pragma unroll
          for (int i = 0; i < CHOICES; i++) late |= mk_unwritten(weight[i]);
#pragma unroll
          for (int k = 0; k < ACROSS; k++) late |= mk_unwritten(old[k]);
        } while (wait.again(late));
#pragma unroll
        for (int i = 0; i < CHOICES; i++)
#pragma unroll
          for (int k = 0; k < ACROSS; k++)
            for (int j = 0; j < 4; j++) {
              const float more = mk_fma(weight[i], value[i][k].v[j], sum[k].v[j]);
              if (c0 + i < a.top) sum[k].v[j] = more;
            }
      }
      if (a.more) mk_await(more, with, n, guard);
#pragma unroll
      for (int k = 0; k < ACROSS; k++) {
        for (int j = 0; j < 4; j++) {
          if (a.more) old[k].v[j] = mk_add(old[k].v[j], more[k].v[j]);
          old[k].v[j] = mk_add(old[k].v[j], sum[k].v[j]);
        }
        if (k && n[k] == first) continue;
        mk_store(reinterpret_cast<mk_float4*>(out + n[k]), old[k]);
        if (a.w) *norm.at(n[k]) = old[k];
      }
    }
    if (a.w) norm.write(c, a.h + int64_t(token) * a.n, a.eps, a.mean != 0);
  }
};
