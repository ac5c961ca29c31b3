// Which tile a block works on. Blocks are persistent and take tiles of the flat list: group-major, then
// m, then n. A grid as long as the list makes it one tile a block.
//
// SCHEDULE_LIST     the list was built on the host, from offsets known there: entries
//                   (group, row0, rows, col0)
// SCHEDULE_COMPACT  the list was built by the kernel tile_list: its length, then such entries
// SCHEDULE_SCAN     there is no list: every scheduling warp walks the offsets itself
//
// ORDER_LISTED      block b takes tiles b, b + gridDim.x, ...
// ORDER_CLAIMED     block b takes tile b, then whichever is next when it is ready for it: a counter in
//                   device memory says which. In the ragged-K form the groups come by falling rows, so
//                   that short tiles even out what long ones left. Where all tiles are alike, blocks
//                   take turns as in the list after all (core/turns.cuh).
//                   Which block computes a tile has no influence on the tile.
//
// SCHEDULE_SCAN walks a group in bands of RASTER_M tiles along M; within a band M runs fastest, so that
// blocks at work together share what they read of B. RASTER_M = 1 is the plain order.
//
// In the ragged-K form the list is regular, and only the two ends of a group are looked up.

struct Tile {
  int group;      // num_groups for rows of the tail, which become zeros
  int m0, n0;     // first row of A and D, first column of B and D
  int m_valid;    // rows of the tile that belong to it
  int k0, k1;     // range of the contraction
};

struct Scheduler {
  int tile_idx;       // position of this block's next tile in the flat list
  int tiles_n;        // tiles along N
  RowTileWalk walk;   // SCHEDULE_SCAN
  const u16* by_rows = nullptr;   // ORDER_CLAIMED, ragged K: groups by falling rows; null as they come
  bool in_turn = false;           // ORDER_CLAIMED: nothing is claimed after all
  int step = 0;                   // in_turn: 1 to move on by one position from wave to wave

  __device__ __forceinline__ explicit Scheduler(const Arguments& args)
      : tile_idx(blockIdx.x), tiles_n(ceil_div(args.dim_n, BLOCK_N)) {}

  // Fills `tile` and returns true, or returns false after the last tile. Whole warp, no divergence.
  // With ORDER_CLAIMED, `claim` comes before the next call.
  __device__ __forceinline__ bool next(const Arguments& args, Tile& tile) {
    bool found;
    if constexpr (FORM == FORM_RAGGED_K) {
      found = next_ragged_k(args, tile);
    } else if constexpr (SCHEDULE == SCHEDULE_SCAN) {
      found = next_scanned(args, tile);
    } else {
      found = next_listed(args, tile);
    }
    if (ORDER != ORDER_CLAIMED) tile_idx += gridDim.x;
    return found;
  }

  // Claims the next tile. Whole warp.
  __device__ __forceinline__ void claim(const Arguments& args) {
    if (in_turn) {
      tile_idx += int(gridDim.x) + step;
      if (step != 0 && tile_idx % int(gridDim.x) == 0) tile_idx -= gridDim.x;   // from last to first
      return;
    }
    int count = 0;
    if ((threadIdx.x & 31) == 0) count = atomicAdd(args.claims, 1);
    tile_idx = int(gridDim.x) + __shfl_sync(0xffffffffu, count, 0);
  }

  // After the last tile: the last block of the grid leaves the counters as it found them, zero.
  __device__ __forceinline__ void release_claims(const Arguments& args) {
    if ((threadIdx.x & 31) != 0 || args.claims == nullptr) return;
    if (atomicAdd(args.claims + 1, 1) == int(gridDim.x) - 1) {
      args.claims[0] = 0;
      args.claims[1] = 0;
    }
  }

  __device__ __forceinline__ bool next_listed(const Arguments& args, Tile& tile) {
    constexpr bool COUNTED = SCHEDULE == SCHEDULE_COMPACT;
    if (tile_idx >= (COUNTED ? args.tiles[0].x : args.num_tiles)) return false;
    const int4 entry = args.tiles[tile_idx + COUNTED];
    const bool tail = entry.x == args.grouping.num_groups;
    tile = {entry.x, entry.y, entry.w, entry.z, 0, tail ? 0 : args.dim_k};
    return true;
  }

  __device__ __forceinline__ bool next_scanned(const Arguments& args, Tile& tile) {
    // Groups own whole rows of the list, so this row tile's group is the tile's, whatever the raster.
    RowTile row;
    if (!walk.find(args.grouping, BLOCK_M, tile_idx / tiles_n, row)) return false;
    const int inside = tile_idx - row.first * tiles_n;
    const int band = inside / (RASTER_M * tiles_n);
    const int in_band = inside - band * RASTER_M * tiles_n;
    const int tiles_m = ceil_div(row.end - row.begin, BLOCK_M);
    const int height = min_int(RASTER_M, tiles_m - band * RASTER_M);
    const int n_tile = RASTER_M == 1 ? in_band : in_band / height;
    const int m_tile = band * RASTER_M + in_band - n_tile * height;
    tile.group = row.group;
    tile.m0 = row.begin + m_tile * BLOCK_M;
    tile.n0 = n_tile * BLOCK_N;
    tile.m_valid = min_int(BLOCK_M, row.end - tile.m0);
    tile.k0 = 0;
    tile.k1 = row.group < args.grouping.num_groups ? args.dim_k : 0;
    return true;
  }

  __device__ __forceinline__ bool next_ragged_k(const Arguments& args, Tile& tile) {
    const int tiles_m = ceil_div(args.dim_m, BLOCK_M);
    const int tiles_group = tiles_m * tiles_n;
    const int place = tile_idx / tiles_group;
    if (place >= args.grouping.num_groups) return false;
    const int group = by_rows != nullptr ? by_rows[place] : place;
    const int inside = tile_idx - place * tiles_group;
    const int m_tile = inside / tiles_n;
    tile.group = group;
    tile.m0 = m_tile * BLOCK_M;
    tile.n0 = (inside - m_tile * tiles_n) * BLOCK_N;
    tile.m_valid = min_int(BLOCK_M, args.dim_m - tile.m0);
    tile.k0 = group_begin(args.grouping, group, threadIdx.x & 31);
    tile.k1 = max_int(tile.k0, load_offset(args.grouping, group));
    return true;
  }
};
