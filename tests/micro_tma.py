"""Small kernels that load and store boxes by TMA.

Dimensions are those of the kernels' maps: rows with gaps, and rows seen twice. Most rows end within
16 bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from micro_launch import Micro, MicroSpec, guarded, pointers, random_of

from gemmjit.arch import Arch
from gemmjit.dtypes import BF16, F16, I32
from gemmjit.plan import Scalar, TensorMapArgument
from gemmjit.tensormap import Swizzle, TensorMap, element_type_of

_DTYPES = {"bf16": BF16, "f16": F16}

#: Elements of 16 bytes: a box starts on this grid along the contiguous dimension.
_START_GRID = 8


@dataclass(frozen=True)
class _Tensor:
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    def map(self, kind: str, swizzle: int) -> TensorMap:
        return TensorMap(
            element_type=element_type_of(_DTYPES[kind]), dims=self.dims, strides=self.strides,
            box=self.box, swizzle=Swizzle.of_bytes(swizzle),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        reach = sum((d - 1) * s for d, s in zip(self.dims[1:], self.strides, strict=True))
        return reach + self.dims[0] * 2

    def places(self, lowest: int) -> np.ndarray:
        """Return coordinates: inside, across and beyond either end, dimension by dimension.

        Those of the contiguous dimension lie on the grid of 16 bytes: others are an illegal
        instruction.
        """
        choices = []
        for axis, (extent, box) in enumerate(zip(self.dims, self.box, strict=True)):
            grid = _START_GRID if axis == 0 else 1
            across = min(max(-(box // 2) - grid, grid - box), -grid)
            low = [-box - grid, -box, across] if lowest < 0 else []
            high = [max(extent - max(box // 2, 1), 0), extent - 1, extent + grid - 1, extent + 70]
            inside = min(3 * grid, extent - 1)
            choices.append([v // grid * grid for v in (0, inside, *low, *high)])
        found = [tuple(c[0] for c in choices)]
        for axis, values in enumerate(choices):
            for value in values:
                found.append(tuple(value if i == axis else c[1] for i, c in enumerate(choices)))
        # All corners: across both ends of every dimension at once, where a box has two places.
        corners = [
            (c[4 if lowest < 0 and box > (1 if axis else _START_GRID) else 1], c[-4])
            for axis, (c, box) in enumerate(zip(choices, self.box, strict=True))
        ]
        found += itertools.product(*corners)
        rows = np.zeros((len(found), 4), np.int32)
        rows[:, : len(self.dims)] = found
        return rows


def _rank_2(inner: int) -> _Tensor:
    return _Tensor((70, 50), (160,), (inner, 16))


def _rank_3(inner: int) -> _Tensor:
    return _Tensor((70, 20, 3), (144, 3072), (inner, 8, 2))


def _rank_4(inner: int) -> _Tensor:
    return _Tensor((64, 20, 3, 2), (448, 128, 8960), (inner, 8, 2, 1))


#: Boxes whose rows are narrower than the swizzle: name, swizzle, box.
_NARROW = (
    ("64-byte rows", 128, (32, 16)),
    ("32-byte rows", 128, (16, 16)),
    ("16-byte rows", 128, (8, 16)),
    ("32-byte rows", 64, (16, 16)),
    ("16-byte rows", 64, (8, 16)),
    ("16-byte rows", 32, (8, 16)),
    ("64-byte rows", 128, (32, 2, 8)),
)


def _narrow(box: tuple[int, ...]) -> _Tensor:
    if len(box) == 2:
        return _Tensor((70, 50), (160,), box)
    return _Tensor((70, 20, 12), (144, 3072), box)


#: As k3 sees the rows of a ragged contraction, and of a ragged result.
_TWICE = _Tensor((72, 64, 40), (144, 144), (64, 64, 1))


def tma_loads(target: Arch) -> Iterator[Micro]:
    for rank, swizzle in itertools.product((2, 3, 4), (0, 32, 64, 128)):
        tensor = (_rank_2, _rank_3, _rank_4)[rank - 2]((swizzle or 128) // 2)
        hint = int(rank > 2 and swizzle == 128)
        yield _tma_load(target, f"rank {rank}, swizzle {swizzle}", tensor, "bf16", swizzle, hint)
    for rows, swizzle, box in _NARROW:
        what = f"rank {len(box)}, swizzle {swizzle}, {rows}"
        yield _tma_load(target, what, _narrow(box), "bf16", swizzle, 0)
    yield _tma_load(target, "rows twice", _TWICE, "f16", 128, 0)


def _tma_load(
    target: Arch, what: str, tensor: _Tensor, kind: str, swizzle: int, hint: int
) -> Micro:
    places = tensor.places(lowest=-1)
    tensor_map = tensor.map(kind, swizzle)
    size = tensor_map.smem_bytes
    rng = random_of(what)
    arrays = {
        "tensor": rng.integers(1, 2**16, -(-tensor.nbytes // 2), np.uint16),
        "places": places,
        "out": guarded(len(places) * size // 4),
    }
    values = (
        ("rank", len(tensor.dims)), ("box_bytes", tensor_map.box_bytes),
        ("spanned_bytes", size), ("hint", hint),
    )  # fmt: skip
    spec = MicroSpec("tma_load.cu.j2", target, values, threads=64, smem_bytes=size + 8)
    arguments = (
        TensorMapArgument("tensor", tensor_map), *pointers("places", "out"),
        Scalar(I32, len(places)),
    )  # fmt: skip
    return Micro(f"TMA load, {what}", spec, arrays, arguments)


def tma_stores(target: Arch) -> Iterator[Micro]:
    for swizzle in (0, 32, 64, 128):
        tensor = _rank_3((swizzle or 128) // 2)
        yield _tma_store(target, f"rank 3, swizzle {swizzle}", tensor, swizzle)
    yield _tma_store(target, "rows twice", _TWICE, 128)


def _tma_store(target: Arch, what: str, tensor: _Tensor, swizzle: int) -> Micro:
    places = tensor.places(lowest=0)
    if what == "rows twice":  # each box holds other rows, of which some are dropped
        rows = np.array([(3, 1), (64, 30), (17, 0), (1, 25)])
        places = np.zeros((len(rows) * 2, 4), np.int32)
        places[:, 1], places[:, 2] = np.repeat(64 - rows[:, 0], 2), np.repeat(rows[:, 1], 2)
        places[1::2, 0] = 64
    tensor_map = tensor.map("bf16", swizzle)
    size = tensor_map.box_bytes
    rng = random_of("store " + what)
    arrays = {
        "tensor": guarded(-(-tensor.nbytes // 2) + 64, np.uint16),
        "places": places,
        "in": rng.integers(0, 2**32, len(places) * size // 4, np.uint32),
    }
    spec = MicroSpec("tma_store.cu.j2", target, (("box_bytes", size),), threads=64, smem_bytes=size)
    arguments = (
        TensorMapArgument("tensor", tensor_map), *pointers("places", "in"),
        Scalar(I32, len(places)),
    )  # fmt: skip
    return Micro(f"TMA store, {what}", spec, arrays, arguments)
