// Whether blocks claim tiles or take turns. All blocks find the same, and what they find decides the
// order of tiles alone.
//
// Where tiles are alike, blocks that start together stay together, and neighbours read the same
// operands at the same time. Measured on one H200 (2026-11-30), us hot / cool.
//
//   fprop, rows a group               in turn       moving on    claimed
//   256: full tiles                   177 / 133     178 / 134    177 / 146
//   171: one full, one partial tile   741 / 621     502 / 421    529 / 463
//   145 to 205: the same              741 / 619     510 / 427    526 / 460
//   512 and more or less              835 / 662     862 / 670    745 / 625
//   133 to 705                        790 / 620     664 / 557    639 / 546
//
// Moving on: from wave to wave, each block takes the next position, lest the same blocks get all the
// partial tiles. wgrad: even groups of 256 rows took 1 to 2 % longer when claimed, of 512 rows 3 %; of
// 64 rows and less, where loads and stores of other tiles decide, claiming gains 3 %.

constexpr int MAX_LOOKED_AT = 1024;   // groups; more of them count as uneven

struct GroupSizes {
  int fewest, most;   // tiles along M of the groups that have rows
  bool partial;       // some group is no multiple of the tile
};

// Looks at all groups. Whole warp.
__device__ __forceinline__ GroupSizes look_at_groups(const Grouping& grouping) {
  const int lane = threadIdx.x & 31;
  GroupSizes sizes = {0x7fffffff, 0, false};
#pragma unroll 1   // registers are short here
  for (int i = lane; i < grouping.num_groups; i += 32) {
    const int rows = load_offset(grouping, i) - (i > 0 ? load_offset(grouping, i - 1) : 0);
    if (rows <= 0) continue;
    sizes.fewest = min_int(sizes.fewest, ceil_div(rows, BLOCK_M));
    sizes.most = max_int(sizes.most, ceil_div(rows, BLOCK_M));
    sizes.partial |= rows % BLOCK_M != 0;
  }
  sizes.fewest = __reduce_min_sync(0xffffffffu, sizes.fewest);
  sizes.most = __reduce_max_sync(0xffffffffu, sizes.most);
  sizes.partial = __ballot_sync(0xffffffffu, sizes.partial) != 0;
  return sizes;
}

// Lets the scheduler take turns where that is the faster way. Whole warp.
__device__ __forceinline__ void choose_turns(Scheduler& scheduler, const Arguments& args) {
  const Grouping& grouping = args.grouping;
  const int groups = grouping.num_groups;
  if (args.claims == nullptr) {   // no block gets a second tile
    scheduler.in_turn = true;
    return;
  }
  if constexpr (FORM == FORM_RAGGED_K) {
    if (!PINGPONG || scheduler.by_rows == nullptr || groups == 0) return;
    const int first = scheduler.by_rows[0];   // the largest
    const int largest = load_offset(grouping, first) - (first > 0 ? load_offset(grouping, first - 1) : 0);
    const i64 rows = load_offset(grouping, groups - 1);
    const bool even = 4 * i64(largest) * groups <= 5 * rows;   // a quarter more than the mean
    scheduler.in_turn = even && rows > i64(128) * groups;
  } else {
    if (SCHEDULE != SCHEDULE_SCAN) return;   // the list is known, the offsets need not be
    if (groups == 0 || groups > MAX_LOOKED_AT) return;
    const GroupSizes sizes = look_at_groups(grouping);
    scheduler.in_turn = !sizes.partial || (sizes.fewest == sizes.most && sizes.most > 1);
    scheduler.step = sizes.partial;
  }
}
