// Groups by falling rows: what is long starts first, and what is short evens out the end.

constexpr int MAX_SORTED = 512;   // groups; more of them keep their order, and even out by number

// Writes the numbers of all groups to `order`, those with most rows first, equal ones as they come.
// `rows` is room for MAX_SORTED numbers. The whole block, of any number of warps.
__device__ __forceinline__ void sort_by_rows(const Grouping& grouping, u16* order, int* rows) {
  const int lane = threadIdx.x & 31;
  for (int window = int(threadIdx.x) - lane; window < grouping.num_groups; window += blockDim.x) {
    int begin, end;
    window_rows(grouping, window, group_begin(grouping, window, lane), lane, begin, end);
    if (window + lane < grouping.num_groups) rows[window + lane] = end - begin;
  }
  __syncthreads();
  for (int group = threadIdx.x; group < grouping.num_groups; group += blockDim.x) {
    const int own = rows[group];
    int place = 0;
    for (int other = 0; other < grouping.num_groups; ++other) {
      place += rows[other] > own || (rows[other] == own && other < group);
    }
    order[place] = u16(group);
  }
}

// Whether groups have about as many rows each, and more than `least`. Whole warp.
__device__ __forceinline__ bool even_groups(const Grouping& grouping, const u16* order, int least,
                                            int lane) {
  if (grouping.num_groups == 0) return false;
  const int begin = group_begin(grouping, order[0], lane);
  const i64 largest = max_int(begin, load_offset(grouping, order[0])) - begin;
  const i64 rows = group_begin(grouping, grouping.num_groups, lane);
  return 4 * largest * grouping.num_groups <= 5 * rows && rows > i64(least) * grouping.num_groups;
}
