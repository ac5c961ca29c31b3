// D = A x B^T with block scales by mma.sync (sm_120a): A (m, k) of e2m1, B (n, k) of e4m3 with scales
// of ue8m0 for 32 elements, or (PACKED) both of e2m1 with scales of ue4m3 for 16. D (m, n) of float.
//
// One block a tile of 64 x 32: warps 0 to 3 multiply 16 rows each, warp 4 loads (TMA). Scales come
// straight from global memory, a word for the k of one instruction or more, and are replicated over
// the lanes of a quad.
//
// Shared memory: STAGES x (A 64 rows, B 32 rows of 128 bytes), 128-byte swizzle.

constexpr int BLOCK_M = 64, BLOCK_N = 32, STAGES = 2;
constexpr int BLOCK_K = PACKED ? 256 : 128;
constexpr u32 A_BYTES = BLOCK_M * 128, B_BYTES = BLOCK_N * 128;
// e2m1 in 16-byte chunks with 8 bytes of padding: the bytes of global memory count.
constexpr u32 LOADED = PACKED ? A_BYTES + B_BYTES : A_BYTES / 2 + B_BYTES;

__device__ __forceinline__ void load(u32 smem, const TensorMap* map, u32 bar, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];"
      :: "r"(smem), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}

__device__ __forceinline__ void load_rows(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void load_expanded(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, u32 sfa,
                                         u32 sfb) {
  asm volatile(
#if PACKED
      "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X"
      ".f32.e2m1.e2m1.f32.ue4m3 "
#else
      "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X"
      ".f32.e2m1.e4m3.f32.ue8m0 "
#endif
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, %10, {0, 0}, %11, {0, 0};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(sfa), "r"(sfb));
}

// The scales of instruction kk of a step, from byte 0 on.
__device__ __forceinline__ u32 scale(const u32* scales, int row, int step, int steps, int kk) {
#if PACKED
  return scales[(row * steps + step) * 4 + kk];
#else
  return scales[row * steps + step] >> 8 * kk & 0xff;
#endif
}

__shared__ __align__(8) u64 barriers[2 * STAGES];

extern "C" __global__ void __launch_bounds__(160, 1)
gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const u32* sfa,
     const u32* sfb, float* d, int n, int steps) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const u32 stages = u32(__cvta_generic_to_shared(smem));
  const u32 full = u32(__cvta_generic_to_shared(barriers)), empty = full + 8 * STAGES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  if (warp == 4) {
    if (lane == 0) {
      for (int i = 0; i < steps; ++i) {
        const int s = i % STAGES;
        const u32 to = stages + s * (A_BYTES + B_BYTES);
        mbarrier_wait(empty + 8 * s, (i / STAGES & 1) ^ 1);
        mbarrier_arrive_expect_tx(full + 8 * s, LOADED);
        load(to, &a, full + 8 * s, i * BLOCK_K, m0);
        load(to + A_BYTES, &b, full + 8 * s, i * BLOCK_K, n0);
      }
    }
    return;
  }

  float sum[4][4] = {};
  const int row = m0 + 16 * warp + lane / 4 + 8 * (lane & 1);   // whose scales of A a lane holds
  for (int i = 0; i < steps; ++i) {
    const int s = i % STAGES;
    const u32 from = stages + s * (A_BYTES + B_BYTES);
    mbarrier_wait(full + 8 * s, i / STAGES & 1);
    for (int kk = 0; kk < 4; ++kk) {   // 32 bytes of K each
      u32 ra[4];
      const int r = 16 * warp + lane % 16, chunk = 2 * kk + lane / 16;
      const u32 at = from + r * 128 + ((chunk ^ (r & 7)) << 4);
#if PACKED
      load_rows(ra, at);
#else
      load_expanded(ra, at);
      for (int x = 0; x < 4; ++x) ra[x] <<= 2;
#endif
      const u32 sa = scale(sfa, row, i, steps, kk);
      for (int j = 0; j < 2; ++j) {   // 16 columns each
        u32 rb[4];
        const int c = 16 * j + lane % 8 + lane / 16 * 8, chunk_b = 2 * kk + (lane / 8 & 1);
        load_rows(rb, from + A_BYTES + c * 128 + ((chunk_b ^ (c & 7)) << 4));
        for (int h = 0; h < 2; ++h) {
          const u32 sb = scale(sfb, n0 + 16 * j + 8 * h + lane / 4, i, steps, kk);
          multiply(sum[2 * j + h], ra, rb[2 * h], rb[2 * h + 1], sa, sb);
        }
      }
    }
    fence_async_smem();   // the reads are over before the stage is loaded again
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty + 8 * s);
  }
  for (int j = 0; j < 4; ++j) {
    for (int x = 0; x < 4; ++x) {
      const int r = m0 + 16 * warp + lane / 4 + 8 * (x >> 1), c = n0 + 8 * j + lane % 4 * 2 + (x & 1);
      d[(long long)r * n + c] = sum[j][x];
    }
  }
}
