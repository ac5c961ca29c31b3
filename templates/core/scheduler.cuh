// Which tile a block works on. Blocks are persistent: block b takes tiles b, b + gridDim.x, ... of
// the flat list, group-major, then m, then n; a grid as long as the list makes it one tile a block.
//
// SCHEDULE_LIST   the list was built on the host (offsets known there)
// SCHEDULE_SCAN   ragged M: every warp walks the offsets itself, 32 groups at a time. A block's tiles
//                 only move forward, so the walk passes over the offsets once, and nothing is
//                 shared between warps: no barrier, no shared memory, any number of groups.
//                 ragged K: the list is regular, only the two ends of the group are looked up.
//
// Offsets are clamped to [previous, rows]: whatever they hold, no address leaves the arrays.

struct Tile {
  int group;      // num_groups for rows of the tail, which become zeros
  int m0, n0;     // first row of A and D, first column of B and D
  int m_valid;    // rows of the tile that belong to it
  int k0, k1;     // range of the contraction
};

// Offset i, clamped to [0, rows] but not yet made monotonic.
__device__ __forceinline__ int load_offset(const Arguments& args, int i) {
  i64 end = args.offs_is_int64 ? static_cast<const i64*>(args.offs)[i]
                               : i64(static_cast<const int*>(args.offs)[i]);
  end = end < 0 ? 0 : end;
  return end > args.rows ? args.rows : int(end);
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
__device__ __forceinline__ int prefix_end(const Arguments& args, int count, int lane) {
  int end = 0;
  for (int i = lane; i < count; i += 32) end = max_int(end, load_offset(args, i));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    end = max_int(end, __shfl_xor_sync(0xffffffffu, end, step));
  }
  return end;
}

struct Scheduler {
  int tile_idx;       // position of this block's next tile in the flat list
  int tiles_n;        // tiles along N
  int window;         // SCHEDULE_SCAN: first group of the 32 looked at
  int window_start;   // row where that group begins
  int window_tiles;   // m-tiles of all groups before it

  __device__ __forceinline__ explicit Scheduler(const Arguments& args)
      : tile_idx(blockIdx.x), tiles_n(ceil_div(args.dim_n, BLOCK_N)), window(0), window_start(0),
        window_tiles(0) {}

  // Fills `tile` and returns true, or returns false after the last tile. Whole warp, no divergence.
  __device__ __forceinline__ bool next(const Arguments& args, Tile& tile) {
    bool found;
    if constexpr (FORM == FORM_RAGGED_K) {
      found = next_ragged_k(args, tile);
    } else if constexpr (SCHEDULE == SCHEDULE_LIST) {
      found = next_listed(args, tile);
    } else {
      found = next_scanned(args, tile);
    }
    tile_idx += gridDim.x;
    return found;
  }

  __device__ __forceinline__ bool next_listed(const Arguments& args, Tile& tile) {
    if (tile_idx >= args.num_tiles) return false;
    const int4 entry = args.tiles[tile_idx];
    tile = {entry.x, entry.y, entry.w, entry.z, 0, entry.x < args.num_groups ? args.dim_k : 0};
    return true;
  }

  __device__ __forceinline__ bool next_scanned(const Arguments& args, Tile& tile) {
    const int lane = threadIdx.x & 31;
    const int m_tile = tile_idx / tiles_n;
    const int n0 = (tile_idx - m_tile * tiles_n) * BLOCK_N;
    for (;;) {
      // The tail counts as one more group behind the last.
      const int group = window + lane;
      int end = 0;
      if (group < args.num_groups) end = load_offset(args, group);
      if (group >= args.num_groups && args.zero_tail) end = args.rows;
      end = max_int(warp_inclusive_max(end, lane), window_start);
      int start = __shfl_up_sync(0xffffffffu, end, 1);
      if (lane == 0) start = window_start;
      const int tiles_m = ceil_div(end - start, BLOCK_M);
      const int through = window_tiles + warp_inclusive_sum(tiles_m, lane);
      const u32 holders = __ballot_sync(0xffffffffu, m_tile < through);
      if (holders != 0) {
        const int owner = __ffs(holders) - 1;
        const int first = __shfl_sync(0xffffffffu, through - tiles_m, owner);
        const int row_begin = __shfl_sync(0xffffffffu, start, owner);
        const int row_end = __shfl_sync(0xffffffffu, end, owner);
        const int m0 = row_begin + (m_tile - first) * BLOCK_M;
        tile.group = window + owner;
        tile.m0 = m0;
        tile.n0 = n0;
        tile.m_valid = min_int(BLOCK_M, row_end - m0);
        tile.k0 = 0;
        tile.k1 = tile.group < args.num_groups ? args.dim_k : 0;
        return true;
      }
      if (window + 32 > args.num_groups) return false;   // the tail was among these 32
      window += 32;
      window_start = __shfl_sync(0xffffffffu, end, 31);
      window_tiles = __shfl_sync(0xffffffffu, through, 31);
    }
  }

  __device__ __forceinline__ bool next_ragged_k(const Arguments& args, Tile& tile) {
    const int lane = threadIdx.x & 31;
    const int tiles_m = ceil_div(args.dim_m, BLOCK_M);
    const int tiles_group = tiles_m * tiles_n;
    const int group = tile_idx / tiles_group;
    if (group >= args.num_groups) return false;
    const int inside = tile_idx - group * tiles_group;
    const int m_tile = inside / tiles_n;
    tile.group = group;
    tile.m0 = m_tile * BLOCK_M;
    tile.n0 = (inside - m_tile * tiles_n) * BLOCK_N;
    tile.m_valid = min_int(BLOCK_M, args.dim_m - tile.m0);
    tile.k0 = prefix_end(args, group, lane);
    tile.k1 = max_int(tile.k0, load_offset(args, group));
    return true;
  }
};
