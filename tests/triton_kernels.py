"""Kernels for Triton's compiler: products, with and without block scales."""

import triton
import triton.language as tl


@triton.jit
def dot(a, b, c, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK_K)
    total = tl.zeros((M, N), tl.float32)
    for i in range(0, K, BLOCK_K):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + n[None, :] * K + (i + k)[:, None])
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total)


@triton.jit
def dot_scaled(
    a, b, sfa, sfb, c, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, PER_A: tl.constexpr, PER_B: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """PER_A, PER_B: elements in a byte; SIZE: elements with one scale."""
    m, n = tl.arange(0, M), tl.arange(0, N)
    ka, kb = tl.arange(0, BLOCK_K // PER_A), tl.arange(0, BLOCK_K // PER_B)
    ks = tl.arange(0, BLOCK_K // SIZE)
    total = tl.zeros((M, N), tl.float32)
    for i in range(K // BLOCK_K):
        x = tl.load(a + m[:, None] * (K // PER_A) + (i * (BLOCK_K // PER_A) + ka)[None, :])
        y = tl.load(b + n[None, :] * (K // PER_B) + (i * (BLOCK_K // PER_B) + kb)[:, None])
        u = tl.load(sfa + m[:, None] * (K // SIZE) + (i * (BLOCK_K // SIZE) + ks)[None, :])
        v = tl.load(sfb + n[:, None] * (K // SIZE) + (i * (BLOCK_K // SIZE) + ks)[None, :])
        total = tl.dot_scaled(x, u, A, y, v, B, total)
    tl.store(c + m[:, None] * N + n[None, :], total)


@triton.jit
def dot_described(
    a, b, c, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """Tensor descriptors (TMA), a pipeline of stages, warps with tasks of their own."""
    m, n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in tl.range(0, tl.cdiv(K, BLOCK_K), num_stages=STAGES, warp_specialize=SPECIALIZE):
        x, y = a.load([m, i * BLOCK_K]), b.load([n, i * BLOCK_K])
        total = tl.dot(x, y.T, total)
    c.store([m, n], total)
