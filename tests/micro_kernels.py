"""Small kernels around single instructions, with operands: for a GPU and the emulator alike.

Each is a template in ``tests/micro`` that includes gemmjit's own wrappers of the instructions, so
that what is tried is what the kernels use.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from micro_launch import Micro, MicroSpec, elements, floats, guarded, pointers, random_of
from micro_tma import tma_loads, tma_stores

from gemmjit.arch import Arch
from gemmjit.dtypes import I32
from gemmjit.plan import Scalar


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
    yield from tma_loads(target)
    yield from tma_stores(target)
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


def _matrix_moves(target: Arch) -> Iterator[Micro]:
    rng = random_of("matrix moves")
    rows = rng.permutation(64)[:32].astype(np.uint32)
    data = rng.integers(0, 2**32, 64 * 4, np.uint32)
    spec = MicroSpec("ldmatrix.cu.j2", target, (("mma_type", "bf16"),))
    arrays = {"in": data, "rows": rows, "out": guarded(32 * 11)}
    yield Micro("ldmatrix", spec, arrays, pointers("in", "rows", "out"))
    if target.number >= 90:
        arrays = {"in": data[: 32 * 4], "rows": rows, "out": guarded(64 * 4)}
        spec = MicroSpec("stmatrix.cu.j2", target)
        yield Micro("stmatrix", spec, arrays, pointers("in", "rows", "out"))


def _mma(target: Arch, kind: str, whole: bool) -> Micro:
    name, count = f"mma {kind}" + ("" if whole else " of any numbers"), 8
    rng = random_of(name)
    arrays = {
        "a": elements(rng, kind, count * 32 * 8, whole),
        "b": elements(rng, kind, count * 32 * 4, whole),
        "c": floats(rng, count * 32 * 4, whole),
        "d": guarded(count * 32 * 4),
    }
    spec = MicroSpec("mma.cu.j2", target, (("mma_type", kind),))
    return Micro(name, spec, arrays, (*pointers("a", "b", "c", "d"), Scalar(I32, count)))


def _cp_async(target: Arch) -> Micro:
    rng = random_of("cp.async")
    arrays = {
        "in": rng.integers(0, 2**32, 32 * 4, np.uint32),
        "sizes": (np.arange(32, dtype=np.uint32) % 17),
        "out": guarded(32 * 4),
    }
    return Micro(
        "cp.async", MicroSpec("cp_async.cu.j2", target), arrays, pointers("in", "sizes", "out")
    )


def _convert(target: Arch) -> Micro:
    rng = random_of("convert")
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
        "to_bf16": guarded(count, np.uint16),
        "to_f16": guarded(count, np.uint16),
        "from_bf16": guarded(count),
        "from_f16": guarded(count),
    }
    names = ("in", "halves", "to_bf16", "to_f16", "from_bf16", "from_f16")
    spec = MicroSpec("convert.cu.j2", target, threads=128)
    return Micro("conversions", spec, arrays, (*pointers(*names), Scalar(I32, count)))


def _warp(target: Arch) -> Micro:
    rng, count = random_of("warp"), 16
    arrays = {
        "in": rng.integers(-(2**31), 2**31, count * 32, np.int64).astype(np.int32),
        "out": guarded(count * 32 * 10),
    }
    spec = MicroSpec("warp.cu.j2", target)
    return Micro("warp", spec, arrays, (*pointers("in", "out"), Scalar(I32, count)))


def _wgmma(target: Arch, n: int, kind: str, a: int, b: int, add: int, whole: bool) -> Micro:
    majors = f"A {'M' if a else 'K'}-major, B {'N' if b else 'K'}-major"
    name = f"wgmma n{n} {kind}, {majors}, {'added' if add else 'fresh'}"
    name += "" if whole else ", of any numbers"
    rng = random_of(name)
    arrays = {
        "in": elements(rng, kind, 64 * 64 + n * 64, whole),
        "start": floats(rng, 128 * n // 2, whole),
        "out": guarded(128 * n // 2),
    }
    values = (("mma_type", kind), ("block_n", n), ("a_transposed", a), ("b_transposed", b))
    spec = MicroSpec("wgmma.cu.j2", target, values, threads=128, smem_bytes=64 * 128 + n * 128)
    arguments = (*pointers("in", "start", "out"), Scalar(I32, add))
    return Micro(name, spec, arrays, arguments)
