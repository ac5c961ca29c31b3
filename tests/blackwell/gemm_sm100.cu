// D = A x B^T by tcgen05: A (m, k), B (n, k) of bf16, both K-major, D (m, n) of float.
//
// PAIR blocks share a tile of 128 PAIR x BLOCK_N. Warp 0 loads (TMA), warp 1 multiplies (thread 0
// of the first block), warps 4 to 7 store. Two accumulators in tensor memory, so that a tile is
// multiplied while the one before it is stored. Tiles follow each other along n; CONTROL takes
// further ones from clusters that have not started, otherwise a block strides over them.
//
// Shared memory: STAGES x (A 128 x 64, B BLOCK_N / PAIR x 64), 128-byte swizzle.

constexpr int BLOCK_M = 128, BLOCK_K = 64, STAGES = 2;
constexpr int COLUMNS = 2 * BLOCK_N;   // of tensor memory
constexpr u32 A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N / PAIR * BLOCK_K * 2;
constexpr u32 INSTRUCTION =
    1u << 4 | 1u << 7 | 1u << 10 | (BLOCK_N >> 3) << 17 | (BLOCK_M * PAIR >> 4) << 24;

constexpr u16 BOTH_BLOCKS = 3;   // of a pair, as a mask of ranks

#if PAIR == 2
#define GROUP "cta_group::2"
#define COMMIT_TO ".multicast::cluster.b64 [%0], %1;"
#else
#define GROUP "cta_group::1"
#define COMMIT_TO ".b64 [%0];"
#endif

__device__ __forceinline__ bool elect_one() {
  u32 chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(chosen));
  return chosen != 0;
}

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// A barrier of the first block of the pair: bit 24 of a shared address is the lowest of the rank.
__device__ __forceinline__ u32 of_leader(u32 bar) { return bar & 0xfeffffffu; }

__device__ __forceinline__ void arrive_remote(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(bar) : "memory");
}

__device__ __forceinline__ void load(u32 smem, const TensorMap* map, u32 bar, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes." GROUP
      " [%0], [%1, {%2, %3}], [%4];"
      :: "r"(smem), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}

__device__ __forceinline__ void before_sync() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void after_sync() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

__device__ __forceinline__ void multiply(u32 d, u64 a, u64 b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma." GROUP ".kind::f16 [%0], %1, %2, %3, p;\n}"
      :: "r"(d), "l"(a), "l"(b), "r"(INSTRUCTION), "r"(u32(accumulate)) : "memory");
}

__device__ __forceinline__ void commit(u32 bar) {
  asm volatile("tcgen05.commit." GROUP ".mbarrier::arrive::one.shared::cluster" COMMIT_TO
               :: "r"(bar), "h"(BOTH_BLOCKS) : "memory");
}

// K-major under the 128-byte swizzle: 8 rows every 1024 bytes.
__device__ __forceinline__ u64 descriptor(u32 smem) {
  return u64((smem & 0x3ffff) >> 4) | u64(1024 >> 4) << 32 | 1ull << 46 | 2ull << 61;
}

__device__ __forceinline__ void read_columns(u32 tmem, u32 (&r)[8]) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]),
                 "=r"(r[6]), "=r"(r[7]) : "r"(tmem));
}

__device__ __forceinline__ void wait_loads() {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

struct Barriers {
  u64 full[STAGES], empty[STAGES];     // by TMA; by commits
  u64 ready[2], drained[2];            // accumulators: by commits; by warps that have stored
  u64 response, taken;                 // of launch control: by its bytes; by all warps
};
__shared__ __align__(16) u32 answer[4];
__shared__ __align__(8) Barriers barriers;
__shared__ u32 tensor_memory;

// The next tile of a block's cluster, or -1. All warps call it once a tile.
struct Tiles {
  int tile, tiles, count;
  __device__ void next(u32 rank) {
#if CONTROL
    const u32 response = u32(__cvta_generic_to_shared(&barriers.response));
    const u32 taken = u32(__cvta_generic_to_shared(&barriers.taken));
    const u32 to = u32(__cvta_generic_to_shared(answer));
    const u32 parity = count & 1;
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(response, 16);
      if (rank == 0) {
        mbarrier_wait(taken, parity ^ 1);
        asm volatile(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
            ".multicast::cluster::all.b128 [%0], [%1];" :: "r"(to), "r"(response) : "memory");
      }
    }
    mbarrier_wait(response, parity);
    u32 found, x = 0;
    asm volatile(
        "{\n.reg .pred p;\n.reg .b128 r;\nld.shared.b128 r, [%2];\n"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "@p clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %1, r;\n}"
        : "=r"(found), "+r"(x) : "r"(to) : "memory");
    fence_async_smem();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive_remote(of_leader(taken));
    tile = found ? int(x) / PAIR : -1;
#else
    tile += int(gridDim.x) / PAIR;
    if (tile >= tiles) tile = -1;
#endif
    ++count;
  }
};

