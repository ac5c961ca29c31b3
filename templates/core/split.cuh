// Split K in the ragged-K form: a group with more than `split_rows` rows is computed in pieces of so
// many, the last one shorter, each of them a tile of the schedule; a group with no more is computed as
// ever. So multiprocessors share a group that has most of the rows, though its tiles are few.
//
// Pieces of a tile are added in pairs: 0 + 1, 2 + 3, ..., then the sums of pairs, and so on; an odd one
// waits for the next round. Which sums are formed follows from the number of pieces alone, and
// x + y = y + x to the last bit. So every run gives the same bits, and so does every batch.
//
// Nobody waits. Of the two that meet at a sum, whoever comes first leaves its part in the workspace and
// goes on to its next tile; whoever comes second adds both, and goes to the sum above. That of all
// pieces is stored through the epilogue. A counter for each sum says who was first; the second leaves
// it zero, as it was found.
//
// The workspace has 2 rows / split_rows places for each tile of a group, rounded down. A group that
// begins at row r has those from 2 r / split_rows on: no less than one for each of its pieces, since
// there are more than split_rows rows to a split group. So blocks find them without a word to each
// other. Threads leave their accumulators as they hold them.

// Which piece of its tile a tile of the schedule is.
struct Piece {
  int index, count;   // of the pieces of the tile; 1: not split
  int first;          // place of piece 0
};

// What slots hold of it: nothing where no group is split.
struct NoPiece {
  static constexpr int index = 0, count = 1, first = 0;
  NoPiece() = default;
  __device__ __forceinline__ NoPiece(const Piece&) {}
};
template <bool SPLIT> struct SlotPieceOf { using Type = NoPiece; };
template <> struct SlotPieceOf<true> { using Type = Piece; };
using SlotPiece = SlotPieceOf<SPLITS>::Type;

// Finds pieces by their number in the list of all groups' pieces, group by group; a group that is not
// split counts as one, an empty one too. Numbers asked for must not fall.
struct PieceWalk {
  int place = 0;          // the first group looked at, in the order of the scheduler
  int before = 0;         // pieces of all groups before it
  int start = 0;          // as they come: row where it begins
  bool whole = false;     // by rows: neither it nor one that follows is split

  // Fills `group`, its rows and which piece; or returns false if there are fewer. Whole warp.
  __device__ __forceinline__ bool find(const Grouping& grouping, const u16* by_rows, int split_rows,
                                       int number, int& group, int& begin, int& end, Piece& piece) {
    return by_rows != nullptr
        ? find_by_rows(grouping, by_rows, split_rows, number, group, begin, end, piece)
        : find_as_they_come(grouping, split_rows, number, group, begin, end, piece);
  }

  // Those that are split come first.
  __device__ __forceinline__ bool find_by_rows(const Grouping& grouping, const u16* by_rows,
                                               int split_rows, int number, int& group, int& begin,
                                               int& end, Piece& piece) {
    for (;;) {
      const int at = whole ? place + number - before : place;
      if (at >= grouping.num_groups) return false;
      group = by_rows[at];
      begin = group_begin(grouping, group, threadIdx.x & 31);
      end = max_int(begin, load_offset(grouping, group));
      piece.count = max_int(1, ceil_div(end - begin, split_rows));
      piece.index = whole ? 0 : number - before;
      if (piece.index < piece.count) return true;
      if (piece.count == 1) {
        whole = true;
      } else {
        before += piece.count;
        ++place;
      }
    }
  }

  // 32 groups at a time.
  __device__ __forceinline__ bool find_as_they_come(const Grouping& grouping, int split_rows, int number,
                                                    int& group, int& begin, int& end, Piece& piece) {
    const int lane = threadIdx.x & 31;
    for (;;) {
      int own_begin, own_end;
      window_rows(grouping, place, start, lane, own_begin, own_end);
      const int pieces = place + lane < grouping.num_groups
          ? max_int(1, ceil_div(own_end - own_begin, split_rows)) : 0;
      const int through = before + warp_inclusive_sum(pieces, lane);
      const u32 holders = __ballot_sync(0xffffffffu, number < through);
      if (holders != 0) {
        const int owner = __ffs(holders) - 1;
        group = place + owner;
        begin = __shfl_sync(0xffffffffu, own_begin, owner);
        end = __shfl_sync(0xffffffffu, own_end, owner);
        piece.count = __shfl_sync(0xffffffffu, pieces, owner);
        piece.index = number - __shfl_sync(0xffffffffu, through - pieces, owner);
        return true;
      }
      if (place + 32 >= grouping.num_groups) return false;
      place += 32;
      start = __shfl_sync(0xffffffffu, own_end, 31);
      before = __shfl_sync(0xffffffffu, through, 31);
    }
  }
};

// Places of the groups that end by this row; so where those of a group begin that begins with it.
__device__ __forceinline__ int piece_places(int rows, int split_rows) {
  return int(2 * u32(rows) / u32(split_rows));
}

