// The scheduling warp of k3, and the slots through which it hands tiles to the other warps.

// Tiles as the scheduling warp hands them over.
struct alignas(16) Slot {
  int group, m0, n0, m_valid;
  int k0, k_count;   // where the contraction begins, and its length
  SlotPiece piece;
};
static_assert(sizeof(Slot) == SLOT_BYTES, "slots lie side by side");

__device__ __forceinline__ Slot* slot_at(const SlotRing& ring) {
  return reinterpret_cast<Slot*>(smem + SLOTS) + ring.place;
}

// Whether a tile is longer than the ring of stages, so that it takes a while to load.
__device__ __forceinline__ bool is_deep(int k_count) { return k_count > NUM_STAGES * BLOCK_K; }

__device__ __forceinline__ void schedule(const Arguments& args, u32 base, int lane) {
  Scheduler scheduler(args);
  SlotRing slots;
  PieceWalk walk;
  if (SORTED && args.grouping.num_groups <= MAX_SORTED) {
    scheduler.by_rows = reinterpret_cast<const u16*>(smem + SORTED_GROUPS);
  }
  int taken = 0;   // deep tiles that were handed over
  for (bool first = true;; first = false) {
    Tile tile{};
    Piece piece{};
    bool more;
    if constexpr (SPLITS) {
      more = next_piece(scheduler, walk, args, tile, piece);
    } else {
      more = scheduler.next(args, tile);
    }
    const int k_count = SHAPE_K != 0 && tile.k1 != 0 ? SHAPE_K : tile.k1 - tile.k0;
    if (lane == 0) {
      mbarrier_wait(empty_barrier(base + SLOT_BARRIERS, slots), slots.parity ^ 1);
      *slot_at(slots) = {tile.group, tile.m0, tile.n0, more ? tile.m_valid : 0, tile.k0, k_count,
                         piece};
      mbarrier_arrive(full_barrier(base + SLOT_BARRIERS, slots));
      slots.advance();
    }
    __syncwarp();
    if (!more) break;
    if (ORDER == ORDER_CLAIMED) {
      if (first) choose_turns(scheduler, args);   // while the first tile is loaded
      // Not before the tile has found a place: what is claimed waits for nobody else. And not before
      // it is loaded, if that takes a while: what is claimed early is started late, when neighbours
      // have read the same B already (under skew 2 to 3 % hot; H200, 2026-11-30).
      if (!scheduler.in_turn && is_deep(k_count)) mbarrier_wait(base + TAKEN_BARRIER, taken++ & 1);
      scheduler.claim(args);
    }
  }
  if (ORDER == ORDER_CLAIMED) scheduler.release_claims(args);
}

// Waits for the next tile and copies it out; the caller frees the slot.
__device__ __forceinline__ Slot next_slot(u32 base, const SlotRing& slots) {
  mbarrier_wait(full_barrier(base + SLOT_BARRIERS, slots), slots.parity);
  return *slot_at(slots);
}
