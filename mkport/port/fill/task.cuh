// The fill body: garbage in the shared memory behind the ring, for a port to find there.
struct mk_fill : MkPort {
  MK_DEVICE static void compute(const MkFillArgs& a, int, MkCompute& c) {
    c.sync();  // all threads are through with the task before this one
    uint32_t* words = reinterpret_cast<uint32_t*>(c.ring.base + c.ring.bytes);
    for (int i = mk_thread(); i < a.bytes / 4; i += MK_COMPUTERS) words[i] = 0xffffffffu;
    c.sync();
  }
};
