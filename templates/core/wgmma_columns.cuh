// What the epilogue reads for the columns of a tile, in shared memory: loaded once a tile by the 128
// threads of a consumer, before it multiplies. Loaded by each thread where it is needed, a bias cost
// 19 to 30 % of the time of a product (H200, 2026-11-30).

// Column `at` of a tile: of the product, or in a tile of two halves first all gates, then all factors.
__device__ __forceinline__ EpilogueColumn* tile_column(int consumer, int at) {
  return reinterpret_cast<EpilogueColumn*>(smem + COLUMNS + consumer * COLUMNS_BYTES) + at;
}

struct ColumnLoader {
  static constexpr int LOADS = READS_COLUMNS ? (BLOCK_N + 127) / 128 : 0;
  // The tile's time is the consumer's alone in ping-pong: it may wait for what it loads. Two that share
  // a tile would both stand still, so that they hold it in registers until they have multiplied.
  static constexpr bool HELD = !PINGPONG;

  EpilogueColumn held[LOADS > 0 ? LOADS : 1];
  int consumer;

  __device__ __forceinline__ ColumnLoader(const Arguments& args, int group, int n0, int consumer)
      : consumer(consumer) {
    if constexpr (!READS_COLUMNS) return;
    if (!HELD) sync_consumer(consumer);   // nobody still reads those of the tile before
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int at = threadIdx.x % 128 + i * 128;
      const bool factor = HALVES && at >= BLOCK_N / 2;
      const int h = n0 / 2 + at - (factor ? BLOCK_N / 2 : 0);   // column of D: HALVES
      const int n = !HALVES ? n0 + at : factor ? up_column(h, args.dim_n) : gate_column(h);
      const bool exists = HALVES ? 2 * h < args.dim_n : n < args.dim_n;
      held[i] = Epilogue::column(args, group, n, exists && at < BLOCK_N);
      if (!HELD && at < BLOCK_N) *tile_column(consumer, at) = held[i];
    }
  }

  // Makes them visible to the whole consumer; before the first is read.
  __device__ __forceinline__ void publish() const {
    if constexpr (!READS_COLUMNS) return;
    if (HELD) {
      sync_consumer(consumer);
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        const int at = threadIdx.x % 128 + i * 128;
        if (at < BLOCK_N) *tile_column(consumer, at) = held[i];
      }
    }
    sync_consumer(consumer);
  }
};
