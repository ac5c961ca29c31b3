"""What racecheck says of a ring that a warp empties, and one lane of it reports; on CuPy.

    compute-sanitizer --tool racecheck python tests/gpu/racecheck_reproducer.py lane
    compute-sanitizer --tool racecheck python tests/gpu/racecheck_reproducer.py all

One thread hands numbers to a warp through a ring of two places, each with a full and an empty
barrier, as k3's scheduling warp hands tiles to its consumers. All lanes read a place; then, with
``lane``, they meet at `__syncwarp` and lane 0 arrives at the empty barrier for all of them, as k3
does; with ``all``, each arrives for itself. Both are ordered: `__syncwarp` orders what its lanes
did before it, and the arrival releases it (PTX ISA 8.7 and 9.7.13.15). The tool of CUDA 13.0 counts
four races between the read and the next write with ``lane``, and none with ``all`` (H200,
2026-11-30): it does not carry what lanes did over `__syncwarp` to the arrival of another.
"""

from __future__ import annotations

import sys

SOURCE = r"""
__device__ unsigned at(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ void wait(unsigned barrier, int parity) {
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
               "@!p bra L; }" :: "r"(barrier), "r"(parity) : "memory");
}
__device__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
extern "C" __global__ void ring(int* out, int turns) {
  __shared__ int place[2];
  __shared__ alignas(8) unsigned long long full[2], empty[2];
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(full + i)));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(empty + i)), "r"(ARRIVALS));
    }
  }
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < turns; ++i) {
    const int p = i % 2, parity = i / 2 % 2;
    if (threadIdx.x == 0) {
      wait(at(empty + p), parity ^ 1);
      place[p] = i;
      arrive(at(full + p));
    } else if (threadIdx.x >= 32) {
      wait(at(full + p), parity);
      sum += place[p];
      __syncwarp();
      if (ARRIVALS == 32 || lane == 0) arrive(at(empty + p));
    }
  }
  if (threadIdx.x >= 32) out[lane] = sum;
}
"""


def main() -> int:
    import cupy

    arrivals = {"lane": 1, "all": 32}[sys.argv[1]]
    options = (f"-DARRIVALS={arrivals}", "-std=c++17")
    ring = cupy.RawKernel(SOURCE, "ring", options=options)
    out, turns = cupy.zeros(32, cupy.int32), 10
    ring((1,), (64,), (out, cupy.int32(turns)))
    return 0 if (out == sum(range(turns))).all() else 1


if __name__ == "__main__":
    sys.exit(main())
