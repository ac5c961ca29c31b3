// Bulk tensor copies by the TMA unit (PTX ISA 9.7.9.27, sm_90 and up).

// What cuTensorMapEncodeTiled makes; opaque here.
struct alignas(64) TensorMap { u64 opaque[16]; };

// Orders this thread's accesses to shared memory before later asynchronous ones: its writes before
// their reads, its reads before their writes.
__device__ __forceinline__ void fence_async_smem() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void tma_prefetch_descriptor(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

// Loads the box whose first element is (x, y), zeros outside the tensor, and completes on `bar`.
__device__ __forceinline__ void tma_load_2d(u32 smem, const TensorMap* map, u32 bar, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];"
      :: "r"(smem), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}

__device__ __forceinline__ void tma_load_3d(u32 smem, const TensorMap* map, u32 bar, int x, int y,
                                            int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];"
      :: "r"(smem), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar) : "memory");
}
