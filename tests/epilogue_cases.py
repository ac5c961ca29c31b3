"""Every kernel with every epilogue, on any array framework, against float64.

Operands are small whole numbers, so that everything but SwiGLU is exact. Groups end inside tiles,
one is empty, N is no multiple of 64, and the rows of the tail hold NaN in all operands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from cases import Target, ends_of, integers
from makers import EXPANDED_OUTER, PADDED, PLAIN, STEPPED, SWAPPED, Layout, Maker
from references import assert_same, rounded

from gemmjit import RowScale, SimtConfig, Sm80MmaConfig, Sm90TmaMmaConfig, Sm90WgmmaConfig, SwiGLU
from gemmjit.config import Config
from gemmjit.epilogue import chain_of

SIZES = (70, 0, 3, 33)
TAIL = 9
DIM_K = 40

EPILOGUES = (
    "bias",
    "bias_f32",
    "row_scale",
    "row_scale_f32",
    "bias+row_scale_f32",
    "swiglu_split",
    "swiglu_interleaved",
    "bias+swiglu_split+row_scale_f32",
    "bias_f32+swiglu_interleaved+row_scale",
    "accumulate",
    "bias+row_scale+accumulate",
    "bias_f32+swiglu_split+row_scale_f32+accumulate",
    "swiglu_interleaved+accumulate",
)

#: Small tiles, and the widest of k3, whose store boxes are not whole.
TILES: dict[str, tuple[Config, ...]] = {
    "k0": (SimtConfig(),),
    "k1": (
        Sm80MmaConfig(block_m=32, block_n=64, num_stages=3),
        Sm80MmaConfig(block_m=64, block_n=128, double_buffer_fragments=True),
    ),
    "k2": (
        Sm90TmaMmaConfig(block_m=32, block_n=128, num_stages=2),
        Sm90TmaMmaConfig(block_m=32, block_n=256, num_stages=2, swizzle=64),
    ),
    "k3": (
        Sm90WgmmaConfig(block_m=64, block_n=128, num_stages=3, store_boxes=2),
        Sm90WgmmaConfig(block_m=128, block_n=192, num_stages=3),
        Sm90WgmmaConfig(block_m=128, block_n=256, num_stages=2, pingpong=False),
    ),
}

#: Half a unit in the last place, over the value.
_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
#: Half of the smallest step of a type, where values have lost bits to underflow.
_SMALLEST = {"bfloat16": 2.0**-126, "float16": 2.0**-25, "float32": 2.0**-126}


@dataclass(frozen=True)
class EpilogueCase:
    """One kernel, epilogue and set of types; `into`: the result has the layout `out`."""

    epilogue: str
    config: Config
    dtype: str
    out_dtype: str
    b: Layout
    offs: str = "int32"
    n: int = 144
    bias: Layout = PLAIN
    into: bool = False
    out: Layout = PADDED

    def __str__(self) -> str:
        parts = [self.config.kernel, str(self.config), self.epilogue, self.dtype, self.out_dtype]
        into = "fresh" if not self.into else "into" if self.out is PADDED else self.out.name
        return "-".join([*parts, self.b.name, self.bias.name, into])


def epilogue_cases() -> list[EpilogueCase]:
    """Return every kernel x epilogue x operand type x result type; the rest takes turns."""
    found = []
    turn = 0
    for kernel, tiles in TILES.items():
        for epilogue in EPILOGUES:
            chain = chain_of(epilogue)
            for dtype in ("bfloat16", "float16"):
                for out_dtype in ("float32",) if chain.accumulates else (dtype, "float32"):
                    config, b = tiles[turn % len(tiles)], (PLAIN, SWAPPED)[turn // 2 % 2]
                    by_tma = kernel in ("k2", "k3")
                    sizes = (144, 200, 136) if by_tma else (146, 98, 70)
                    if by_tma and chain.gate == "split" and b is PLAIN:
                        sizes = (144, 208, 272)  # half of N begins on the 16-byte grid
                    found.append(
                        EpilogueCase(
                            epilogue, config, dtype, out_dtype, b,
                            offs=("int32", "list", "int64")[turn % 3],
                            n=sizes[turn % 3],
                            bias=(PLAIN, STEPPED, EXPANDED_OUTER, PADDED)[turn % 4],
                            into=turn % 5 == 0,
                        )
                    )  # fmt: skip
                    turn += 1
    return found + gates_in_boxes()


def gates_in_boxes() -> list[EpilogueCase]:
    """Return k3 with an N-major B of gates, then factors, each in chunks of 32 or 64 columns.

    Half of 144 columns is no whole chunk of either width; of 192 of the narrow one, of 256 of both.
    """
    tiles = (*TILES["k3"], replace(TILES["k3"][0], b_evict_first=True))
    return [
        EpilogueCase(epilogue, tile, "bfloat16", out_dtype, PLAIN, n=n)
        for tile in tiles
        for n in (144, 192, 256)
        for epilogue, out_dtype in (
            ("swiglu_split", "bfloat16"),
            ("bias+swiglu_split+row_scale_f32", "float32"),
        )
    ]


def exact(
    a: np.ndarray,
    b: np.ndarray,
    ends: list[int],
    gate: str,
    bias: np.ndarray | None,
    scale: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the result in float64, and how far FP32 arithmetic may be off it."""
    columns = b.shape[2] // (2 if gate else 1)
    out, allowed = np.zeros((a.shape[0], columns)), np.zeros((a.shape[0], columns))
    first = 0
    for group, end in enumerate(ends):
        rows = slice(first, end)
        first = end
        x = a[rows] @ b[group]
        if bias is not None:
            x = x + bias[group]
        if gate:
            split = gate == "split"
            g, u = (x[:, :columns], x[:, columns:]) if split else (x[:, 0::2], x[:, 1::2])
            x = g / (1 + np.exp(-g)) * u
            # ex2.approx and rcp.approx: 2^-22 and 2^-23; the sum and three products: 2^-24 each;
            # the exponent, a rounded product with a rounded constant: |g| (2^-24 + 1.4e-8).
            allowed[rows] = abs(x) * (2**-22 + 2**-23 + 4 * 2**-24 + abs(g) * 7.4e-8)
        if scale is not None:
            x = x * scale[rows, None]
            allowed[rows] *= abs(scale[rows, None])
        out[rows] = x
    return out, allowed


