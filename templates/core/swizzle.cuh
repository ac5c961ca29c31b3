// The XOR swizzle of the TMA unit: within each span of SWIZZLE bytes, 16-byte chunks are permuted by
// the row that they lie in, so that the 8 rows of an ldmatrix fall into different banks.
//
//   128: chunk ^= row % 8     64: chunk ^= row / 2 % 4     32: chunk ^= row / 4 % 2
//
// It acts on shared-memory addresses: address bits 4.. ^= bits 7... Tiles start on 1024 bytes and a
// row is SWIZZLE bytes long, so the pattern repeats every 8 rows.

// What is XORed to the byte offset inside row `row` of a panel.
template <int SWIZZLE> __device__ __forceinline__ u32 swizzle_mask(int row) {
  constexpr u32 BITS = SWIZZLE == 128 ? 0x70 : SWIZZLE == 64 ? 0x30 : SWIZZLE == 32 ? 0x10 : 0;
  return (u32(row) * (SWIZZLE != 0 ? SWIZZLE : 128) >> 3) & BITS;
}
