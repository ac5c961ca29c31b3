// Element types and conversions. A rendered kernel includes no header, so the two 16-bit types are
// plain structs around their bits and converted by PTX.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct bf16_t { u16 bits; };
struct f16_t { u16 bits; };

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16_t x) { return __uint_as_float(u32(x.bits) << 16); }
__device__ __forceinline__ float to_float(f16_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ f16_t from_float<f16_t>(float x) {
  f16_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <> __device__ __forceinline__ bf16_t from_float<bf16_t>(float x) {
  bf16_t y;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  // sm_75 has no bf16 conversion: round to nearest even on the bits; a NaN stays one.
  const u32 u = __float_as_uint(x);
  const u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  y.bits = u16((u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
#endif
  return y;
}

// One element of memory that no one writes during the kernel, through the read-only path. Volatile, so
// that it is loaded where it is used: moved up before a tile's accumulators are stored, it would spill.
__device__ __forceinline__ float load_constant(const float* x) {
  float y;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(y) : "l"(x));
  return y;
}
template <typename T> __device__ __forceinline__ float load_constant(const T* x) {
  T y;
  asm volatile("ld.global.nc.b16 %0, [%1];" : "=h"(y.bits) : "l"(x));
  return to_float(y);
}

// Two values rounded to 16 bits in one register, `low` in the lower half; sm_80 and up.
template <typename T> __device__ __forceinline__ u32 pack_pair(float low, float high) {
  __trap();   // only 16-bit results are packed
  return 0;
}
template <> __device__ __forceinline__ u32 pack_pair<bf16_t>(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <> __device__ __forceinline__ u32 pack_pair<f16_t>(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Two neighbouring elements of the result as one store: 4 bytes for the 16-bit types, 8 for float.
template <typename T> struct alignas(2 * sizeof(T)) Pair { T x, y; };
