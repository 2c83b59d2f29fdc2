// The topk body: one token's experts, best first, and their weights. An expert's rank is the number
// of experts that come before it; a lower index wins a tie.
// Order: exponentials summed in 32 lanes, expert e in lane e % 32, lanes joined in halves; the
// chosen weights summed best first.
struct topk : MkBody {
  MK_DEVICE static void early(const TopkArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const TopkArgs& a, int tile, MkCompute& c) {
    if (tile >= c.notes[0]) return;
    float* z = reinterpret_cast<float*>(c.arena);               // [experts]
    int32_t* ids = reinterpret_cast<int32_t*>(z + a.experts);   // [k]
    float* weights = reinterpret_cast<float*>(ids + a.k);       // [k]
    const int64_t out = int64_t(tile) * a.k;
    c.sync();  // the tile before this one has been read
    bool broken = false;
#pragma unroll 1
    for (int e = mk_thread(); e < a.experts; e += MK_COMPUTERS) {
      z[e] = mk_load_coherent(a.z + int64_t(tile) * a.experts + e);
      broken |= mk_add(z[e], -z[e]) != 0.0f;  // infinite or NaN
    }
    if (c.any(broken)) {
#pragma unroll 1
      for (int i = mk_thread(); i < a.k; i += MK_COMPUTERS) {
        mk_store(a.ids + out + i, -1);
        mk_store(a.weights + out + i, mk_float(0x7fc00000));
      }
      return;
    }
#pragma unroll 1
    for (int first = 0; first < a.experts; first += MK_COMPUTERS / 2) {  // two lanes an expert
      const int e = first + mk_thread() / 2;
      int rank = e < a.experts ? before(z, a.experts, e, mk_thread() % 2) : a.k;
      rank += mk_shuffle_xor(rank, 1);
      if (rank < a.k) ids[rank] = e;
    }
    c.sync();
    const float highest = z[ids[0]];
    const float total = a.softmax ? sum(z, a.experts, highest) : 1.0f;
#pragma unroll 1
    for (int i = mk_thread(); i < a.k; i += MK_COMPUTERS) {
      const float x = z[ids[i]];
      weights[i] = a.softmax ? mk_div(exp(mk_add(x, -highest)), total)
                             : mk_div(1.0f, mk_add(1.0f, exp(-x)));
    }
    c.sync();
    float chosen = 1.0f;
    if (a.renormalise) {
      chosen = weights[0];
#pragma unroll 1
      for (int i = 1; i < a.k; i++) chosen = mk_add(chosen, weights[i]);
    }
#pragma unroll 1
    for (int i = mk_thread(); i < a.k; i += MK_COMPUTERS) {
      mk_store(a.ids + out + i, ids[i]);
      mk_store(a.weights + out + i, mk_mul(mk_div(weights[i], chosen), a.scale));
    }
  }

  // How many of every other four experts, from 4 `odd` on, come before expert e.
  MK_DEVICE static int before(const float* z, int experts, int e, int odd) {
    const float mine = z[e];
    int rank = 0;
#pragma unroll 2
    for (int i = odd * 4; i < experts; i += 8) {
      const mk_float4 other = *reinterpret_cast<const mk_float4*>(z + i);
      for (int j = 0; j < 4; j++) {
        const bool there = i + j < experts;
        rank += there && (other.v[j] > mine || (other.v[j] == mine && i + j < e));
      }
    }
    return rank;
  }
  MK_DEVICE static float sum(const float* z, int experts, float highest) {
    float sum = 0.0f;
#pragma unroll 1
    for (int e = mk_lane(); e < experts; e += 32) sum = mk_add(sum, exp(mk_add(z[e], -highest)));
    return mk_warp_sum(sum);  // every warp for itself
  }
  MK_DEVICE static float exp(float x) { return mk_exp2(mk_mul(x, 1.44269504f)); }
};
