// Rings of places in shared memory, guarded by mbarriers.

// Position in a ring: which place, and the parity of its current use. A wait that finds a place never
// used before is for the other parity, which is complete from the start.
template <int SIZE> struct Ring {
  int place = 0;
  u32 parity = 0;
  __device__ __forceinline__ void advance() {
    if (++place == SIZE) {
      place = 0;
      parity ^= 1;
    }
  }
  // The position after `count` steps from the start: what a counter kept anyway already says.
  static __device__ __forceinline__ Ring at(int count) {
    Ring ring;
    ring.place = count % SIZE;
    ring.parity = count / SIZE & 1;
    return ring;
  }
  // The position `count` steps on.
  __device__ __forceinline__ void advance(int count) {
    const int to = place + count;
    place = to % SIZE;
    parity ^= to / SIZE & 1;
  }
};

// Barriers of a ring's places: SIZE full ones, then SIZE empty ones.
template <int SIZE> __device__ __forceinline__ u32 full_barrier(u32 barriers, Ring<SIZE> ring) {
  return barriers + ring.place * 8;
}
template <int SIZE> __device__ __forceinline__ u32 empty_barrier(u32 barriers, Ring<SIZE> ring) {
  return barriers + (SIZE + ring.place) * 8;
}

template <int SIZE>
__device__ __forceinline__ void init_ring(u32 barriers, int full_arrivals, int empty_arrivals) {
  for (int i = 0; i < SIZE; ++i) {
    mbarrier_init(barriers + i * 8, full_arrivals);
    mbarrier_init(barriers + (SIZE + i) * 8, empty_arrivals);
  }
}
