// The sample_join body: one row. The larger value, then the lower index, wins; a block that has no
// best counts as the largest of all, so that its -1 does. Of a row that is cut, the token that
// `sample` found stays if it is among those left, which is so nearly always: one look at those that
// are larger tells. If not, the k-th largest is looked for, or, with top_p, only larger ones can be,
// and the best of these is next. What lies in a group whose largest value is too small is never read.
// Counts and weights are whole numbers, so the order in which groups come does not matter.
struct sample_join : MkBody {
  enum {
    RIVALS = 20,
    BUCKETS = MK_COMPUTERS,  // a thread each
    FLIGHT = 8,              // groups that a warp has under way
    PEAKS = 8,               // and peaks that a thread has
  };
  using Best = MkDraw::Best;

  struct Room {  // the stage buffer
    Best best[MK_COMPUTE_WARPS];
    int64_t weights[MK_COMPUTE_WARPS];
    int32_t counts[MK_COMPUTE_WARPS];
    int32_t listed, collected;     // groups in `list`, values in `values`
    int32_t bucket, above, found;  // where the k-th place is, and how many are above and in there
    int32_t columns[RIVALS];
    float values[RIVALS];
    int32_t buckets[BUCKETS];
    uint16_t list[1];              // as many as there are groups
  };
  struct Source {  // values, and the largest of each group of them, if it is known
    const float* values;
    const float* peaks;
    const float* sums;
    int n;
    bool aligned;
    MK_DEVICE int groups() const { return (n + MkDraw::GROUP - 1) / MkDraw::GROUP; }
  };
  // What a look at a row is for; there is one place that looks, since code that runs once a step must
  // be fetched each time.
  enum Kind {
    TOP,        // the largest peak
    TOTAL,      // the weight of all values, by the groups' sums
    WEIGH,      // how many values have places from `low` on, and their weight
    COUNT,      // how many of them are in each bucket
    RACE,       // the largest with noise
    COLLECT,    // all of them
    DONE,
  };
  struct Found {
    int32_t count;
    int64_t weight;
    Best best;
  };
  struct Row {  // what all looks at a row have in common
    MkCompute& c;
    Room& room;
    const MkDraw& way;
    int position;
    float top;            // the largest value
    uint64_t low, high;   // the places that are looked for
    int shift;            // of a place, to its bucket
    int k, above;         // the k-th place is looked for; so many are above `high`
    bool peaks;           // among peaks, which bound it
    uint64_t whole;       // `low`, before it was looked for
  };

  MK_DEVICE static void early(const SampleJoinArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const SampleJoinArgs& a, int tile, MkCompute& c) {
    if (tile >= c.notes[0]) return;
    const int parts = (a.n + MkDraw::COLUMNS - 1) / MkDraw::COLUMNS;
    const MkDraw way(a.sampling + tile * MkDraw::WORDS);
    Best best = MkDraw::nothing();
#pragma unroll 1
    for (int part = MkDraw::thread(); part < parts; part += MK_COMPUTERS) {
      const int64_t at = int64_t(tile) * parts + part;
      const Best more = {mk_load_coherent(a.best + at), mk_load_coherent(a.at + at)};
      best.join({more.at < 0 ? mk_float(0x7f800000) : more.value, more.at});
    }
    Room& room = *reinterpret_cast<Room*>(c.arena);
    best = joined({0, 0, best}, c, room).best;
    int token = best.at;
    if (token >= 0 && best.value == mk_float(0xff800000u)) token = -2;
    const bool counts = way.w[MkDraw::FLAGS] & (MkDraw::REPEATS | MkDraw::COUNTS);
    if (token >= 0 && (way.cut() || counts || way.w[MkDraw::TOLD] || way.w[MkDraw::GIVEN])) {
      const int at = mk_load_immutable(a.index + tile);
      Row row = {c, room, way, mk_load_immutable(a.rows + 2 * at + 1)};
      for (int told = way.cut() ? 0 : 1; told < 2; told++) {
        if (told && way.w[MkDraw::GIVEN]) token = way.w[MkDraw::GIVEN] - 1;
        if (!told || way.w[MkDraw::TOLD]) token = search(a, row, tile, told, token);
      }
      if (counts && MkDraw::thread() == 0) {
        const int padded = (a.n + MkDraw::GROUP - 1) / MkDraw::GROUP * MkDraw::GROUP;
        int32_t* tally = a.tally + int64_t(mk_load_immutable(a.rows + 2 * at)) * padded + token;
        mk_store(tally, mk_load_coherent(tally) + 1);
      }
    }
    if (MkDraw::thread() == 0) mk_store(a.y + tile, token);
    c.sync();  // the next tile may use the room
  }

