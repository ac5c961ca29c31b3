// How a consumer stores a block of 64 rows: by TMA, or from its registers.

// Stores a block of 64 rows, 64 columns at a time, through shared memory. In the ragged-M form rows
// behind the block's `rows` must be dropped. So the map has rows twice: element (x, y, z) is row
// y + z - 64 of D, and y ends at 64. A box that starts at y = 64 - rows, z = row0 + rows covers the
// rows from row0 on, of which those past row0 + rows lie outside. In the ragged-K form the map is
// (n, m, g), and M ends where the rows do.
__device__ __forceinline__ void store_by_tma(const float (&acc)[BLOCK_N / 2], const TensorMap* map,
                                             u32 boxes, int& box, int row0, int rows, int n0,
                                             int group, int consumer, int lane, bool leader) {
  const int warp_row = (threadIdx.x / 32 % 4) * 16 + (lane & 15);
#pragma unroll
  for (int c = 0; c < CHUNKS_N; ++c) {
    if (leader) bulk_wait_read<STORE_BOXES - 1>();
    sync_consumer(consumer);
    const u32 to = boxes + box * BOX_BYTES;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* x = acc + (c * 4 + i) * 8;
      const u32 chunk = i * 2 + (lane >> 4);
      stmatrix_x4(to + warp_row * 128 + ((chunk ^ (warp_row & 7)) << 4),
                  pack_pair<out_t>(x[0], x[1]), pack_pair<out_t>(x[2], x[3]),
                  pack_pair<out_t>(x[4], x[5]), pack_pair<out_t>(x[6], x[7]));
    }
    fence_async_smem();
    sync_consumer(consumer);
    if (leader) {
      // NOTE: no `if (n0 + c * 64 < dim_n)` here, the TMA unit drops such a box by itself. Under that
      // uniform condition ptxas 13.0 and 13.5 predicated the move of the coordinates into uniform
      // registers on false, and nothing was stored (block_m 64; seen on an H200, 2026-11-29).
      tma_store_3d(map, to, n0 + c * 64, FORM == FORM_RAGGED_M ? ROWS - rows : row0,
                   FORM == FORM_RAGGED_M ? row0 + rows : group);
      bulk_commit();
    }
    if (++box == STORE_BOXES) box = 0;
  }
}

// Stores a block of 64 rows straight from registers, through the epilogue.
__device__ __forceinline__ void store_from_registers(const Arguments& args,
                                                     const float (&acc)[BLOCK_N / 2], int row0,
                                                     int rows, int n0, int group, int dim_n,
                                                     int lane) {
  const int row = (threadIdx.x / 32 % 4) * 16 + lane / 4;
  out_t* d = args.d + row0 * args.stride_dm + n0 * args.stride_dn;
  if (FORM == FORM_RAGGED_K) d += group * args.stride_dg;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int m = row + half * 8;
    if (m >= rows) continue;
#pragma unroll
    for (int c = 0; c < BLOCK_N / 8; ++c) {
      const int n = c * 8 + lane % 4 * 2;
      Epilogue::store_pair(d + m * args.stride_dm + n * args.stride_dn, args.stride_dn,
                           acc[c * 4 + half * 2], acc[c * 4 + half * 2 + 1], dim_n - n0 - n);
    }
  }
}
