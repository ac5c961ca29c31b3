// A BLOCK_M x BLOCK_N tile of D in the registers of 8 warps, as 2 x 4, in mma.sync m16n8k16
// accumulators.

constexpr int WARPS_M = 2;
constexpr int WARPS_N = 4;
constexpr int MMA_WARPS = WARPS_M * WARPS_N;
constexpr int WARP_M = BLOCK_M / WARPS_M;
constexpr int WARP_N = BLOCK_N / WARPS_N;
constexpr int MMA_M = 16, MMA_N = 8, MMA_K = 16;
constexpr int FRAGS_M = WARP_M / MMA_M;
constexpr int FRAGS_N = WARP_N / MMA_N;
constexpr int K_STEPS = BLOCK_K / MMA_K;

static_assert(WARP_M % MMA_M == 0, "block_m must be a multiple of 32: 2 warps of 16 rows");
static_assert(WARP_N % 16 == 0, "block_n must be a multiple of 64: 4 warps of 16 columns");
static_assert(BLOCK_K % MMA_K == 0, "block_k must be a multiple of 16: one mma.sync");
static_assert(sizeof(in_t) == 2, "mma.sync multiplies 16-bit elements here");

// Operands of one k-step of a warp.
struct Fragments {
  u32 a[FRAGS_M][4];
  u32 b[FRAGS_N / 2][4];   // two neighbouring 16x8 fragments of B an ldmatrix
};

struct Accumulators {
  float x[FRAGS_M][FRAGS_N][4];
};

__device__ __forceinline__ void multiply(Accumulators& acc, const Fragments& f) {
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
    for (int j = 0; j < FRAGS_N; ++j) {
      mma_m16n8k16(acc.x[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

// Stores a warp's part of the tile through the epilogue, straight from registers.
__device__ __forceinline__ void store_tile(const Arguments& args, const Tile& tile,
                                           const Accumulators& acc, int n_valid, int warp,
                                           int lane) {
  if (!Epilogue::stores(tile)) return;
  out_t* d = args.d + tile.m0 * args.stride_dm + tile.n0 * args.stride_dn;
  if (FORM == FORM_RAGGED_K) d += tile.group * args.stride_dg;
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = warp / WARPS_N * WARP_M + i * MMA_M + half * 8 + lane / 4;
      if (m >= tile.m_valid) continue;
#pragma unroll
      for (int j = 0; j < FRAGS_N; ++j) {
        const int n = warp % WARPS_N * WARP_N + j * MMA_N + lane % 4 * 2;
        Epilogue::store_pair(d + m * args.stride_dm + n * args.stride_dn, args.stride_dn,
                             acc.x[i][j][half * 2], acc.x[i][j][half * 2 + 1], n_valid - n);
      }
    }
  }
}
