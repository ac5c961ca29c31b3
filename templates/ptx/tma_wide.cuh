// Loads with an L2 policy, and of rank 4 and 5 (PTX ISA 9.7.9.27 and 9.7.9.19, sm_90 and up).

// A policy for data that is read once: it is the first to leave L2.
__device__ __forceinline__ u64 l2_evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void tma_load_3d_hint(u32 smem, const TensorMap* map, u32 bar, int x, int y,
                                                 int z, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;"
      :: "r"(smem), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "l"(policy) : "memory");
}

__device__ __forceinline__ void tma_load_4d(u32 smem, const TensorMap* map, u32 bar, int x, int y,
                                            int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];"
      :: "r"(smem), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar) : "memory");
}

__device__ __forceinline__ void tma_load_4d_hint(u32 smem, const TensorMap* map, u32 bar, int x, int y,
                                                 int z, int w, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;"
      :: "r"(smem), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar), "l"(policy) : "memory");
}

__device__ __forceinline__ void tma_load_5d(u32 smem, const TensorMap* map, u32 bar, int x, int y,
                                            int z, int w, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
      :: "r"(smem), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(bar) : "memory");
}

__device__ __forceinline__ void tma_load_5d_hint(u32 smem, const TensorMap* map, u32 bar, int x, int y,
                                                 int z, int w, int v, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;"
      :: "r"(smem), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(bar), "l"(policy)
      : "memory");
}
