// Asynchronous copies from global to shared memory (PTX ISA 9.7.9.25, sm_80 and up).

__device__ __forceinline__ u32 smem_address(const void* p) {
  return u32(__cvta_generic_to_shared(p));
}

// Copies `bytes` (0 to 16) from global memory and fills the rest of the 16 bytes with zeros; with
// bytes == 0 the source is not read. L1 is bypassed: a tile is read once per block.
__device__ __forceinline__ void cp_async_16(u32 smem, const void* gmem, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(smem), "l"(gmem), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most N of this thread's groups are in flight.
template <int N> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
