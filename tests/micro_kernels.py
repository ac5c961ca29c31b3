"""Small kernels around single instructions, with operands: for a GPU and the emulator alike.

Each is a template in ``tests/micro`` that includes gemmjit's own wrappers of the instructions, so
that what is tried is what the kernels use.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from gemmjit import templating
from gemmjit.arch import Arch
from gemmjit.build import CompiledKernel, build
from gemmjit.dtypes import BF16, F16, I32
from gemmjit.plan import Argument, Launch, Plan, Pointer, Scalar, TensorMapArgument
from gemmjit.tensormap import Swizzle, TensorMap, element_type_of

TEMPLATES = Path(__file__).parent / "micro"
GUARD = 0xCD

_NUMPY = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
_DTYPES = {"bf16": BF16, "f16": F16}


@dataclass(frozen=True)
class MicroSpec:
    """What is compiled: a template and its variables (see `gemmjit.compiled.Spec`)."""

    template: str
    target: Arch
    values: tuple[tuple[str, object], ...] = ()
    threads: int = 32
    smem_bytes: int = 0
    options: tuple[str, ...] = ()
    config: None = None
    variant: None = None

    @property
    def name(self) -> str:
        return self.template.split(".")[0]

    @property
    def entry(self) -> str:
        return "_".join(["micro", self.name, *(str(v) for _, v in self.values)])

    @property
    def variables(self) -> dict[str, object]:
        return {"entry": self.entry, **dict(self.values)}

    @property
    def prewarm_command(self) -> str:
        return "no command compiles kernels of the tests"

    def build(self) -> CompiledKernel:
        with templating.override(TEMPLATES):
            return build(self)


@dataclass(frozen=True)
class Micro:
    """A launch of one block.

    Attributes
    ----------
    name : str
    spec : MicroSpec
    arrays : dict
        Every array that the kernel sees, as it is before the launch.
    arguments : tuple of Argument
    """

    name: str
    spec: MicroSpec
    arrays: dict[str, np.ndarray] = field(repr=False)
    arguments: tuple[Argument, ...] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def plan(self) -> Plan:
        kernel = self.spec.build()
        launch = Launch(
            kernel=kernel, grid=(1, 1, 1), block=(self.spec.threads, 1, 1),
            arguments=self.arguments, smem_bytes=self.spec.smem_bytes,
        )  # fmt: skip
        return Plan(launches=(launch,))


def micros(target: Arch) -> Iterator[Micro]:
    """Yield every micro kernel that a target has."""
    yield from _matrix_moves(target)
    for kind in ("bf16", "f16"):
        yield _mma(target, kind, whole=True)
    yield _cp_async(target)
    yield _convert(target)
    yield _warp(target)
    if target.number < 90:
        return
    yield from _tma_loads(target)
    yield from _tma_stores(target)
    if target.number == 90:
        for n, kind, a, b, add in (
            (64, "bf16", 0, 0, 0), (64, "f16", 0, 1, 1), (128, "bf16", 1, 0, 1),
            (192, "bf16", 1, 1, 0), (192, "f16", 0, 0, 1), (256, "bf16", 0, 1, 1),
            (256, "f16", 1, 1, 0),
        ):  # fmt: skip
            yield _wgmma(target, n, kind, a, b, add, whole=True)


def model_micros(target: Arch) -> Iterator[Micro]:
    """Yield products of numbers that are not whole: for the model of the tensor cores."""
    for kind in ("bf16", "f16"):
        yield _mma(target, kind, whole=False)
        if target.number == 90:
            yield _wgmma(target, 64, kind, 0, 1, 1, whole=False)


def _random(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def _out(count: int, dtype: Any = np.uint32) -> np.ndarray:
    return np.full(count * np.dtype(dtype).itemsize, GUARD, np.uint8).view(dtype)


def _pointers(*names: str) -> tuple[Argument, ...]:
    return tuple(Pointer(name) for name in names)


def _elements(rng: np.random.Generator, kind: str, count: int, whole: bool) -> np.ndarray:
    if whole:
        return rng.integers(-3, 4, count).astype(_NUMPY[kind])
    return (rng.standard_normal(count) * 2.0 ** rng.integers(-4, 5, count)).astype(_NUMPY[kind])


def _floats(rng: np.random.Generator, count: int, whole: bool) -> np.ndarray:
    values = rng.integers(-50, 51, count) if whole else rng.standard_normal(count) * 8
    return values.astype(np.float32)


def _matrix_moves(target: Arch) -> Iterator[Micro]:
    rng = _random("matrix moves")
    rows = rng.permutation(64)[:32].astype(np.uint32)
    data = rng.integers(0, 2**32, 64 * 4, np.uint32)
    spec = MicroSpec("ldmatrix.cu.j2", target, (("mma_type", "bf16"),))
    arrays = {"in": data, "rows": rows, "out": _out(32 * 11)}
    yield Micro("ldmatrix", spec, arrays, _pointers("in", "rows", "out"))
    if target.number >= 90:
        arrays = {"in": data[: 32 * 4], "rows": rows, "out": _out(64 * 4)}
        spec = MicroSpec("stmatrix.cu.j2", target)
        yield Micro("stmatrix", spec, arrays, _pointers("in", "rows", "out"))


def _mma(target: Arch, kind: str, whole: bool) -> Micro:
    name, count = f"mma {kind}" + ("" if whole else " of any numbers"), 8
    rng = _random(name)
    arrays = {
        "a": _elements(rng, kind, count * 32 * 8, whole),
        "b": _elements(rng, kind, count * 32 * 4, whole),
        "c": _floats(rng, count * 32 * 4, whole),
        "d": _out(count * 32 * 4),
    }
    spec = MicroSpec("mma.cu.j2", target, (("mma_type", kind),))
    return Micro(name, spec, arrays, (*_pointers("a", "b", "c", "d"), Scalar(I32, count)))


def _cp_async(target: Arch) -> Micro:
    rng = _random("cp.async")
    arrays = {
        "in": rng.integers(0, 2**32, 32 * 4, np.uint32),
        "sizes": (np.arange(32, dtype=np.uint32) % 17),
        "out": _out(32 * 4),
    }
    return Micro(
        "cp.async", MicroSpec("cp_async.cu.j2", target), arrays, _pointers("in", "sizes", "out")
    )


def _convert(target: Arch) -> Micro:
    rng = _random("convert")
    special = np.array(
        [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345, 1, 0x80000001,
         0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x477FF000, 0x477FEFFF, 0x33000000, 0x33000001,
         0x3F808000, 0x3F818000, 0x3F808001, 0x387FC000, 0x38000000],
        np.uint32,
    )  # fmt: skip
    count = 4096
    bits = rng.integers(0, 2**32, count, np.uint32)
    bits[: len(special)] = special
    arrays = {
        "in": bits,
        "halves": np.arange(0, 2**16, 2**16 // count).astype(np.uint16),
        "to_bf16": _out(count, np.uint16),
        "to_f16": _out(count, np.uint16),
        "from_bf16": _out(count),
        "from_f16": _out(count),
    }
    names = ("in", "halves", "to_bf16", "to_f16", "from_bf16", "from_f16")
    spec = MicroSpec("convert.cu.j2", target, threads=128)
    return Micro("conversions", spec, arrays, (*_pointers(*names), Scalar(I32, count)))


def _warp(target: Arch) -> Micro:
    rng, count = _random("warp"), 16
    arrays = {
        "in": rng.integers(-(2**31), 2**31, count * 32, np.int64).astype(np.int32),
        "out": _out(count * 32 * 10),
    }
    spec = MicroSpec("warp.cu.j2", target)
    return Micro("warp", spec, arrays, (*_pointers("in", "out"), Scalar(I32, count)))


# TMA. Dimensions are those of the kernels' maps: rows with gaps, and rows seen twice. Most rows end
# within 16 bytes.

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
        # All corners: across both ends of every dimension at once, where a box has two elements.
        corners = [
            (c[4 if lowest < 0 and b > 1 else 1], c[-4])
            for c, b in zip(choices, self.box, strict=True)
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


#: As k3 sees the rows of a ragged contraction, and of a ragged result.
_TWICE = _Tensor((72, 64, 40), (144, 144), (64, 64, 1))


def _tma_loads(target: Arch) -> Iterator[Micro]:
    for rank, swizzle in itertools.product((2, 3, 4), (0, 32, 64, 128)):
        tensor = (_rank_2, _rank_3, _rank_4)[rank - 2]((swizzle or 128) // 2)
        hint = int(rank > 2 and swizzle == 128)
        yield _tma_load(target, f"rank {rank}, swizzle {swizzle}", tensor, "bf16", swizzle, hint)
    yield _tma_load(target, "rows twice", _TWICE, "f16", 128, 0)


def _tma_load(
    target: Arch, what: str, tensor: _Tensor, kind: str, swizzle: int, hint: int
) -> Micro:
    places = tensor.places(lowest=-1)
    tensor_map = tensor.map(kind, swizzle)
    size = tensor_map.box_bytes
    rng = _random(what)
    arrays = {
        "tensor": rng.integers(1, 2**16, -(-tensor.nbytes // 2), np.uint16),
        "places": places,
        "out": _out(len(places) * size // 4),
    }
    values = (("rank", len(tensor.dims)), ("box_bytes", size), ("hint", hint))
    spec = MicroSpec("tma_load.cu.j2", target, values, threads=64, smem_bytes=size + 8)
    arguments = (
        TensorMapArgument("tensor", tensor_map), *_pointers("places", "out"),
        Scalar(I32, len(places)),
    )  # fmt: skip
    return Micro(f"TMA load, {what}", spec, arrays, arguments)


def _tma_stores(target: Arch) -> Iterator[Micro]:
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
    rng = _random("store " + what)
    arrays = {
        "tensor": _out(-(-tensor.nbytes // 2) + 64, np.uint16),
        "places": places,
        "in": rng.integers(0, 2**32, len(places) * size // 4, np.uint32),
    }
    spec = MicroSpec("tma_store.cu.j2", target, (("box_bytes", size),), threads=64, smem_bytes=size)
    arguments = (
        TensorMapArgument("tensor", tensor_map), *_pointers("places", "in"),
        Scalar(I32, len(places)),
    )  # fmt: skip
    return Micro(f"TMA store, {what}", spec, arrays, arguments)


def _wgmma(target: Arch, n: int, kind: str, a: int, b: int, add: int, whole: bool) -> Micro:
    majors = f"A {'M' if a else 'K'}-major, B {'N' if b else 'K'}-major"
    name = f"wgmma n{n} {kind}, {majors}, {'added' if add else 'fresh'}"
    name += "" if whole else ", of any numbers"
    rng = _random(name)
    arrays = {
        "in": _elements(rng, kind, 64 * 64 + n * 64, whole),
        "start": _floats(rng, 128 * n // 2, whole),
        "out": _out(128 * n // 2),
    }
    values = (("mma_type", kind), ("block_n", n), ("a_transposed", a), ("b_transposed", b))
    spec = MicroSpec("wgmma.cu.j2", target, values, threads=128, smem_bytes=64 * 128 + n * 128)
    arguments = (*_pointers("in", "start", "out"), Scalar(I32, add))
    return Micro(name, spec, arrays, arguments)
