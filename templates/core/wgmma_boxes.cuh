// The store boxes of a consumer: a ring in shared memory through which D goes by TMA.
//
// READS_D: what is added to comes by the same way, a box of D lands where its sum will be stored from.
// The first boxes of a tile are loaded while it is multiplied, each other one when the box in its place
// has been stored. Loaded barriers, one a box: 1 arrival, from the leader, which announces the bytes.

constexpr int BOX_COLUMNS = sizeof(out_t) == 4 ? 32 : 64 / FOLD;   // of D, in a store box
constexpr int BOX_PITCH = BOX_COLUMNS * int(sizeof(out_t));        // bytes of a row there
constexpr int BOXES_N = BLOCK_N / FOLD / BOX_COLUMNS;              // of a block of 64 rows

// Boxes of 64 bytes a row lie two in the place of one. With two of them, bias, split gates and row scale
// took 1.040 of a plain store's time, with one 1.052 (16k rows, one H200, cool, 2026-11-30).
constexpr int PLACE_BYTES = ROWS * BOX_PITCH;
constexpr int PLACES = STORE_BOXES * BOX_BYTES / PLACE_BYTES;
using BoxRing = Ring<max_int(PLACES, 1)>;

__device__ __forceinline__ u32 box_at(u32 base, int consumer, int place) {
  return base + STORES + consumer * STORE_BOXES * BOX_BYTES + place * PLACE_BYTES;
}
__device__ __forceinline__ u32 loaded_barrier(u32 base, int consumer, int place) {
  return base + LOADED_BARRIERS + (consumer * STORE_BOXES + place) * 8;
}

// Where a consumer's block of 64 rows begins in its tile.
__device__ __forceinline__ int block_row(int consumer, int block) {
  return ((PINGPONG ? 0 : consumer) + block * BLOCK_STEP) * ROWS;
}

// Box `number` of D, counted over a consumer's blocks of the tile, in the map of D.
//
// In the ragged-M form rows behind the tile's `m_valid` must be left alone. So the map has rows twice:
// element (x, y, z) is row y + z - 64 of D, and y ends at 64. A box that starts at y = 64 - rows,
// z = row0 + rows covers the rows from row0 on, of which those past row0 + rows lie outside. In the
// ragged-K form the map is (n, m, g), and M ends where the rows do.
struct BoxOrigin {
  int x, y, z;
  __device__ __forceinline__ BoxOrigin(const Slot& tile, int number, int consumer) {
    const int row = block_row(consumer, number / BOXES_N);
    const int rows = min_int(ROWS, tile.m_valid - row);
    x = tile.n0 / FOLD + number % BOXES_N * BOX_COLUMNS;
    y = FORM == FORM_RAGGED_M ? ROWS - rows : tile.m0 + row;
    z = FORM == FORM_RAGGED_M ? tile.m0 + row + rows : tile.group;
  }
};

// Loads a box of D. The leader does.
__device__ __forceinline__ void load_box(const TensorMap* map, u32 base, int place, const Slot& tile,
                                         int number, int consumer) {
  const u32 loaded = loaded_barrier(base, consumer, place);
  const BoxOrigin at(tile, number, consumer);
  mbarrier_arrive_expect_tx(loaded, BOX_BYTES);
  tma_load_3d(box_at(base, consumer, place), map, loaded, at.x, at.y, at.z);
}

// Loads the first boxes, as soon as those of the tile before have been stored. Bringing the others as
// far as L2 at the same time made an accumulating wgrad 7 to 17 % slower (H200, 2026-11-30).
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
