"""The TensorMap of a B whose columns are gates and their factors."""

from __future__ import annotations

from gemmjit.kernels.kernel import tma_stride
from gemmjit.problem import Problem
from gemmjit.tensormap import L2Promotion, Swizzle, TensorMap, element_type_of

__all__ = ["halves_map"]


def halves_map(
    problem: Problem, b_k_major: bool, block_n: int, box_bytes: int = 128, swizzle: int = 128
) -> TensorMap | None:
    """Return the map of a K-major B with gates and their factors, or None if B is another.

    Element (k, h, 0, g) is of the gate of column h of the result, (k, h, 1, g) of its factor; a box
    holds half a tile of each, `box_bytes` of the contraction wide.
    """
    gate = problem.chain.gate
    if not gate or not b_k_major:
        return None
    s, itemsize = problem.strides, problem.in_dtype.itemsize
    row = tma_stride(s.bn, problem.n, problem.k)
    group = tma_stride(s.bg, problem.num_groups, row * problem.n)
    columns = problem.columns
    steps = (row, columns * row) if gate == "split" else (2 * row, row)
    return TensorMap(
        element_type=element_type_of(problem.in_dtype),
        dims=(problem.k, columns, 2, problem.num_groups),
        strides=(steps[0] * itemsize, steps[1] * itemsize, group * itemsize),
        box=(box_bytes // itemsize, block_n // 2, 2, 1),
        swizzle=Swizzle.of_bytes(swizzle),
        l2_promotion=L2Promotion.BYTES_128,
    )
