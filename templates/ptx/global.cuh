// Global memory that blocks pass on to each other during a kernel (PTX ISA 9.7.9 and 9.7.13).

// What another block writes is read in L2: this multiprocessor's L1 may hold what was there before.
__device__ __forceinline__ float4 load_l2(const float4* from) {
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from) : "memory");
  return x;
}

__device__ __forceinline__ void store_l2(float4* to, float4 x) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

__device__ __forceinline__ u32 load_acquire(const u32* from) {
  u32 x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

// Adds one and returns what was there. What came before is visible to whoever reads the sum, and what
// those wrote who added before is visible from here on.
__device__ __forceinline__ u32 increment_acq_rel(u32* to) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(to) : "memory");
  return before;
}

// bar.sync of a part of the block that also tells all of its threads whether one of them says so.
__device__ __forceinline__ bool barrier_any(int barrier, int threads, bool said) {
  u32 any;
  asm volatile(
      "{\n"
      ".reg .pred said, any;\n"
      "setp.ne.b32 said, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, said;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}"
      : "=r"(any) : "r"(barrier), "r"(threads), "r"(u32(said)) : "memory");
  return any != 0;
}
