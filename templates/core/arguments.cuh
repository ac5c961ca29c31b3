// What every grouped GEMM kernel of the ladder takes. Strides are in elements.
//
// ragged M (fprop, dgrad):  D[r, n]    = sum_k A[r, k] B[g, k, n]      rows r of group g
// ragged K (wgrad):         D[g, m, n] = sum_r A[m, r] B[r, n]         over the rows r of group g

struct Arguments {
  const in_t* a;
  const in_t* b;
  out_t* d;
  Grouping grouping;
  const int4* tiles;       // see core/scheduler.cuh
  i64 stride_am, stride_ak;
  i64 stride_bg, stride_bk, stride_bn;
  i64 stride_dg, stride_dm, stride_dn;
  int dim_m;               // ragged K only: rows of each group's result
  int dim_n;
  int dim_k;               // ragged M only: length of the contraction
  int num_tiles;           // SCHEDULE_LIST only
};
