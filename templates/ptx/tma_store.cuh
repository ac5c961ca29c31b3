// Bulk tensor stores and what goes with them (PTX ISA 9.7.9.27, sm_90 and up).

// Stores the box at `smem`; elements outside the tensor are dropped. Coordinates must not be negative.
__device__ __forceinline__ void tma_store_3d(const TensorMap* map, u32 smem, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
               :: "l"(map), "r"(x), "r"(y), "r"(z), "r"(smem) : "memory");
}

// Adds the box at `smem` to what is there, in one rounding each.
__device__ __forceinline__ void tma_add_3d(const TensorMap* map, u32 smem, int x, int y, int z) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
      "[%0, {%1, %2, %3}], [%4];"
      :: "l"(map), "r"(x), "r"(y), "r"(z), "r"(smem) : "memory");
}

__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most N of this thread's groups still read shared memory.
template <int N> __device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}

// One element to shared memory.
template <typename T> __device__ __forceinline__ void store_shared(u32 smem, T x) {
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared.f32 [%0], %1;" :: "r"(smem), "f"(x) : "memory");
  } else {
    asm volatile("st.shared.b16 [%0], %1;" :: "r"(smem), "h"(x.bits) : "memory");
  }
}
__device__ __forceinline__ Pair<float> load_shared_pair(u32 smem) {
  Pair<float> pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y) : "r"(smem) : "memory");
  return pair;
}
__device__ __forceinline__ void store_shared_pair(u32 smem, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(smem), "f"(x), "f"(y) : "memory");
}

// Four 8x8 matrices of 16-bit elements to shared memory; lane 8j+i supplies the address of row i of
// matrix j (PTX ISA 9.7.14.5.16).
__device__ __forceinline__ void stmatrix_x4(u32 smem, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(smem), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}
