// SwiGLU: silu(gate) * up, in FP32, with silu(x) = x / (1 + exp(-x)).

struct SwiGLU {
  // exp(-x) = 2^(-x log2 e) and the reciprocal are approximate (PTX ISA 9.7.3.21, 9.7.3.13): 2 ulp
  // and 1 ulp. Where the exponential is Inf its reciprocal is 0; then -Inf must not be multiplied.
  static __device__ __forceinline__ float apply(float gate, float up) {
    constexpr float LOG2_E = 1.4426950408889634f;
    constexpr float LOWEST = -3.4028234663852886e38f;
    float power, share;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(-LOG2_E * gate));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.f + power));
    return (gate < LOWEST ? LOWEST : gate) * share * up;
  }
};
