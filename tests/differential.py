"""The same cubins on a GPU and in the emulator: cases, and both ways to run them.

A case gives every byte that the kernel can touch, as it is afterwards. On whole numbers the two
must agree bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import makers
import numpy as np
from cases import ends_of, integers
from edges import EDGES, NAN, Edge, serves
from makers import Layout, Maker, NumpyMaker, Placed
from micro_launch import Micro

from gemmjit.arch import Arch
from gemmjit.arrays import frontend_of
from gemmjit.build import build
from gemmjit.config import Config
from gemmjit.emulator import Report, emulating, plan_executor
from gemmjit.emulator.settings import Settings
from gemmjit.kernels import KERNELS
from gemmjit.ops.dispatch import spec_for
from gemmjit.ops.toolkit import LaunchableKernel
from gemmjit.ops.validation import problem_of

Bytes = dict[str, np.ndarray]

# -- micro kernels --------------------------------------------------------------------------


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy as bytes that begins on 256 bytes, as device memory does."""
    flat = NumpyMaker().upload(array.reshape(-1).view(np.uint8))
    assert flat.ctypes.data % 256 == 0
    return flat


def emulate_micro(micro: Micro, settings: Settings | None = None) -> tuple[Bytes, Report]:
    """Run a micro kernel in the emulator."""
    arrays = {name: _aligned(array) for name, array in micro.arrays.items()}
    views = {name: frontend_of(a, name).view(a) for name, a in arrays.items()}
    (report,) = plan_executor.run(micro.plan(), views, settings=settings)
    return arrays, report


def run_micro(micro: Micro, ordinal: int = 0) -> Bytes:
    """Run a micro kernel on a GPU, through the driver."""
    import cupy

    from gemmjit.cuda.executor import BoundPlan

    with cupy.cuda.Device(ordinal):
        arrays = {n: cupy.asarray(a.reshape(-1).view(np.uint8)) for n, a in micro.arrays.items()}
        bound = BoundPlan(micro.plan(), tuple(arrays), ordinal)
        some = next(iter(arrays.values()))
        stream = cupy.cuda.get_current_stream()
        *inputs, last = (a.data.ptr for a in arrays.values())
        bound.run(tuple(inputs), last, stream.ptr, frontend_of(some, "a"))
        stream.synchronize()
        return {name: array.get() for name, array in arrays.items()}


# -- the project's kernels ------------------------------------------------------------------


@dataclass(frozen=True)
class KernelCase:
    """A tile of a kernel and a problem."""

    config: Config
    edge: Edge

    def __str__(self) -> str:
        e = self.edge
        parts = [
            self.config.kernel, str(self.config), self.config.schedule or "default", e.form,
            e.dtype, e.out_dtype, e.a.name, e.b.name, e.out.name if e.out else "fresh",
            f"n{e.n}", f"k{e.k}", f"{len(e.sizes)}x{sum(e.sizes)}+{e.tail}",
        ]  # fmt: skip
        return "-".join(parts + (["add"] if e.accumulate else []))


_ODD: tuple[Layout, ...] = (
    makers.ODD_PAD, makers.MISALIGNED, makers.STEPPED, makers.SWAPPED_ODD, makers.EXPANDED_OUTER,
)  # fmt: skip


def kernel_cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield the sample: tiles in turn over the edges, then odd strides, then swizzles."""
    for kernel in KERNELS.values():
        last = kernel.max_arch.number if kernel.max_arch is not None else arch.number
        if not kernel.min_arch.number <= arch.number <= last:
            continue
        tiles = kernel.shipped_configs()
        mine = [edge for edge in EDGES.values() if serves(kernel, edge) and edge.sizes]
        step = 1 if kernel.loads_by_tma else 2
        for number, edge in enumerate(mine[::step]):
            schedule = ("", "compact", "bounded")[number % 3 if edge.form == "ragged_m" else 0]
            yield KernelCase(replace(tiles[number % len(tiles)], schedule=schedule), edge)
        if kernel.loads_by_tma:
            continue
        for number, layout in enumerate(_ODD):
            out = None if layout.expanded_axis is not None else layout
            edge = Edge(a=layout, b=layout, out=out, n=33, k=65, tail=0)
            yield KernelCase(tiles[number % len(tiles)], edge)
    if arch.number < 90:
        return
    for number, swizzle in enumerate((0, 32, 64, 128)):
        tile = replace(KERNELS["k2"].default_config, swizzle=swizzle, num_stages=2)
        for b in (makers.PLAIN, makers.SWAPPED):
            edge = Edge(
                b=b, a=makers.PADDED, n=136, k=200, dtype=("bfloat16", "float16")[number % 2]
            )
            yield KernelCase(tile, replace(edge, out_dtype=edge.dtype))


@dataclass
class _Operands:
    """A case's arrays in one framework."""

    a: Placed
    b: Placed
    offs: Any
    out: Placed | None
    rows: int


