"""Random points of the whole parameter space: tiles, variants, targets, calls.

A point is refused by a rule that says why, or it compiles and computes rightly. Values that no rule
should let through are drawn too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import makers
import matrix
import references
from cases import GROUPINGS, Target, ends_of, integers
from makers import Maker
from matrix import Cell

from gemmjit.arch import Arch
from gemmjit.config import Config
from gemmjit.constraints import violations
from gemmjit.dtypes import BF16, F16, F32
from gemmjit.errors import InvalidConfigError, InvalidDtypeError, InvalidProblemError
from gemmjit.kernels import Kernel, KernelSpec
from gemmjit.ops.toolkit import LaunchableKernel
from gemmjit.variant import Variant

TARGETS = tuple(
    map(Arch.parse, ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100f", "sm_103a",
                     "sm_110f", "sm_120f", "sm_121a"))
)  # fmt: skip

#: Values of each field of a config, more of those that rules let through, and some that none may.
FIELDS: dict[str, tuple[Any, ...]] = {
    "block_m": (32, 64, 64, 96, 128, 128, 160, 224, 256, 0, 16, 48, -64, 64.0),
    "block_n": (32, 64, 64, 128, 128, 192, 256, 0, 80, True),
    "block_k": (8, 16, 16, 32, 32, 64, 64, 64, 128, 0, 24, "64"),
    "min_blocks_per_sm": (1, 1, 1, 1, 2, 2, 3, 4, 0, 33),
    "num_stages": (2, 2, 3, 3, 4, 5, 6, 8, 12, 1, 0, 13),
    "pad": (0, 4, 8, 8, 16, 2, -8),
    "double_buffer_fragments": (False, True, 2),
    "swizzle": (0, 32, 64, 128, 128, 16, 256),
    "pingpong": (False, True, True, None),
    "store_boxes": (1, 1, 2, 3, 4, 0, 5),
    "raster_m": (1, 2, 8, 64, 0, 65),
    "b_evict_first": (False, True),
    "order": ("listed", "claimed", "random"),
    "split_rows": (0, 0, 64, 1024, 4096, 2**31 - 1024, -64, 100),
    "specialize": ("", "", "", "nk", "mnk"),
    "schedule": ("", "", "persistent", "bounded", "compact", "random"),
}

DTYPES = (BF16, BF16, F16, F32)
SHAPES = (0, 0, 0, 0, 7, 24, 64, 2688, 2**31 - 1, 2**31, -1)


def draw_config(rng: random.Random, kernel: Kernel, target: Arch, *, sound: bool) -> Config:
    """Return a config: some field differs from a shipped one, or all of them are drawn.

    A sound one obeys every rule on the target, for the default variant of its schedule.
    """
    while True:
        start = rng.choice(kernel.shipped_configs())
        names = list(start.to_dict())
        count = rng.choice((1, 2, 3, len(names)))
        changes = {name: rng.choice(FIELDS[name]) for name in rng.sample(names, count)}
        config = replace(start, **changes)
        if not sound:
            return config
        schedule = "compact" if config.schedule == "compact" else "scan"
        variant = Variant(in_dtype=kernel.in_dtypes[0], schedule=schedule)
        if not violations(kernel, config, variant, target):
            return config


def draw_variant(rng: random.Random, kernel: Kernel) -> Variant:
    """Return a variant with some fields drawn, whatever problem could need it."""
    choices: dict[str, tuple[Any, ...]] = {
        "form": ("ragged_m", "ragged_k"),
        "in_dtype": DTYPES,
        "out_dtype": DTYPES,
        "schedule": ("list", "scan", "compact"),
        "epilogue": ("store", "accumulate"),
        "shape_n": SHAPES,
        "shape_k": SHAPES,
    }
    flags = ("a_k_major", "b_k_major", "a_vector", "b_vector", "d_paired", "a_blocked",
             "b_blocked", "d_by_tma")  # fmt: skip
    choices |= dict.fromkeys(flags, (False, True))
    start: dict[str, Any] = {"in_dtype": kernel.in_dtypes[0]}
    if rng.random() < 0.3 and "ragged_k" in kernel.forms:
        start |= {"form": "ragged_k", "a_k_major": False}
    names = rng.sample(sorted(choices), rng.choice((0, 1, 2, 3, 6, len(choices))))
    return Variant(**{**start, **{name: rng.choice(choices[name]) for name in names}})


def draw_spec(rng: random.Random, kernel: Kernel) -> KernelSpec:
    """Return a kernel; half of them are sound."""
    targets = [t for t in TARGETS if _could_run(kernel, t)] if rng.random() < 0.8 else TARGETS
    target = rng.choice(targets)
    sound = _could_run(kernel, target) and rng.random() < 0.7
    config = draw_config(rng, kernel, target, sound=sound)
    variant = draw_variant(rng, kernel)
    if sound and rng.random() < 0.7:
        while violations(kernel, config, variant, target):
            variant = draw_variant(rng, kernel)
    return KernelSpec(kernel, config, variant, target)


def _could_run(kernel: Kernel, target: Arch) -> bool:
    return not violations(
        kernel, kernel.default_config, Variant(in_dtype=kernel.in_dtypes[0]), target
    )


@dataclass(frozen=True)
class Call:
    """One tiny call of the operator with a tile, on an architecture.

    Attributes
    ----------
    cell : Cell
    target : Arch
    sizes : tuple of int
    n, k, tail : int
    """

    cell: Cell
    target: Arch
    sizes: tuple[int, ...]
    n: int
    k: int
    tail: int

    def run(self, maker: Maker) -> None:
        """Make the call and compare the result, and everything around it, exactly."""
        target = Target(maker, self.cell.offs, self.cell.config)
        matrix._run(target, self.cell, self.sizes, self.n, self.k, self.tail)


#: Rows per group of the calls: small, so that one takes the emulator a second at most.
TINY = {
    **{name: GROUPINGS[name] for name in ("odd", "first_empty", "inner_and_last_empty")},
    "one": (3,),
    "empty": (0, 0),
    "over_a_tile": (1, 0, 67),
}
EXTENTS = ((40, 72), (72, 40), (8, 8), (136, 64), (33, 31), (1, 65), (65, 1), (24, 130))


def draw_call(rng: random.Random, kernel: Kernel) -> Call:
    """Return a call with a tile that the rules let through for plain operands."""
    target = rng.choice([t for t in TARGETS if _could_run(kernel, t)])
    config = draw_config(rng, kernel, target, sound=True)
    axes = matrix._axes(kernel)
    drawn = {name: rng.choice(values) for name, values in axes.items()}
    if drawn["accumulate"]:
        drawn["out_dtype"] = "float32"
    del drawn["schedule"]
    cell = matrix._cell(kernel, config, {**drawn, "schedule": config.schedule})
    sizes = rng.choice(list(TINY.values()))
    extents = EXTENTS[:4] if kernel.loads_by_tma else EXTENTS
    n, k = rng.choice(extents)
    tail = rng.choice((1, 3) if not sum(sizes) else (0, 3))
    return Call(cell, target, sizes, n, k, tail)


#: Layouts of a result that a compiled kernel is launched on.
_OUT = (makers.PLAIN, makers.PADDED, makers.ODD_PAD, makers.SWAPPED, makers.MISALIGNED)


def launch(rng: random.Random, kernel: LaunchableKernel, maker: Maker) -> bool:
    """Launch a compiled kernel on arrays that may or may not suit it.

    The result, and everything around it, must be right if it is not refused; return whether it
    was launched.
    """
    variant = kernel.spec.variant
    n, k = rng.choice(((64, 72), (128, 64), (40, 72)) if rng.random() < 0.7 else EXTENTS)
    n = variant.shape_n if 0 < variant.shape_n < 128 and rng.random() < 0.8 else n
    k = variant.shape_k if 0 < variant.shape_k < 128 and rng.random() < 0.8 else k
    sizes = rng.choice(list(TINY.values()))
    used, rows = sum(sizes), sum(sizes) + rng.choice((0, 3))
    suiting = (
        makers.PLAIN if variant.a_k_major else makers.SWAPPED,
        makers.SWAPPED if variant.b_k_major else makers.PLAIN,
    )
    layouts = [one if rng.random() < 0.8 else rng.choice(makers.LAYOUTS) for one in suiting]
    out_layout = rng.choice((None, None, makers.PLAIN, *_OUT))
    accumulate = variant.epilogue == "accumulate"
    offs = "list" if variant.schedule == "list" else rng.choice(("int32", "int64"))
    target = Target(maker, offs)
    if variant.form == "ragged_m":
        shapes, shape = ((rows, k), (len(sizes), k, n)), (rows, n)
    else:
        shapes, shape = ((k, rows), (rows, n)), (len(sizes), k, n)
    a, b = (
        target.place(integers(s, seed), layout, variant.in_dtype.name)
        for seed, (s, layout) in enumerate(zip(shapes, layouts, strict=True), 1)
    )
    start = integers(shape, seed=5)
    out = None
    if accumulate or out_layout is not None:
        out = target.out(start, out_layout or makers.PLAIN, variant.out_dtype.name)
    try:
        got = kernel.launch(
            a.array, b.array, offs=target.offsets(ends_of(sizes)), out=out and out.array
        )
    except (InvalidConfigError, InvalidProblemError, InvalidDtypeError):
        return False
    reference = references.fprop if variant.form == "ragged_m" else references.wgrad
    want = reference(a.read(), b.read(), ends_of(sizes))
    if accumulate:
        want = want + start
    elif out is not None and variant.form == "ragged_m":
        want[used:] = start[used:]
    references.assert_same(
        target.read(got) if out is None else out.read(),
        references.rounded(want, variant.out_dtype.name),
    )
    if out is not None:
        out.assert_only_elements_changed()
    a.assert_unchanged()
    b.assert_unchanged()
    return True


def specs(kernel: Kernel, count: int, seed: int = 0) -> Iterator[KernelSpec]:
    """Yield points of one kernel."""
    rng = random.Random(f"{kernel.name} {seed}")
    for _ in range(count):
        yield draw_spec(rng, kernel)


def calls(kernel: Kernel, count: int, seed: int = 0) -> Iterator[Call]:
    """Yield calls of one kernel."""
    rng = random.Random(f"{kernel.name} {seed} calls")
    for _ in range(count):
        yield draw_call(rng, kernel)
