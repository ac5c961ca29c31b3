// How a consumer stores a block of 64 rows, through the epilogue: by TMA, or from its registers.
// Thread t of a consumer holds, of every 8 columns, columns 2(t%4)+{0,1} of rows 16(t/32) + t%32/4 and
// 8 below.

constexpr int UP = BLOCK_N / 4;                   // accumulators from a gate's to its factor's: HALVES

// Where the 16-byte chunk of a row lies in a store box, under the swizzle of the row's length.
__device__ __forceinline__ u32 box_chunk(int row, int chunk) {
  return row * BOX_PITCH + ((BOX_PITCH == 128 ? chunk ^ (row & 7) : chunk ^ (row / 2 & 3)) << 4);
}

// What the steps read for two neighbouring columns.
struct alignas(8) ColumnPair {
  EpilogueColumn column[2];
};

// What the steps read for the two rows of a thread, and where they find what they read for columns.
struct StorePlace {
  EpilogueRow rows[2];
  int consumer;
  int first;   // the thread's first column in the tile

  __device__ __forceinline__ StorePlace(const Arguments& args, int row0, int count, int group,
                                        int consumer, int lane)
      : consumer(consumer), first(lane % 4 * 2) {
    const int row = (threadIdx.x / 32 % 4) * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows[half] = Epilogue::row(args, group, row0 + row + half * 8, row + half * 8 < count);
    }
  }

  // Columns `at` and `at` + 1 past the first.
  __device__ __forceinline__ ColumnPair columns(int at) const {
    ColumnPair pair{};
    if constexpr (READS_COLUMNS) {
      pair = *reinterpret_cast<const ColumnPair*>(tile_column(consumer, first + at));
    }
    return pair;
  }

  // D in the two rows and columns `at` and `at` + 1, from the accumulators of those 8 columns.
  __device__ __forceinline__ void finish(float (&y)[4], const float* x, int at) const {
    if constexpr (HALVES) {
      const ColumnPair gate = columns(at), up = columns(BLOCK_N / 2 + at);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        y[e] = Epilogue::apply(x[e], x[UP + e], rows[0], gate.column[e], up.column[e]);
        y[2 + e] = Epilogue::apply(x[2 + e], x[UP + 2 + e], rows[1], gate.column[e], up.column[e]);
      }
    } else {
      const ColumnPair own = columns(at);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        y[e] = Epilogue::apply(x[e], rows[0], own.column[e]);
        y[2 + e] = Epilogue::apply(x[2 + e], rows[1], own.column[e]);
      }
    }
  }

  // D in the two rows of the one column that the columns `at` and `at` + 1 make.
  __device__ __forceinline__ void finish_interleaved(float (&y)[2], const float* x, int at) const {
    const ColumnPair pair = columns(at);
    y[0] = Epilogue::apply(x[0], x[1], rows[0], pair.column[0], pair.column[1]);
    y[1] = Epilogue::apply(x[2], x[3], rows[1], pair.column[0], pair.column[1]);
  }
};

// With three boxes and more, the barrier that ends the filling of one also says that the next is free:
// one barrier a box instead of two. In ping-pong, wgrad of 256 rows a group took 186 us so, 194 us
// otherwise; cooperative tiles took 1 % longer (H200, 2026-11-30).
constexpr bool ONE_BARRIER = PINGPONG && PLACES >= 3;

// Fills a store box with chunk `c` of the tile; READS_D: adds it to what the box holds.
__device__ __forceinline__ void fill_box(u32 box, const float* acc, int c, const StorePlace& place,
                                         int lane) {
  const int own_row = (threadIdx.x / 32 % 4) * 16 + lane / 4;
  if constexpr (GATE != GATE_NONE && !HALVES) {
#pragma unroll
    for (int i = 0; i < BOX_COLUMNS / 4; ++i) {
      const int at = (c * BOX_COLUMNS + i * 4) * FOLD;
      float y[2];
      place.finish_interleaved(y, acc + at / 2, at);
      const int byte = (i * 4 + lane % 4) * int(sizeof(out_t));
      store_shared(box + box_chunk(own_row, byte / 16) + byte % 16, from_float<out_t>(y[0]));
      store_shared(box + box_chunk(own_row + 8, byte / 16) + byte % 16, from_float<out_t>(y[1]));
    }
  } else if constexpr (sizeof(out_t) == 4) {
#pragma unroll
    for (int i = 0; i < BOX_COLUMNS / 8; ++i) {
      const int at = c * BOX_COLUMNS + i * 8;
      float y[4];
      place.finish(y, acc + at / 2, at);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int chunk = i * 2 + lane % 4 / 2;
        const u32 to = box + box_chunk(own_row + half * 8, chunk) + lane % 2 * 8;
        Pair<float> d{};
        if constexpr (READS_D) d = load_shared_pair(to);
        store_shared_pair(to, y[half * 2] + d.x, y[half * 2 + 1] + d.y);
      }
    }
  } else {
    const int row = (threadIdx.x / 32 % 4) * 16 + (lane & 15);
#pragma unroll
    for (int i = 0; i < BOX_COLUMNS / 16; ++i) {
      const int at = c * BOX_COLUMNS + i * 16;
      float left[4], right[4];
      // No columns are loaded ahead of these: they would take too many registers.
      if (READS_COLUMNS) __syncwarp();
      place.finish(left, acc + at / 2, at);
      if (READS_COLUMNS && HALVES) __syncwarp();
      place.finish(right, acc + at / 2 + 4, at + 8);
      stmatrix_x4(box + box_chunk(row, i * 2 + (lane >> 4)), pack_pair<out_t>(left[0], left[1]),
                  pack_pair<out_t>(left[2], left[3]), pack_pair<out_t>(right[0], right[1]),
                  pack_pair<out_t>(right[2], right[3]));
    }
  }
}

