// Collectives within a warp, for an ordinary C++ compiler: written in what names.h says. A lane that
// is not there gives junk. Stands in names.h.
#pragma once

#define MK_LINE int line = __builtin_LINE()
template <class T>
struct MkGiven {
  T x, got;
  int from;
};
template <class T>
inline T mk_shuffle_from(const char* what, unsigned mask, T x, int from, int line) {
  MkGiven<T> given{x, x, from};
  mk_meet(mask, what, line, &given, [](void** all, uint32_t lanes) {
    for (int i = 0; i < 32; i++) {
      if (!(lanes >> i & 1)) continue;
      MkGiven<T>& g = *static_cast<MkGiven<T>*>(all[i]);
      if (lanes >> g.from & 1)
        g.got = static_cast<MkGiven<T>*>(all[g.from])->x;
      else
        mk_junk(&g.got, sizeof g.got);
    }
  });
  return given.got;
}
template <class T>
inline T __shfl_sync(unsigned mask, T x, int from, int width = 32, MK_LINE) {
  const int first = mk_lane() & ~(width - 1);
  return mk_shuffle_from("__shfl_sync", mask, x, first + (from & (width - 1)), line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32, MK_LINE) {
  const int first = mk_lane() & ~(width - 1), from = mk_lane() - int(by);
  return mk_shuffle_from("__shfl_up_sync", mask, x, from < first ? mk_lane() : from, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32, MK_LINE) {
  const int last = mk_lane() | (width - 1), from = mk_lane() + int(by);
  return mk_shuffle_from("__shfl_down_sync", mask, x, from > last ? mk_lane() : from, line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T x, int with, int width = 32, MK_LINE) {
  const int last = mk_lane() | (width - 1), from = mk_lane() ^ with;
  return mk_shuffle_from("__shfl_xor_sync", mask, x, from > last ? mk_lane() : from, line);
}
inline void __syncwarp(unsigned mask = ~0u, MK_LINE) {
  mk_meet(mask, "__syncwarp", line, nullptr, [](void**, uint32_t) {});
}
struct MkVote {
  bool p;
  unsigned set, there;
};
inline MkVote mk_vote(const char* what, unsigned mask, bool p, int line) {
  MkVote given{p, 0, 0};
  mk_meet(mask, what, line, &given, [](void** all, uint32_t lanes) {
    unsigned set = 0;
    for (int i = 0; i < 32; i++)
      if (lanes >> i & 1 && static_cast<MkVote*>(all[i])->p) set |= 1u << i;
    for (int i = 0; i < 32; i++)
      if (lanes >> i & 1) {
        static_cast<MkVote*>(all[i])->set = set;
        static_cast<MkVote*>(all[i])->there = lanes;
      }
  });
  return given;
}
inline unsigned __ballot_sync(unsigned mask, int p, MK_LINE) {
  return mk_vote("__ballot_sync", mask, p != 0, line).set;
}
inline int __any_sync(unsigned mask, int p, MK_LINE) {
  return mk_vote("__any_sync", mask, p != 0, line).set != 0;
}
inline int __all_sync(unsigned mask, int p, MK_LINE) {
  const MkVote vote = mk_vote("__all_sync", mask, p != 0, line);
  return vote.set == vote.there;
}
inline unsigned __activemask() { return mk_present(); }
template <class T>
struct MkMatch {
  T x;
  unsigned same, there;
};
template <class T>
inline MkMatch<T> mk_match(const char* what, unsigned mask, T x, int line) {
  MkMatch<T> given{x, 0, 0};
  mk_meet(mask, what, line, &given, [](void** all, uint32_t lanes) {
    for (int i = 0; i < 32; i++) {
      if (!(lanes >> i & 1)) continue;
      MkMatch<T>& g = *static_cast<MkMatch<T>*>(all[i]);
      g.there = lanes;
      for (int j = 0; j < 32; j++)
        if (lanes >> j & 1 && memcmp(&static_cast<MkMatch<T>*>(all[j])->x, &g.x, sizeof(T)) == 0)
          g.same |= 1u << j;
    }
  });
  return given;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T x, MK_LINE) {
  return mk_match("__match_any_sync", mask, x, line).same;
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T x, int* p, MK_LINE) {
  const MkMatch<T> found = mk_match("__match_all_sync", mask, x, line);
  *p = found.same == found.there;
  return *p ? found.there : 0;
}
#define MK_REDUCE(name, type, expression)                                            \
  inline type name(unsigned mask, type x, MK_LINE) {                                 \
    MkGiven<type> given{x, x, 0};                                                    \
    mk_meet(mask, #name, line, &given, [](void** all, uint32_t lanes) {              \
      bool first = true;                                                             \
      type a = 0;                                                                    \
      for (int i = 0; i < 32; i++) {                                                 \
        if (!(lanes >> i & 1)) continue;                                             \
        const type b = static_cast<MkGiven<type>*>(all[i])->x;                       \
        a = first ? b : (expression);                                                \
        first = false;                                                               \
      }                                                                              \
      for (int i = 0; i < 32; i++)                                                   \
        if (lanes >> i & 1) static_cast<MkGiven<type>*>(all[i])->got = a;            \
    });                                                                              \
    return given.got;                                                                \
  }
MK_REDUCE(__reduce_add_sync, unsigned, a + b)
MK_REDUCE(__reduce_add_sync, int, int(unsigned(a) + unsigned(b)))
MK_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
MK_REDUCE(__reduce_min_sync, int, a < b ? a : b)
MK_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
MK_REDUCE(__reduce_max_sync, int, a > b ? a : b)
MK_REDUCE(__reduce_and_sync, unsigned, a & b)
MK_REDUCE(__reduce_or_sync, unsigned, a | b)
MK_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef MK_REDUCE
