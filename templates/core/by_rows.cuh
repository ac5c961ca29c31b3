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
