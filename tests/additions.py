"""Results that k3 adds to: by the TMA unit, or loaded into shared memory before; whole numbers."""

from __future__ import annotations

import numpy as np
import references
from cases import Target, integers
from makers import PADDED, PLAIN, SWAPPED, Maker
from references import assert_same

from gemmjit import Sm90WgmmaConfig

#: One store box and several; a consumer alone and two together; whole tiles and odd ones.
CONFIGS = (
    Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=2, store_boxes=1, order="claimed"),
    Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=3, store_boxes=2),
    Sm90WgmmaConfig(block_m=128, block_n=192, num_stages=2, store_boxes=4, order="claimed"),
    Sm90WgmmaConfig(block_m=128, block_n=64, num_stages=2, store_boxes=8, pingpong=False),
    Sm90WgmmaConfig(block_m=256, block_n=128, num_stages=2, store_boxes=3, pingpong=False),
)
SIZES = (70, 0, 131, 1, 64)
TAIL = 5


def check_sum(maker: Maker, config: Sm90WgmmaConfig, form: str, m: int, n: int, gap: bool) -> None:
    """Add a product to what is there, twice; `gap`: with elements of somebody else behind rows."""
    target = Target(maker, "int32", config)
    used = sum(SIZES)
    rows, ends = used + TAIL, np.cumsum(SIZES).tolist()
    x = integers((rows, m), seed=1, limit=2)
    x[used:] = np.nan
    if form == "wgrad":
        y = integers((rows, n), seed=2, limit=2)
        y[used:] = np.nan
        a, b = target.place(x.T, SWAPPED), target.place(y)
        want = references.wgrad(x.T, y, ends)
    else:
        w = integers((len(SIZES), m, n), seed=2, limit=2)
        a, b = target.place(x), target.place(w)
        want = references.fprop(x, w, ends)
        want[used:] = 0.0
    start = integers(want.shape, seed=3)
    out = target.out(start, PADDED if gap else PLAIN, "float32")
    for _ in range(2):
        target.grouped_mm(a, b, ends, out=out, accumulate=True)
    assert_same(out.read(), start + 2 * want)
    out.assert_only_elements_changed()


def check_small_numbers(maker: Maker, config: Sm90WgmmaConfig, form: str) -> None:
    """What is below the smallest normal number stays, and counts."""
    tiny = 2.0**-140
    target = Target(maker, "int32", config)
    rows = 64
    x = np.zeros((rows, 64))
    x[0, 0] = 2.0**-70
    y = np.zeros((1, 64, 64) if form == "fprop" else (rows, 64))
    y[..., 0, 0] = 2.0**-70
    a = target.place(x) if form == "fprop" else target.place(x.T, SWAPPED)
    b = target.place(y)
    start = np.full((rows, 64) if form == "fprop" else (1, 64, 64), tiny)
    out = target.out(start, PLAIN, "float32")
    target.grouped_mm(a, b, [rows], out=out, accumulate=True)
    start[..., 0, 0] += tiny
    assert_same(out.read(), start)