// Stores a block of 64 rows, a box at a time, through shared memory.
__device__ __forceinline__ void store_by_tma(const Arguments& args, const float (&acc)[BLOCK_N / 2],
                                             const TensorMap* map, u32 base, BoxRing& boxes,
                                             const Slot& tile, int block, int valid, int consumer,
                                             int lane, bool leader) {
  const int row0 = tile.m0 + block_row(consumer, block);
  const int rows = min_int(ROWS, tile.m_valid - block_row(consumer, block));
  const StorePlace place(args, row0, rows, tile.group, consumer, lane);
#pragma unroll
  for (int c = 0; c < BOXES_N; ++c) {
    const u32 box = box_at(base, consumer, boxes.place);
    if constexpr (READS_D) {
      mbarrier_wait(loaded_barrier(base, consumer, boxes.place), boxes.parity);
    } else if (!ONE_BARRIER) {
      if (leader) bulk_wait_read<PLACES - 1>();
      sync_consumer(consumer);
    }
    fill_box(box, acc, c, place, lane);
    fence_async_smem();
    if (!READS_D && ONE_BARRIER && leader) bulk_wait_read<max_int(PLACES - 2, 0)>();
    sync_consumer(consumer);
    if (leader) {
      // NOTE: no condition on dim_n here, the TMA unit drops such a box by itself. Under that
      // uniform condition ptxas 13.0 and 13.5 predicated the move of the coordinates into uniform
      // registers on false, and nothing was stored (block_m 64; seen on an H200, 2026-11-29).
      const BoxOrigin at(tile, block * BOXES_N + c, consumer);
      if constexpr (ACCUMULATES && !READS_D) {
        tma_add_3d(map, box, at.x, at.y, at.z);
      } else {
        tma_store_3d(map, box, at.x, at.y, at.z);
      }
      bulk_commit();
      if (READS_D) load_next(map, base, boxes.place, tile, block * BOXES_N + c, valid, consumer);
    }
    boxes.advance();
  }
}

// Pairs of columns of a thread in a row, and how many of them are read before the first is stored,
// where D is added to. Each read behind the store before it, so that all waited for each other, an
// accumulating wgrad of 256 rows a group took 1309 us, a plain store of FP32 318 (H200, 2026-11-30).
constexpr int PAIRS = BLOCK_N / FOLD / 8;
// Tiles of 192 accumulators a thread have no registers for more than one.
constexpr int AHEAD = !ACCUMULATES || BLOCKS * BLOCK_N / 2 > 128 ? 1 : PAIRS % 8 == 0 ? 8 : 4;
static_assert(PAIRS % AHEAD == 0, "no pair is left over");

// Stores a block of 64 rows straight from registers.
__device__ __forceinline__ void store_from_registers(const Arguments& args,
                                                     const float (&acc)[BLOCK_N / 2],
                                                     const Slot& tile, int block, int dim_n,
                                                     int consumer, int lane) {
  const int row = (threadIdx.x / 32 % 4) * 16 + lane / 4;
  const int row0 = tile.m0 + block_row(consumer, block), n0 = tile.n0;
  const int rows = min_int(ROWS, tile.m_valid - block_row(consumer, block));
  const StorePlace place(args, row0, rows, tile.group, consumer, lane);
  out_t* d = args.d + row0 * args.stride_dm + n0 / FOLD * args.stride_dn;
  if (FORM == FORM_RAGGED_K) d += tile.group * args.stride_dg;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int m = row + half * 8;
    if (m >= rows) continue;
    out_t* to = d + m * args.stride_dm;
    if constexpr (GATE == GATE_NONE || HALVES) {
#pragma unroll
      for (int first = 0; first < PAIRS; first += AHEAD) {
        Pair<out_t> old[AHEAD] = {};
#pragma unroll
        for (int i = 0; i < (ACCUMULATES ? AHEAD : 0); ++i) {
          const int n = (first + i) * 8 + lane % 4 * 2;
          old[i] = Epilogue::load_pair(to + n * args.stride_dn, args.stride_dn,
                                       (dim_n - n0) / FOLD - n);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
          const int c = first + i, n = c * 8 + lane % 4 * 2;
          float y[4];
          place.finish(y, acc + c * 4, c * 8);
          Epilogue::store_pair(to + n * args.stride_dn, args.stride_dn, y[half * 2],
                               y[half * 2 + 1], old[i], (dim_n - n0) / FOLD - n);
        }
      }
    } else {
#pragma unroll
      for (int c = 0; c < BLOCK_N / 8; ++c) {
        const int n = c * 4 + lane % 4;
        float y[2];
        place.finish_interleaved(y, acc + c * 4, c * 8);
        out_t* own = to + n * args.stride_dn;
        if (n < (dim_n - n0) / FOLD) *own = Epilogue::combine(y[half], own);
      }
    }
  }
}