extern "C" __global__ void __launch_bounds__(256, 1) __cluster_dims__(PAIR, 1, 1)
gemm(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* d, int n,
     int k, int tiles) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const u32 stages = u32(__cvta_generic_to_shared(smem));
  const u32 full = u32(__cvta_generic_to_shared(barriers.full));
  const u32 empty = u32(__cvta_generic_to_shared(barriers.empty));
  const u32 ready = u32(__cvta_generic_to_shared(barriers.ready));
  const u32 drained = u32(__cvta_generic_to_shared(barriers.drained));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u32 rank = PAIR == 2 ? cluster_rank() : 0;
  const int steps = (k + BLOCK_K - 1) / BLOCK_K;

  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 1);
    }
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(ready + 8 * s, 1);
      mbarrier_init(drained + 8 * s, 4 * PAIR);
    }
    mbarrier_init(u32(__cvta_generic_to_shared(&barriers.response)), 1);
    mbarrier_init(u32(__cvta_generic_to_shared(&barriers.taken)), 8 * PAIR);
    fence_mbarrier_init();
  }
  if (warp == 1) {
    asm volatile("tcgen05.alloc." GROUP ".sync.aligned.shared::cta.b32 [%0], %1;"
                 :: "r"(u32(__cvta_generic_to_shared(&tensor_memory))), "r"(COLUMNS) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit." GROUP ".sync.aligned;");
  }
  before_sync();
  cluster_sync();
  after_sync();
  const u32 tmem = *(volatile u32*)&tensor_memory;

  Tiles at{int(blockIdx.x) / PAIR, tiles, 0};
  int step = 0;   // over all tiles
  for (; at.tile >= 0; at.next(rank)) {
    const int accumulator = at.count & 1;
    const u32 round = at.count >> 1 & 1;
    if (warp == 0) {
      if (elect_one()) {
        for (int i = 0; i < steps; ++i) {
          const int s = (step + i) % STAGES;
          mbarrier_wait(empty + 8 * s, ((step + i) / STAGES & 1) ^ 1);
          if (rank == 0) mbarrier_arrive_expect_tx(full + 8 * s, PAIR * (A_BYTES + B_BYTES));
          const u32 to = stages + s * (A_BYTES + B_BYTES);
          load(to, &a, of_leader(full + 8 * s), i * BLOCK_K, int(rank) * BLOCK_M);
          load(to + A_BYTES, &b, of_leader(full + 8 * s), i * BLOCK_K,
               at.tile * BLOCK_N + int(rank) * (BLOCK_N / PAIR));
        }
      }
      __syncwarp();
    } else if (warp == 1) {
      if (rank == 0 && elect_one()) {
        mbarrier_wait(drained + 8 * accumulator, round ^ 1);
        after_sync();
        for (int i = 0; i < steps; ++i) {
          const int s = (step + i) % STAGES;
          mbarrier_wait(full + 8 * s, (step + i) / STAGES & 1);
          after_sync();
          const u32 from = stages + s * (A_BYTES + B_BYTES);
          for (int kk = 0; kk < BLOCK_K / 16; ++kk) {
            multiply(tmem + accumulator * BLOCK_N, descriptor(from + 32 * kk),
                     descriptor(from + A_BYTES + 32 * kk), i > 0 || kk > 0);
          }
          commit(empty + 8 * s);
        }
        commit(ready + 8 * accumulator);
      }
      __syncwarp();
    } else if (warp >= 4) {
      mbarrier_wait(ready + 8 * accumulator, round);
      after_sync();
      const int quadrant = warp & 3, row = int(rank) * BLOCK_M + quadrant * 32 + lane;
      for (int c = 0; c < BLOCK_N; c += 8) {
        u32 r[8];
        read_columns(tmem + (quadrant << 21) + accumulator * BLOCK_N + c, r);
        wait_loads();
        float* to = d + (long long)row * n + at.tile * BLOCK_N + c;
        for (int i = 0; i < 8; ++i) to[i] = __uint_as_float(r[i]);
      }
      before_sync();
      __syncwarp();
      if (lane == 0) arrive_remote(of_leader(drained + 8 * accumulator));
    }
    step += steps;
  }
  before_sync();
  cluster_sync();
  after_sync();
  if (warp == 1) {
    asm volatile("tcgen05.dealloc." GROUP ".sync.aligned.b32 %0, %1;" :: "r"(tmem), "r"(COLUMNS));
  }
}