def _place(case: KernelCase, maker: Maker) -> _Operands:
    edge, ends = case.edge, ends_of(case.edge.sizes)
    used, rows = ends[-1], ends[-1] + edge.tail
    if edge.form == "ragged_m":
        a, b = integers((rows, edge.k), seed=1), integers((len(ends), edge.k, edge.n), seed=2)
        shape: tuple[int, ...] = (rows, edge.n)
        if edge.a.expanded_axis is None:
            a[used:] = NAN
    else:
        a, b = integers((edge.k, rows), seed=1), integers((rows, edge.n), seed=2)
        shape = (len(ends), edge.k, edge.n)
        a[:, used:], b[used:] = NAN, NAN
    out = None
    if edge.out is not None:
        out = maker.place(integers(shape, seed=5), edge.out_dtype, edge.out, poison=7.0)
    offs = list(ends) if edge.offs == "list" else maker.array(np.asarray(ends), "int32")
    return _Operands(
        maker.place(a, edge.dtype, edge.a), maker.place(b, edge.dtype, edge.b), offs, out, rows
    )


def launchable(case: KernelCase, arch: Arch) -> LaunchableKernel:
    """Compile the kernel that serves a case, once for both."""
    edge, operands = case.edge, _place(case, NumpyMaker())
    numpy = frontend_of(operands.a.array, "mat_a")
    problem = problem_of(
        numpy.view(operands.a.array),
        numpy.view(operands.b.array),
        None if edge.offs == "list" else numpy.view(operands.offs),
        len(edge.sizes),
        None if operands.out is None else numpy.view(operands.out.array),
        edge.out_dtype,
        edge.accumulate,
    )
    spec = spec_for(problem, arch, case.config)
    built = build(spec)
    return LaunchableKernel(**{f.name: getattr(built, f.name) for f in fields(built)}, spec=spec)


def run_case(case: KernelCase, maker: Maker, kernel: LaunchableKernel) -> Bytes:
    """Launch a compiled kernel on arrays of a framework; on NumPy's, in the emulator."""
    operands = _place(case, maker)
    out = None if operands.out is None else operands.out.array
    result = kernel.launch(operands.a.array, operands.b.array, offs=operands.offs, out=out)
    if operands.out is not None:
        written = operands.out.raw()
    else:
        written = maker.download(result).reshape(-1).view(np.uint8)
    return {"a": operands.a.raw(), "b": operands.b.raw(), "out": written}


def emulated(case: KernelCase | Micro, arch: Arch, numerics: str) -> Bytes:
    """Return what a case gives in the emulator."""
    if isinstance(case, Micro):
        return emulate_micro(case, Settings(numerics=numerics))[0]
    return run_case(case, NumpyMaker(), launchable(case, arch))


# -- what they execute ----------------------------------------------------------------------


def executed(arch: Arch, micro_kernels: list[Micro]) -> dict[str, set[str]]:
    """Return every instruction that the cases execute, and the names of what executes it."""
    found: dict[str, set[str]] = defaultdict(set)
    for micro in micro_kernels:
        _, report = emulate_micro(micro)
        for name in report.instructions:
            found[name].add(micro.spec.name)
    for case in kernel_cases(arch):
        with emulating() as reports:
            run_case(case, NumpyMaker(), launchable(case, arch))
        for report in reports:
            for name in report.instructions:
                found[name].add(case.config.kernel)
    return dict(found)