  // Of a row that is cut, the best of the tokens that min_p, top_k and top_p leave; `token` is the
  // best of all. With `told`, writes what the row is told of `token` and the likeliest.
  MK_DEVICE static int search(const SampleJoinArgs& a, Row& row, int tile, bool told, int token) {
    const int groups = (a.n + MkDraw::GROUP - 1) / MkDraw::GROUP, padded = groups * MkDraw::GROUP;
    const int64_t at = (int64_t(tile) * 2 + told) * groups;
    Source s = {a.scores + int64_t(tile) * padded, a.peaks + at, a.sums + at, padded, true};
    if (told) s.values = a.x + int64_t(tile) * a.n, s.n = a.n, s.aligned = a.n % 4 == 0;
    const uint32_t share = told ? 0 : row.way.w[MkDraw::TOP_P];
    const bool floored = !told && row.way.w[MkDraw::FLAGS] & MkDraw::CUTS;
    const int most = told ? row.way.w[MkDraw::TOLD] - 1 : row.way.w[MkDraw::TOP_K];
    row.k = most < a.n ? most : a.n;
    float* logprobs = a.logprobs + tile * (RIVALS + 1);
    float base = 0.0f;
    uint64_t needed = 0, floor = MkDraw::LOWEST;  // floor: the place from which on min_p leaves values
    row.low = floor;
    Kind kind = TOP;
    while (true) {
      Source here = s;
      if (kind == COUNT && row.peaks) here = {s.peaks, nullptr, nullptr, groups, groups % 4 == 0};
      const Found found = look(row, here, kind);
      const Kind done = kind;
      kind = DONE;
      if (done == TOP) {
        row.top = found.best.value;
        if (floored) {
          const float bound = mk_add(row.top, mk_float(row.way.w[MkDraw::MIN_P]));
          const uint64_t place = MkDraw::place(bound, -1);
          floor = floor < place ? place : floor;
          row.low = floor;
        }
        if (told || (share > 0 && row.k == 0 && !floored))
          kind = TOTAL;
        else if (share > 0)
          kind = row.k > 0 ? kth(row, groups) : WEIGH;
      } else if (done == COUNT) {
        kind = narrow(row) ? COUNT : told ? COLLECT : share > 0 ? WEIGH : RACE;
      } else if (done == TOTAL && told) {
        base = MkDraw::log(mk_mul(static_cast<float>(found.weight), 1.0f / MkDraw::ONE));
        if (MkDraw::thread() == 0)
          mk_store(logprobs, mk_add(mk_add(mk_load_coherent(s.values + token), -row.top), -base));
        if (row.k == 0) return token;
        kind = kth(row, groups);
      } else if (done == COLLECT) {
        rank(a, row, tile, base);
        return token;
      } else if (done == RACE) {
        token = found.best.at;
        if (share == 0) return token;  // the best of all that are left
      } else if (needed == 0 && share > 0) {  // of what is left now
        needed = uint64_t(found.weight);
        needed = (needed >> 32) * share + ((needed & 0xffffffffu) * share >> 32);
        needed = needed ? needed : 1;
      } else {  // what is larger than the token
        if ((row.k == 0 || found.count < row.k) && (share == 0 || uint64_t(found.weight) < needed))
          return token;
        kind = RACE;
      }
      if (kind == DONE) {  // is the token among those left?
        const uint64_t place = MkDraw::place(mk_load_coherent(s.values + token), token);
        if (place >= row.low && row.k == 0 && share == 0) return token;
        kind = place >= row.low ? WEIGH : RACE;
        if (kind == WEIGH) row.low = place + 1;
      }
      if (kind == RACE && done != COUNT && row.k > 0 && share == 0) {
        row.low = floor;
        kind = kth(row, groups);
      }
    }
  }

