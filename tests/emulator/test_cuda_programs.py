"""CUDA C++ compiled by NVRTC: what compilers make of everyday code, under every policy."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from gemmjit.arch import Arch
from gemmjit.compiler import get_compiler
from gemmjit.compiler.options import standard_options
from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate

POLICIES = ["eager", "lazy", "random"]
N = 512

SOURCE = r"""
extern "C" __global__ void block_sum(const float* x, float* y, int n) {
  __shared__ float parts[32];
  float s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
  for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x < 32) {
    s = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
    for (int d = 16; d; d /= 2) s += __shfl_down_sync(~0u, s, d);
    if (threadIdx.x == 0) atomicAdd(y, s);
  }
}
extern "C" __global__ void histogram(const int* x, int* bins, int n) {
  __shared__ int local[64];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&local[x[i] & 63], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < 64; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}
__device__ __noinline__ int collatz(int n) {
  int steps = 0;
  while (n != 1) { n = n & 1 ? 3 * n + 1 : n / 2; steps++; }
  return steps;
}
extern "C" __global__ void divergent_calls(const int* x, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = collatz(i + 1) + (x[i] > 0 ? collatz(x[i]) : -1);
}
extern "C" __global__ void choices(const int* x, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int v = x[i], r, table[16];
  switch (v % 7) {
    case 0: r = v * 3; break;
    case 1: r = v / 5; break;
    case 2: r = v << 2; break;
    case 3: r = ~v; break;
    case 4: r = __popc(v); break;
    case 5: r = __clz(v); break;
    default: r = -v;
  }
  for (int k = 0; k < 16; k++) table[k] = v * k;
  y[i] = r + table[unsigned(v) % 16];
}
extern "C" __global__ void elementary(const double* x, double* y, const float* u, float* v, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = sin(x[i]) + exp(x[i] / 9) + sqrt(fabs(x[i])) / 7.0 + fma(x[i], x[i], 1.0) + floor(x[i]);
  v[i] = sinf(u[i]) * expf(-u[i]) + logf(1 + u[i] * u[i]) + u[i] / 3.f + rsqrtf(u[i] * u[i] + 1);
}
typedef int (*Function)(int);
__device__ int increment(int x) { return x + 1; }
__device__ int twice(int x) { return x * 2; }
__device__ Function functions[2] = {increment, twice};
__constant__ int weights[4] = {10, 20, 30, 40};
extern "C" __global__ void pointers(int* y) {
  y[threadIdx.x] = functions[threadIdx.x & 1](threadIdx.x) + weights[threadIdx.x & 3];
}
extern "C" __global__ void lock(int* mutex, int* sum) {
  if (threadIdx.x == 0) {
    while (atomicCAS(mutex, 0, 1)) __nanosleep(20);
    *(volatile int*)sum = *(volatile int*)sum + int(blockIdx.x);
    __threadfence();
    atomicExch(mutex, 0);
  }
}
extern "C" __global__ void talk(int n) {
  int i = threadIdx.x;
  if (i < n) printf("%d: %5.2f %s %lld\n", i, i * 0.5, "ok", 1ll << 40);
}
extern "C" __global__ void scan(const unsigned long long* x, unsigned long long* y) {
  unsigned long long v = x[threadIdx.x];
  for (int d = 1; d < 32; d *= 2) {
    unsigned long long t = __shfl_up_sync(~0u, v, d);
    if ((threadIdx.x & 31) >= d) v += t;
  }
  y[threadIdx.x] = v;
}
"""


@cache
def ptx(target):
    arch = Arch.parse(target)
    options = standard_options(arch)
    return get_compiler().compile(SOURCE, target=arch, name="programs.cu", options=options).ptx


@pytest.fixture(params=["sm_80", "sm_90a"])
def launch(request):
    def run(entry, grid, block, arrays, scalars=(), policy="eager"):
        memory = DeviceMemory()
        pointers = [memory.allocate(a.nbytes, a) for a in arrays]
        one = KernelLaunch(
            ptx=ptx(request.param), entry=entry, grid=(grid,), block=(block,),
            args=[*pointers, *scalars], memory=memory,
        )  # fmt: skip
        report = emulate([one], policy=policy, max_steps=2_000_000)
        found = [memory.read(p, a.dtype, a.size) for p, a in zip(pointers, arrays, strict=True)]
        return found, report

    return run


RNG = np.random.default_rng(0)
FLOATS = RNG.integers(-8, 9, N).astype("f4")
INTEGERS = RNG.integers(-1000, 1000, N).astype("i4")


@pytest.mark.parametrize("policy", POLICIES)
def test_reductions_and_histograms(launch, policy):
    found, _ = launch("block_sum", 3, 128, [FLOATS, np.zeros(1, "f4")], [N], policy)
    assert found[1][0] == FLOATS.sum()
    found, _ = launch("histogram", 3, 96, [INTEGERS, np.zeros(64, "i4")], [N], policy)
    np.testing.assert_array_equal(found[1], np.bincount(INTEGERS & 63, minlength=64))


def collatz(n):
    steps = 0
    while n != 1:
        n = 3 * n + 1 if n & 1 else n // 2
        steps += 1
    return steps


@pytest.mark.parametrize("policy", ["eager", "random"])
def test_divergent_loops_in_functions(launch, policy):
    x, n = INTEGERS[:200], 200
    found, _ = launch("divergent_calls", 2, 128, [x, np.zeros(n, "i4")], [n], policy)
    expected = [collatz(i + 1) + (collatz(int(v)) if v > 0 else -1) for i, v in enumerate(x)]
    np.testing.assert_array_equal(found[1], expected)


@pytest.mark.parametrize("policy", ["eager", "random"])
def test_switches_and_local_arrays(launch, policy):
    def chosen(v):
        bits = v & 0xFFFFFFFF
        r = {
            0: v * 3,
            1: int(v / 5),
            2: v << 2,
            3: ~v,
            4: bin(bits).count("1"),
            5: 32 - bits.bit_length(),
        }
        return r.get(int(math.fmod(v, 7)), -v) + v * (bits % 16)

    found, _ = launch("choices", 4, 128, [INTEGERS, np.zeros(N, "i4")], [N], policy)
    np.testing.assert_array_equal(found[1], [chosen(int(v)) for v in INTEGERS])


def test_elementary_functions(launch):
    x, u = RNG.standard_normal(N) * 5, RNG.standard_normal(N).astype("f4") * 3
    zeros = [np.zeros(N), np.zeros(N, "f4")]
    found, _ = launch("elementary", 4, 128, [x, zeros[0], u, zeros[1]], [N])
    expected = np.sin(x) + np.exp(x / 9) + np.sqrt(np.abs(x)) / 7 + (x * x + 1) + np.floor(x)
    np.testing.assert_allclose(found[1], expected, rtol=1e-14, atol=1e-14)
    w = u.astype("f8")
    expected = np.sin(w) * np.exp(-w) + np.log(1 + w * w) + w / 3 + 1 / np.sqrt(w * w + 1)
    np.testing.assert_allclose(found[3], expected, rtol=1e-5, atol=1e-5)


def test_function_pointers_and_constants(launch):
    found, _ = launch("pointers", 1, 32, [np.zeros(32, "i4")])
    i = np.arange(32)
    expected = np.where(i % 2, 2 * i, i + 1) + 10 * (i % 4 + 1)
    np.testing.assert_array_equal(found[0], expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_locks(launch, policy):
    found, _ = launch("lock", 6, 32, [np.zeros(1, "i4"), np.zeros(1, "i4")], policy=policy)
    assert found[1][0] == 15


def test_printf(launch):
    _, report = launch("talk", 1, 32, [], [3])
    assert report.output == "".join(f"{i}: {i * 0.5:5.2f} ok {1 << 40}\n" for i in range(3))


def test_wide_shuffles(launch):
    x = RNG.integers(0, 1 << 58, 64).astype("u8")
    found, _ = launch("scan", 1, 64, [x, np.zeros(64, "u8")])
    np.testing.assert_array_equal(found[1], np.cumsum(x.reshape(2, 32), 1).astype("u8").ravel())
