// How groups cut the ragged dimension, and the walk that finds a row tile.
//
// Offsets are clamped to [previous, rows]: whatever they hold, no address leaves the arrays.

struct Grouping {
  const void* offs;        // end of each group: int32 or int64, num_groups of them
  int num_groups;
  int rows;                // length of the ragged dimension
  int offs_is_int64;
  int zero_tail;           // rows from offs[-1] on count as one more group, which becomes zeros
};

// Offset i, clamped to [0, rows] but not yet made monotonic.
__device__ __forceinline__ int load_offset(const Grouping& grouping, int i) {
  i64 end = grouping.offs_is_int64 ? static_cast<const i64*>(grouping.offs)[i]
                                   : i64(static_cast<const int*>(grouping.offs)[i]);
  end = end < 0 ? 0 : end;
  return end > grouping.rows ? grouping.rows : int(end);
}

__device__ __forceinline__ int warp_inclusive_max(int x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x = max_int(x, other);
  }
  return x;
}

__device__ __forceinline__ int warp_inclusive_sum(int x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

// Largest clamped offset before group `count`: where that group begins. Whole warp.
__device__ __forceinline__ int group_begin(const Grouping& grouping, int count, int lane) {
  int end = 0;
  for (int i = lane; i < count; i += 32) end = max_int(end, load_offset(grouping, i));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    end = max_int(end, __shfl_xor_sync(0xffffffffu, end, step));
  }
  return end;
}

// Rows of group `window` + lane, the tail being one more group; `start` is where the window begins.
// Whole warp.
__device__ __forceinline__ void window_rows(const Grouping& grouping, int window, int start, int lane,
                                            int& begin, int& end) {
  const int own = window + lane;
  end = 0;
  if (own < grouping.num_groups) end = load_offset(grouping, own);
  if (own >= grouping.num_groups && grouping.zero_tail) end = grouping.rows;
  end = max_int(warp_inclusive_max(end, lane), start);
  begin = __shfl_up_sync(0xffffffffu, end, 1);
  if (lane == 0) begin = start;
}

// Where a row tile lies.
struct RowTile {
  int group;
  int begin, end;   // rows of the group
  int first;        // number of the group's first row tile
};

// Finds row tiles by their number in the list of all groups' tiles. Numbers asked for must not fall;
// so the walk passes over the offsets once, 32 groups at a time. A warp walks by itself: no barrier,
// no shared memory, any number of groups.
struct RowTileWalk {
  int window = 0;         // first of the 32 groups looked at
  int window_start = 0;   // row where it begins
  int window_tiles = 0;   // tiles of all groups before it

  // Fills `tile` and returns true, or returns false if there are fewer tiles; then `window_tiles` is
  // their number. Whole warp, no divergence.
  __device__ __forceinline__ bool find(const Grouping& grouping, int block_m, int number,
                                       RowTile& tile) {
    const int lane = threadIdx.x & 31;
    for (;;) {
      int begin, end;
      window_rows(grouping, window, window_start, lane, begin, end);
      const int tiles = ceil_div(end - begin, block_m);
      const int through = window_tiles + warp_inclusive_sum(tiles, lane);
      const u32 holders = __ballot_sync(0xffffffffu, number < through);
      if (holders != 0) {
        const int owner = __ffs(holders) - 1;
        tile.group = window + owner;
        tile.begin = __shfl_sync(0xffffffffu, begin, owner);
        tile.end = __shfl_sync(0xffffffffu, end, owner);
        tile.first = __shfl_sync(0xffffffffu, through - tiles, owner);
        return true;
      }
      const int all = __shfl_sync(0xffffffffu, through, 31);
      if (window + 32 > grouping.num_groups) {   // the tail was among these 32
        window_tiles = all;
        return false;
      }
      window += 32;
      window_start = __shfl_sync(0xffffffffu, end, 31);
      window_tiles = all;
    }
  }
};