  // Begins to look for a place that exactly the k largest of those from `low` on reach. No value of a
  // group is above its peak, so k peaks bound it.
  MK_DEVICE static Kind kth(Row& row, int groups) {
    row.whole = row.low;
    row.peaks = row.k <= groups;
    range(row, MkDraw::place(mk_float(0x7f800000), 0));
    row.above = 0;
    return COUNT;
  }
  MK_DEVICE static void range(Row& row, uint64_t high) {
    row.high = high;
    row.shift = 0;
#pragma unroll 1
    while ((row.high - row.low) >> row.shift >= BUCKETS) row.shift++;
    row.room.buckets[MkDraw::thread()] = 0;
  }
  // Goes on to the bucket that holds the k-th; false when `low` is found.
  MK_DEVICE static bool narrow(Row& row) {
    bool over = !find(row, row.k, row.above);  // they are fewer
    if (!over) {
      row.low += uint64_t(row.room.bucket) << row.shift;
      row.above = row.room.above;
      over = row.room.found == 1 || row.above + row.room.found == row.k;
    }
    if (!over) {
      const uint64_t end = row.low + (uint64_t(1) << row.shift) - 1;
      range(row, row.high < end ? row.high : end);
    } else if (row.peaks) {
      row.peaks = false;
      row.low = row.low >> 32 << 32;
      row.low = row.low < row.whole ? row.whole : row.low;
      range(row, MkDraw::place(mk_float(0x7f800000), 0));
      row.above = 0;
      over = false;
    }
    return !over;
  }
  // Which bucket, from the highest on, holds the k-th; `above` were counted in none of them.
  MK_DEVICE static bool find(Row& row, int k, int above) {
    Room& room = row.room;
    const int bucket = BUCKETS - 1 - MkDraw::thread();
    if (MkDraw::thread() == 0) room.bucket = -1;
    const int count = room.buckets[bucket];
    int sum = count;
#pragma unroll 1
    for (int step = 1; step < 32; step *= 2) {
      const int before = mk_shuffle(sum, MkDraw::lane() < step ? 0 : MkDraw::lane() - step);
      if (MkDraw::lane() >= step) sum += before;
    }
    if (MkDraw::lane() == 31) room.counts[MkDraw::warp()] = sum;
    row.c.sync();
#pragma unroll 1
    for (int warp = 0; warp < MkDraw::warp(); warp++) sum += room.counts[warp];
    sum += above;
    if (sum - count < k && sum >= k) {
      room.bucket = bucket;
      room.above = sum - count;
      room.found = count;
    }
    row.c.sync();
    return room.bucket >= 0;
  }

  // The ids and log probabilities of what was collected, the largest first.
  MK_DEVICE static void rank(const SampleJoinArgs& a, const Row& row, int tile, float base) {
    const int me = MkDraw::thread();
    if (me >= row.k) return;
    const float value = row.room.values[me];
    const uint64_t place = MkDraw::place(value, row.room.columns[me]);
    int rank = 0;
#pragma unroll 1
    for (int i = 0; i < row.k; i++)
      rank += MkDraw::place(row.room.values[i], row.room.columns[i]) > place;
    mk_store(a.ids + tile * RIVALS + rank, row.room.columns[me]);
    mk_store(a.logprobs + tile * (RIVALS + 1) + rank + 1,
             mk_add(mk_add(value, -row.top), -base));
  }

