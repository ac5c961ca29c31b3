// Whether blocks claim tiles or take turns. All blocks find the same, and what they find decides the
// order of tiles alone.
//
// Where all tiles are alike, blocks that start together stay together, and neighbours read the same
// operands at the same time. Measured on one H200 (2026-11-30), us hot / cool.
//
//   fprop, rows a group        in turn       moving on     claimed
//   256: full tiles            177 / 144     174 / 145     175 / 149
//   171: even, partial tiles   749 / 658     498 / 454     534 / 477
//   402 to 2,801               1282 / 1079   1257 / 1088   1121 / 951
//
// Moving on: from wave to wave, each block takes the next position. Else the same blocks would get
// all the partial tiles. wgrad: even groups of 256 rows took 1 to 2 % longer when claimed, of 512 rows
// 3 %; of 64 rows and less, where loads and stores of other tiles decide, claiming gains 3 %.

constexpr int MAX_LOOKED_AT = 1024;   // groups; more of them count as uneven

struct GroupSizes {
  int largest;     // rows
  int nonempty;    // groups
  bool partial;    // some group is no multiple of the tile
};

// Looks at all groups. Whole warp.
__device__ __forceinline__ GroupSizes look_at_groups(const Grouping& grouping) {
  const int lane = threadIdx.x & 31;
  GroupSizes sizes = {0, 0, false};
#pragma unroll 1   // registers are short here
  for (int i = lane; i < grouping.num_groups; i += 32) {
    const int rows = load_offset(grouping, i) - (i > 0 ? load_offset(grouping, i - 1) : 0);
    sizes.largest = max_int(sizes.largest, rows);
    sizes.nonempty += rows > 0;
    sizes.partial |= rows > 0 && rows % BLOCK_M != 0;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    sizes.largest = max_int(sizes.largest, __shfl_xor_sync(0xffffffffu, sizes.largest, step));
    sizes.nonempty += __shfl_xor_sync(0xffffffffu, sizes.nonempty, step);
  }
  sizes.partial = __ballot_sync(0xffffffffu, sizes.partial) != 0;
  return sizes;
}

// Whether the largest group has no more than a quarter more rows than the mean.
__device__ __forceinline__ bool even(int largest, i64 rows, int groups) {
  return 4 * i64(largest) * groups <= 5 * rows;
}

// Lets the scheduler take turns where that is the faster way. Whole warp.
__device__ __forceinline__ void choose_turns(Scheduler& scheduler, const Grouping& grouping) {
  const int groups = grouping.num_groups;
  if constexpr (FORM == FORM_RAGGED_K) {
    if (!PINGPONG || scheduler.by_rows == nullptr || groups == 0) return;
    const int first = scheduler.by_rows[0];   // the largest
    const int largest = load_offset(grouping, first) - (first > 0 ? load_offset(grouping, first - 1) : 0);
    const i64 rows = load_offset(grouping, groups - 1);
    scheduler.in_turn = even(largest, rows, groups) && rows > i64(128) * groups;
  } else {
    if (SCHEDULE != SCHEDULE_SCAN) return;   // the list is known, the offsets need not be
    if (groups == 0 || groups > MAX_LOOKED_AT) return;
    const GroupSizes sizes = look_at_groups(grouping);
    const int rows = load_offset(grouping, groups - 1);
    scheduler.in_turn = !sizes.partial || even(sizes.largest, rows, sizes.nonempty);
    scheduler.step = sizes.partial;
  }
}
