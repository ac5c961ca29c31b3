// A consumer's product over the whole of K, straight from the ring of stages.

// Waits until all four warps of a consumer are here; barrier 0 is __syncthreads.
__device__ __forceinline__ void sync_consumer(int consumer) {
  asm volatile("bar.sync %0, 128;" :: "r"(1 + consumer) : "memory");
}

// Multiplies the first VALID of a consumer's blocks over the whole of K. The stages go back to the
// producer as soon as no wgmma reads them any more.
template <int VALID>
__device__ __forceinline__ void multiply(float (&acc)[BLOCKS][BLOCK_N / 2], u32 base,
                                         StageRing& stages, int first_block, int k_tiles,
                                         u32 next_in_order, int consumer, bool leader) {
  const u32 barriers = base + STAGE_BARRIERS;
  StageRing previous = stages;
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    mbarrier_wait(full_barrier(barriers, stages), stages.parity);
    if constexpr (VALID > 0) {
      const u32 a = base + stages.place * STAGE_BYTES + first_block * BOX_BYTES;
      const u32 b = base + stages.place * STAGE_BYTES + A_BYTES;
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < BLOCK_K / 16; ++s) {
        const u64 b_desc = B_K_MAJOR
            ? wgmma_descriptor(b + s * 32, 16, 1024)
            : wgmma_descriptor<B_CHUNK * 2>(b + s * B_CHUNK * 32, B_CHUNK * 128, B_CHUNK * 16);
#pragma unroll
        for (int j = 0; j < VALID; ++j) {
          const u32 block = a + j * BLOCK_STEP * BOX_BYTES;
          const u64 a_desc = A_K_MAJOR ? wgmma_descriptor(block + s * 32, 16, 1024)
                                       : wgmma_descriptor(block + s * 2048, BOX_BYTES, 1024);
          wgmma_m64k16(acc[j], a_desc, b_desc, s > 0 || k_tile > 0);
        }
      }
      wgmma_commit();
      wgmma_wait<IN_FLIGHT>();
      if (IN_FLIGHT > 0 && k_tile > 0 && leader) mbarrier_arrive(empty_barrier(barriers, previous));
    }
    // Where wgmma does not keep the four warps together, nobody may fall behind the leader: two uses
    // of a stage later the parity would be the same again.
    if (VALID == 0) sync_consumer(consumer);
    if ((VALID == 0 || IN_FLIGHT == 0) && leader) mbarrier_arrive(empty_barrier(barriers, stages));
    previous = stages;
    stages.advance();
  }
  // Without a product nothing has kept the warps together either, and the turn may come round twice
  // before a late one has seen it.
  if (PINGPONG && k_tiles == 0) sync_consumer(consumer);
  if (PINGPONG && leader) mbarrier_arrive(next_in_order);
  if constexpr (VALID > 0 && IN_FLIGHT > 0) {
    wgmma_wait<0>();
    if (k_tiles > 0 && leader) mbarrier_arrive(empty_barrier(barriers, previous));
  }
}