  MK_DEVICE static Found look(Row& row, const Source& s, Kind kind) {
    Room& room = row.room;
    const int groups = s.groups();
    if (MkDraw::thread() == 0) room.listed = room.collected = 0;
    row.c.sync();
    Found found = {0, 0, MkDraw::nothing()};
#pragma unroll 1
    for (int first = MkDraw::thread(); first < groups; first += MK_COMPUTERS * PEAKS) {
      float peak[PEAKS] = {}, sum[PEAKS] = {};
      if (s.peaks) fetch(peak, s.peaks, first, groups);
      if (kind == TOTAL) fetch(sum, s.sums, first, groups);
#pragma unroll 1
      for (int i = 0; i < PEAKS; i++) {
        const int group = first + i * MK_COMPUTERS;
        if (group >= groups) break;
        if (kind == TOP) {
          found.best.join({peak[0], group});
        } else if (kind == TOTAL) {
          const float part = mk_mul(sum[0], MkDraw::exp(mk_add(peak[0], -row.top)));
          found.weight += static_cast<int64_t>(mk_mul(part, MkDraw::ONE));
        } else if (!s.peaks || MkDraw::place(peak[0], group * MkDraw::GROUP) >= row.low) {
          room.list[mk_take(&room.listed, 1)] = group;
        }
#pragma unroll
        for (int j = 0; j + 1 < PEAKS; j++) peak[j] = peak[j + 1], sum[j] = sum[j + 1];
      }
    }
    row.c.sync();
    int listed = room.listed;
    // As many groups have a value from `low` on, but perhaps that in which `low` lies: too many
    // for top_k, so what they weigh does not matter.
    if (kind == WEIGH && row.k > 0 && listed > row.k + 1) {
      if (MkDraw::thread() == 0) found.count = row.k;
      listed = 0;
    }
#pragma unroll 1
    for (int first = MkDraw::warp(); first < listed; first += MK_COMPUTE_WARPS * FLIGHT) {
      mk_float4 v[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        const int at = first + i * MK_COMPUTE_WARPS;
        v[i] = MkDraw::four(s.values, column(room, at < listed ? at : first), s.n, s.aligned);
      }
      const float best = mk_warp_max(found.best.value);
#pragma unroll 1
      for (int i = 0; i < FLIGHT && first + i * MK_COMPUTE_WARPS < listed; i++) {
        const int at = column(room, first + i * MK_COMPUTE_WARPS);
        uint32_t words[4] = {};
        if (kind == RACE) row.way.words(words, at, row.position);
#pragma unroll 1
        for (int j = 0; j < 4; j++) {
          const float value = v[0].v[0];
          if (MkDraw::place(value, at + j) >= row.low)
            take(row, kind, value, at + j, words[0], best, found);
#pragma unroll
          for (int l = 0; l < 3; l++) v[0].v[l] = v[0].v[l + 1], words[l] = words[l + 1];
        }
#pragma unroll
        for (int l = 0; l + 1 < FLIGHT; l++) v[l] = v[l + 1];
      }
    }
    return joined(found, row.c, room);
  }
  // A thread's numbers of the groups, all under way at once; behind the last it is one of them again.
  MK_DEVICE static void fetch(float (&v)[PEAKS], const float* from, int first, int groups) {
#pragma unroll
    for (int i = 0; i < PEAKS; i++) {
      const int at = first + i * MK_COMPUTERS;
      v[i] = mk_load_coherent(from + (at < groups ? at : first));
    }
  }
  MK_DEVICE static int column(const Room& room, int at) {
    return room.list[at] * MkDraw::GROUP + MkDraw::lane() * 4;
  }
  // False only if value + its noise is below `best`, for sure: noise is at most -log v, and an error of
  // what is rounded here is far below the hundredth that is added.
  MK_DEVICE static bool may_reach(uint32_t word, float value, float best) {
    const float share = mk_exp2(mk_mul(mk_add(value, -best), 1.44269504f));  // e^(value - best)
    return static_cast<float>(word) <= mk_mul(share, 4.3379e9f) || best > 65536.0f ||
           best < -65536.0f;
  }
  // `best`: some value with noise that was found before
  MK_DEVICE static void take(Row& row, Kind kind, float value, int at, uint32_t word, float best,
                             Found& found) {
    if (kind == WEIGH) {
      found.count++;
      found.weight += MkDraw::weight(value, row.top);
    } else if (kind == RACE) {
      if (may_reach(word, value, best))
        found.best.join({mk_add(value, MkDraw::noise(word)), at});
    } else if (kind == COUNT) {
      const uint64_t place = MkDraw::place(value, at);
      if (place <= row.high) mk_take(&row.room.buckets[(place - row.low) >> row.shift], 1);
    } else {
      const int slot = mk_take(&row.room.collected, 1);
      row.room.columns[slot] = at;
      row.room.values[slot] = value;
    }
  }

  // What all threads found together, for each of them.
  MK_DEVICE static Found joined(Found f, const MkCompute& c, Room& room) {
    f.best.join_warp();
#pragma unroll 1
    for (int mask = 16; mask; mask /= 2) {
      f.count += mk_shuffle_xor(f.count, mask);
      const int32_t high = mk_shuffle_xor(int32_t(f.weight >> 32), mask);
      const uint32_t low = mk_shuffle_xor(int32_t(f.weight), mask);
      f.weight += int64_t(high) << 32 | low;
    }
    if (MkDraw::lane() == 0) {
      room.best[MkDraw::warp()] = f.best;
      room.counts[MkDraw::warp()] = f.count;
      room.weights[MkDraw::warp()] = f.weight;
    }
    c.sync();
    f = {0, 0, MkDraw::nothing()};
#pragma unroll 1
    for (int warp = 0; warp < MK_COMPUTE_WARPS; warp++) {
      f.best.join(room.best[warp]);
      f.count += room.counts[warp];
      f.weight += room.weights[warp];
    }
    c.sync();
    return f;
  }
};
