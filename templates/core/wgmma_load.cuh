// The producer of k3: one thread that loads slices of A and B into the ring of stages.

// A tile of two halves comes from columns n0 / 2 on of the gates, and of their factors. Of a K-major B
// the map has both in a dimension of their own, as it has of an N-major one that comes in one box.
__device__ __forceinline__ void load_b(u32 smem_b, const TensorMap* map, u32 full, int k, int n0,
                                       int group, int dim_n, u64 policy) {
  if constexpr (B_K_MAJOR && HALVES) {
    if constexpr (B_EVICT_FIRST) {
      tma_load_4d_hint(smem_b, map, full, k, n0 / 2, 0, group, policy);
    } else {
      tma_load_4d(smem_b, map, full, k, n0 / 2, 0, group);
    }
  } else if constexpr (HALVES && B_BLOCKED) {
    if constexpr (B_EVICT_FIRST) {
      tma_load_5d_hint(smem_b, map, full, 0, k, n0 / 2 / B_CHUNK, 0, group, policy);
    } else {
      tma_load_5d(smem_b, map, full, 0, k, n0 / 2 / B_CHUNK, 0, group);
    }
  } else if constexpr (HALVES) {
    constexpr int HALF = BLOCK_N / 2 / B_CHUNK;
#pragma unroll
    for (int c = 0; c < HALF; ++c) {
      const int n = n0 / 2 + c * B_CHUNK;
      tma_load_3d(smem_b + c * B_CHUNK * 128, map, full, n, k, group);
      tma_load_3d(smem_b + (HALF + c) * B_CHUNK * 128, map, full, n + dim_n / 2, k, group);
    }
  } else if constexpr (B_K_MAJOR) {
    if constexpr (B_EVICT_FIRST) {
      tma_load_3d_hint(smem_b, map, full, k, n0, group, policy);
    } else {
      tma_load_3d(smem_b, map, full, k, n0, group);
    }
  } else if constexpr (B_BLOCKED) {
    if constexpr (B_EVICT_FIRST) {
      tma_load_4d_hint(smem_b, map, full, 0, k, n0 / 64, group, policy);
    } else {
      tma_load_4d(smem_b, map, full, 0, k, n0 / 64, group);
    }
  } else {
#pragma unroll
    for (int c = 0; c < CHUNKS_N; ++c) {
      tma_load_3d(smem_b + c * BOX_BYTES, map, full, n0 + c * 64, k, group);
    }
  }
}

// Loads `rows` rows from `row` on, CHUNKS x 64 columns from `column` on, into the last places of 64;
// zeros come before. The map has rows twice, as (.., 64, .., rows): element (.., y, .., z) is row
// y + z, and y from rows - 64 to -1 lies outside.
template <int CHUNKS, bool BLOCKED>
__device__ __forceinline__ void load_ragged(u32 to, const TensorMap* map, u32 full, int column, int row,
                                            int rows) {
  if constexpr (BLOCKED) {
    tma_load_4d(to, map, full, 0, rows - ROWS, column / 64, row);
  } else {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      tma_load_3d(to + c * BOX_BYTES, map, full, column + c * 64, rows - ROWS, row);
    }
  }
}

__device__ __forceinline__ void produce(const Arguments& args, const TensorMap* map_a,
                                        const TensorMap* map_b, u32 base) {
  const u64 policy = B_EVICT_FIRST ? l2_evict_first() : 0;
  StageRing stages;
  SlotRing slots;
  for (;; slots.advance()) {
    const Slot tile = next_slot(base, slots);
    mbarrier_arrive(empty_barrier(base + SLOT_BARRIERS, slots));
    if (tile.m_valid == 0) return;
    if (ORDER == ORDER_CLAIMED && is_deep(tile.k_count)) mbarrier_arrive(base + TAKEN_BARRIER);
    const int boxes = ceil_div(tile.m_valid, ROWS);
    for (int k = 0; k < tile.k_count; k += BLOCK_K, stages.advance()) {
      mbarrier_wait(empty_barrier(base + STAGE_BARRIERS, stages), stages.parity ^ 1);
      const u32 full = full_barrier(base + STAGE_BARRIERS, stages);
      const u32 a = base + stages.place * STAGE_BYTES;
      if constexpr (FORM == FORM_RAGGED_M) {
        mbarrier_arrive_expect_tx(full, boxes * BOX_BYTES + B_BYTES);
#pragma unroll
        for (int i = 0; i < BOXES_M; ++i) {
          if (i < boxes) tma_load_2d(a + i * BOX_BYTES, map_a, full, k, tile.m0 + i * ROWS);
        }
        load_b(a + A_BYTES, map_b, full, k, tile.n0, tile.group, args.dim_n, policy);
      } else {
        const int rows = min_int(ROWS, tile.k_count - k);
        mbarrier_arrive_expect_tx(full, STAGE_BYTES);
        load_ragged<BOXES_M, A_BLOCKED>(a, map_a, full, tile.m0, tile.k0 + k, rows);
        load_ragged<CHUNKS_N, B_BLOCKED>(a + A_BYTES, map_b, full, tile.n0, tile.k0 + k, rows);
      }
    }
  }
}