// The next tile of a scheduler, which may be a piece of one. Whole warp, no divergence.
__device__ __forceinline__ bool next_piece(Scheduler& scheduler, PieceWalk& walk, const Arguments& args,
                                           Tile& tile, Piece& piece) {
  const int tiles_m = ceil_div(args.dim_m, BLOCK_M);
  const int tiles_group = tiles_m * scheduler.tiles_n;
  const int number = scheduler.tile_idx / tiles_group;
  const int inside = scheduler.tile_idx - number * tiles_group;
  if (ORDER != ORDER_CLAIMED) scheduler.tile_idx += gridDim.x;
  int begin, end;
  if (!walk.find(args.grouping, scheduler.by_rows, args.split_rows, number, tile.group, begin, end,
                 piece)) {
    return false;
  }
  const int m_tile = inside / scheduler.tiles_n;
  tile.m0 = m_tile * BLOCK_M;
  tile.n0 = (inside - m_tile * scheduler.tiles_n) * BLOCK_N;
  tile.m_valid = min_int(BLOCK_M, args.dim_m - tile.m0);
  tile.k0 = begin + piece.index * args.split_rows;
  tile.k1 = piece.index + 1 < piece.count ? tile.k0 + args.split_rows : end;
  if (piece.count == 1) return true;
  piece.first = inside * piece_places(args.grouping.rows, args.split_rows) +
                piece_places(begin, args.split_rows);
  return true;
}

// A consumer's part of a tile in the workspace: each thread's accumulators, four at a time. Those of
// rows that do not exist come along: where they were left out, accumulators were spilled.
constexpr int SHARERS = PINGPONG ? 1 : CONSUMERS;      // consumers of a tile
constexpr int BLOCK_FOURS = BLOCK_N / 8;               // of a thread, for 64 rows
constexpr int PART_FOURS = BLOCKS * BLOCK_FOURS * 128; // of a consumer
constexpr int FOURS_AHEAD = BLOCKS * BLOCK_N > 256 ? 4 : 8;   // loads in flight; registers are short

__device__ __forceinline__ float4* part_at(const Arguments& args, int place, int consumer) {
  const i64 part = PINGPONG ? i64(place) : i64(place) * SHARERS + consumer;
  return reinterpret_cast<float4*>(args.partials) + part * PART_FOURS + threadIdx.x % 128;
}

__device__ __forceinline__ void leave_part(float4* to, const float (&acc)[BLOCKS][BLOCK_N / 2]) {
#pragma unroll
  for (int j = 0; j < BLOCKS; ++j) {
#pragma unroll
    for (int i = 0; i < BLOCK_FOURS; ++i) {
      const float* x = acc[j] + i * 4;
      store_l2(to + (j * BLOCK_FOURS + i) * 128, make_float4(x[0], x[1], x[2], x[3]));
    }
  }
}

__device__ __forceinline__ void add_part(const float4* from, float (&acc)[BLOCKS][BLOCK_N / 2]) {
#pragma unroll
  for (int j = 0; j < BLOCKS; ++j) {
#pragma unroll
    for (int first = 0; first < BLOCK_FOURS; first += FOURS_AHEAD) {
      float4 x[FOURS_AHEAD];
#pragma unroll
      for (int i = 0; i < FOURS_AHEAD; ++i) x[i] = load_l2(from + (j * BLOCK_FOURS + first + i) * 128);
#pragma unroll
      for (int i = 0; i < FOURS_AHEAD; ++i) {
        float* y = acc[j] + (first + i) * 4;
        y[0] += x[i].x;
        y[1] += x[i].y;
        y[2] += x[i].z;
        y[3] += x[i].w;
      }
    }
  }
}

// Adds up the pieces of a tile as far as they are there. Returns whether the consumer now holds the sum
// of all; else another block will. The whole consumer.
__device__ __forceinline__ bool add_pieces(const Arguments& args, float (&acc)[BLOCKS][BLOCK_N / 2],
                                           const SlotPiece& piece, int consumer, bool leader) {
  for (int width = 1; width < piece.count; width *= 2) {
    const int left = piece.index & -(2 * width), right = left + width;   // what is added, by first piece
    if (right >= piece.count) continue;
    const bool is_left = piece.index < right;
    const int own = piece.first + (is_left ? left : right);
    const int other = piece.first + (is_left ? right : left);
    // One counter for each sum: no other has the same `right`.
    u32* arrivals = reinterpret_cast<u32*>(args.claims + 2) + (piece.first + right) * SHARERS +
                    (PINGPONG ? 0 : consumer);
    bool second = barrier_any(1 + consumer, 128, leader && load_acquire(arrivals) != 0);
    if (!second) {
      leave_part(part_at(args, own, consumer), acc);
      sync_consumer(consumer);
      second = barrier_any(1 + consumer, 128, leader && increment_acq_rel(arrivals) != 0);
      if (!second) return false;
    }
    add_part(part_at(args, other, consumer), acc);
    if (leader) *arrivals = 0;
  }
  return true;
}
