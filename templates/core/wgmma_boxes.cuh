// The store boxes of a consumer: a ring in shared memory through which D goes by TMA.
//
// What is added to D in the ragged-K form comes by the same way: a box of D lands where its sum will
// be stored from. The first boxes of a tile are loaded while it is multiplied, each other one when the
// box in its place has been stored. Loaded barriers, one a box: 1 arrival, from the leader, which
// announces the bytes.

constexpr int BOX_COLUMNS = sizeof(out_t) == 4 ? 32 : 64 / FOLD;   // of D, in a store box
constexpr int BOX_PITCH = BOX_COLUMNS * int(sizeof(out_t));        // bytes of a row there
constexpr int BOXES_N = BLOCK_N / FOLD / BOX_COLUMNS;              // of a block of 64 rows
static_assert(!READS_D || GATE == GATE_NONE, "in the ragged-K form nothing is folded");

using BoxRing = Ring<STORE_BOXES>;

__device__ __forceinline__ u32 box_at(u32 base, int consumer, int place) {
  return base + STORES + (consumer * STORE_BOXES + place) * BOX_BYTES;
}
__device__ __forceinline__ u32 loaded_barrier(u32 base, int consumer, int place) {
  return base + LOADED_BARRIERS + (consumer * STORE_BOXES + place) * 8;
}

// Where a consumer's block of 64 rows begins in its tile.
__device__ __forceinline__ int block_row(int consumer, int block) {
  return ((PINGPONG ? 0 : consumer) + block * BLOCK_STEP) * ROWS;
}

// Loads a box of D, counted over the consumer's blocks of the tile. The leader does.
__device__ __forceinline__ void load_box(const TensorMap* map, u32 base, int place, const Slot& tile,
                                         int number, int consumer) {
  const u32 loaded = loaded_barrier(base, consumer, place);
  mbarrier_arrive_expect_tx(loaded, BOX_BYTES);
  tma_load_3d(box_at(base, consumer, place), map, loaded, tile.n0 + number % BOXES_N * BOX_COLUMNS,
              tile.m0 + block_row(consumer, number / BOXES_N), tile.group);
}

// Loads the first boxes, as soon as those of the tile before have been stored.
__device__ __forceinline__ void load_first(const TensorMap* map, u32 base, int place,
                                           const Slot& tile, int valid, int consumer) {
  bulk_wait_read<0>();
#pragma unroll
  for (int i = 0; i < STORE_BOXES; ++i) {
    if (i < valid * BOXES_N) {
      load_box(map, base, (place + i) % STORE_BOXES, tile, i, consumer);
    }
  }
}

// Loads the box that follows in the place before `place`, in which box `number` has just been given to
// TMA: by now the one before it has been read.
__device__ __forceinline__ void load_next(const TensorMap* map, u32 base, int place, const Slot& tile,
                                          int number, int valid, int consumer) {
  const int next = number - 1 + STORE_BOXES;
  if (number == 0 || next >= valid * BOXES_N) return;
  bulk_wait_read<1>();
  load_box(map, base, (place + STORE_BOXES - 1) % STORE_BOXES, tile, next, consumer);
}
