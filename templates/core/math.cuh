// Small integer helpers.

__device__ __forceinline__ int min_int(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ constexpr int max_int(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
