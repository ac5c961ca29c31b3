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

// Where a warp's 16 columns number j begin in the tile, and where the second 8 of them, as ldmatrix
// takes them: side by side, or 8 gates and their 8 factors.
__device__ __forceinline__ int fragment_column(int warp_n, int j) {
  return HALVES ? warp_n * (WARP_N / 2) + j * 8 : warp_n * WARP_N + j * 16;
}
constexpr int SECOND_COLUMNS = HALVES ? BLOCK_N / 2 : 8;

// Stores a warp's part of the tile through the epilogue, straight from registers. `n_valid` counts
// columns of the product.
__device__ __forceinline__ void store_tile(const Arguments& args, const Tile& tile,
                                           const Accumulators& acc, int n_valid, int warp,
                                           int lane) {
  if (!Epilogue::stores(tile.k0 < tile.k1)) return;
  out_t* d = args.d + tile.m0 * args.stride_dm + tile.n0 / FOLD * args.stride_dn;
  if (FORM == FORM_RAGGED_K) d += tile.group * args.stride_dg;
  const int warp_n = warp % WARPS_N;
  const int exists = n_valid / FOLD;

  // Columns of the product that this thread holds, in the order of its accumulators.
  EpilogueColumn columns[FRAGS_N][2];
#pragma unroll
  for (int j = 0; j < FRAGS_N; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      int n = tile.n0 + warp_n * WARP_N + j * MMA_N + lane % 4 * 2 + e;
      bool inside = n < args.dim_n;
      if constexpr (HALVES) {
        const int h = tile.n0 / 2 + fragment_column(warp_n, j / 2) + lane % 4 * 2 + e;
        n = j % 2 == 0 ? gate_column(h) : up_column(h, args.dim_n);
        inside = 2 * h < args.dim_n;
      }
      columns[j][e] = Epilogue::column(args, tile.group, n, inside);
    }
  }
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = warp / WARPS_N * WARP_M + i * MMA_M + half * 8 + lane / 4;
      if (m >= tile.m_valid) continue;
      const EpilogueRow row = Epilogue::row(args, tile.group, tile.m0 + m, true);
      if constexpr (HALVES) {
#pragma unroll
        for (int j = 0; j < FRAGS_N; j += 2) {
          const int n = fragment_column(warp_n, j / 2) + lane % 4 * 2;
          const float* gate = acc.x[i][j] + half * 2;
          const float* up = acc.x[i][j + 1] + half * 2;
          Epilogue::store_pair(
              d + m * args.stride_dm + n * args.stride_dn, args.stride_dn,
              Epilogue::apply(gate[0], up[0], row, columns[j][0], columns[j + 1][0]),
              Epilogue::apply(gate[1], up[1], row, columns[j][1], columns[j + 1][1]), exists - n);
        }
      } else if constexpr (GATE == GATE_INTERLEAVED) {
#pragma unroll
        for (int j = 0; j < FRAGS_N; ++j) {
          const int n = (warp_n * WARP_N + j * MMA_N) / 2 + lane % 4;
          out_t* to = d + m * args.stride_dm + n * args.stride_dn;
          const float* x = acc.x[i][j] + half * 2;
          if (n < exists) {
            *to = Epilogue::combine(
                Epilogue::apply(x[0], x[1], row, columns[j][0], columns[j][1]), to);
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < FRAGS_N; ++j) {
          const int n = warp_n * WARP_N + j * MMA_N + lane % 4 * 2;
          Epilogue::store_pair(d + m * args.stride_dm + n * args.stride_dn, args.stride_dn,
                               Epilogue::apply(acc.x[i][j][half * 2], row, columns[j][0]),
                               Epilogue::apply(acc.x[i][j][half * 2 + 1], row, columns[j][1]),
                               exists - n);
        }
      }
    }
  }
}