def check(maker: Maker, case: EpilogueCase) -> None:
    """Run a case and compare."""
    chain = chain_of(case.epilogue)
    ends, used = ends_of(SIZES), sum(SIZES)
    rows, groups = used + TAIL, len(SIZES)
    target = Target(maker, case.offs, case.config)
    a, b = integers((rows, DIM_K), seed=1, limit=2), integers((groups, DIM_K, case.n), 2, limit=2)
    a[used:] = np.nan
    placed_a = target.place(a, dtype=case.dtype)
    placed_b = target.place(b, case.b, case.dtype)

    keywords: dict[str, object] = {}
    bias = scale = None
    steps: list[object] = [SwiGLU(chain.gate)] if chain.gate else []  # type: ignore[arg-type]
    placed = [placed_a, placed_b]
    for step in chain.operands:
        dtype = "float32" if step.option == "f32" else case.dtype
        if step.kind.keyword == "bias":
            held = target.place(integers((groups, case.n), seed=3), case.bias, dtype)
            bias = held.read()
            keywords["bias"] = held.array
        else:
            values = integers((rows,), seed=4)
            values[used:] = np.nan
            held = target.place(values, PLAIN, dtype)
            scale = held.read()
            steps.append(RowScale(held.array))
        placed.append(held)
    if steps:
        keywords["epilogue"] = steps[0] if len(steps) == 1 else tuple(steps)
    want, allowed = exact(a, b, ends, chain.gate, bias, scale)

    if chain.accumulates or case.into:
        start = integers(want.shape, seed=5)
        out = target.out(start, case.out if case.into else PLAIN, case.out_dtype)
        target.grouped_mm(
            placed_a, placed_b, ends, out=out, accumulate=chain.accumulates, **keywords
        )
        if chain.accumulates:
            want = want + start
        want[used:] = start[used:]
        got = out.read()
        out.assert_only_elements_changed()
    else:
        maker.poison_pool(want.shape, case.out_dtype)
        result = target.grouped_mm(placed_a, placed_b, ends, out_dtype=case.out_dtype, **keywords)
        assert maker.dtype_name(result) == case.out_dtype
        got = target.read(result)
    for one in placed:
        one.assert_unchanged()
    if chain.gate:
        assert got.shape == want.shape
        limit = allowed + abs(want) * _ROUNDOFF[case.out_dtype] + _SMALLEST[case.out_dtype]
        wrong = ~(abs(got - want) <= limit)
        assert not wrong.any(), f"{int(wrong.sum())} of {wrong.size}; first {np.argwhere(wrong)[0]}"
        assert_same(got[used:], want[used:])
    else:
        assert_same(got, rounded(want, case.out_dtype))
