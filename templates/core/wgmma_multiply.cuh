// A consumer's product over the whole of K, straight from the ring of stages.

// Waits until all four warps of a consumer are here; barrier 0 is __syncthreads.
__device__ __forceinline__ void sync_consumer(int consumer) {
  asm volatile("bar.sync %0, 128;" :: "r"(1 + consumer) : "memory");
}

// Steps of K in a stage, and the bytes from one to the next: part of a row, or 16 rows of a chunk.
constexpr int K_STEPS = BLOCK_K / 16;
constexpr u32 A_STEP = A_K_MAJOR ? 32 : 2048;
constexpr u32 B_STEP = B_K_MAJOR ? 32 : B_CHUNK * 32;

// Steps that are written out. Each statement of wgmma costs ptxas 5 to 8 ms, so that fprop and dgrad loop
// over the steps: a tile of 128 x 192 compiles in 240 ms instead of 280, and is as fast (five products
// each, hot and cool: -1 to +0.5 %). wgrad of 512 rows a group took up to 1.7 % longer so (H200,
// 2026-11-30).
constexpr int UNROLLED_STEPS = FORM == FORM_RAGGED_M ? 1 : K_STEPS;

// Issues the product of one stage with the first VALID of a consumer's blocks, K_STEPS / UNROLLED groups
// of wgmma. The last rows of a group share one statement.
template <int VALID, int UNROLLED>
__device__ __forceinline__ void multiply_stage(WgmmaDescriptor a, WgmmaDescriptor b) {
#pragma unroll 1
  for (int group = 0; group < K_STEPS / UNROLLED; ++group) {
    wgmma_fence();   // without one in the loop, ptxas would wait for each wgmma
#pragma unroll
    for (int s = 0; s < UNROLLED; ++s) {
      wgmma_m64k16<0>(a, b);
      if constexpr (VALID > 1) wgmma_m64k16<1>(a.behind(BLOCK_STEP * BOX_BYTES), b);
      a = a.behind(A_STEP);
      b = b.behind(B_STEP);
    }
    wgmma_commit();
  }
  wgmma_wait<IN_FLIGHT * K_STEPS / UNROLLED>();
}

// Multiplies the first `valid` of a consumer's blocks over the whole of K. The stages go back to the
// producer as soon as no wgmma reads them any more.
__device__ __forceinline__ void multiply(int valid, u32 base, StageRing& stages, int first_block,
                                         int k_tiles, u32 next_in_order, int consumer, bool leader) {
  const u32 barriers = base + STAGE_BARRIERS;
  StageRing previous = stages;
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    mbarrier_wait(full_barrier(barriers, stages), stages.parity);
    const u32 a_box = base + stages.place * STAGE_BYTES + first_block * BOX_BYTES;
    const u32 b_box = base + stages.place * STAGE_BYTES + A_BYTES;
    const WgmmaDescriptor a = wgmma_descriptor(a_box, A_K_MAJOR ? 16 : BOX_BYTES, 1024);
    const WgmmaDescriptor b = B_K_MAJOR
        ? wgmma_descriptor(b_box, 16, 1024)
        : wgmma_descriptor<B_CHUNK * 2>(b_box, B_CHUNK * 128, B_CHUNK * 16);
    if (valid >= BLOCKS) {
      multiply_stage<BLOCKS, UNROLLED_STEPS>(a, b);
    } else if (PINGPONG || valid > 0) {
      multiply_stage<1, 1>(a, b);
    } else {
      sync_consumer(consumer);   // as no wgmma keeps the four warps together, see below
    }
    if (IN_FLIGHT > 0 && k_tile > 0 && leader) mbarrier_arrive(empty_barrier(barriers, previous));
    if (IN_FLIGHT == 0 && leader) mbarrier_arrive(empty_barrier(barriers, stages));
    previous = stages;
    stages.advance();
  }
  // Where wgmma does not keep the four warps together, nobody may fall behind the leader: two uses of a
  // stage later, or when the turn has come round twice, a late one would see the old parity again.
  if (PINGPONG && k_tiles == 0) sync_consumer(consumer);
  if (PINGPONG && leader) mbarrier_arrive(next_in_order);
  if constexpr (IN_FLIGHT > 0) {
    wgmma_wait<0>();
    if (k_tiles > 0 && leader) mbarrier_arrive(empty_barrier(barriers, previous));
  }
}
