"""`mma.sync` with `.kind` (PTX ISA 9.7.14.5.14), built by :mod:`~.instructions_mma`.

The numbers are in :mod:`gemmjit.emulator.mma_kinds`; here operands meet lanes.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import reject
from gemmjit.emulator.faults import ConvergenceFault
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.mma_kinds import KindPlan, ScaleSelector, kind_plan
from gemmjit.emulator.module import Instruction
from gemmjit.emulator.operands import Operands
from gemmjit.emulator.steps import LaneOp, Step

__all__ = ["build_kind"]

Array = npt.NDArray[Any]

_SCALE_TYPES = ("ue8m0", "ue4m3")


def _plan(operands: Operands, found: Instruction) -> KindPlan:
    """Read the opcode; the qualifiers come in either of two orders."""
    mods = [m for m in found.mods if m not in ("sync", "aligned")]
    if "aligned" not in found.mods or "row" not in mods or "col" not in mods:
        raise reject(found)
    kinds = [m.removeprefix("kind::") for m in mods if m.startswith("kind::")]
    sizes = [m for m in mods if m.startswith("scale_vec::")]
    shapes = [m for m in mods if re.fullmatch(r"m\d+n\d+k\d+", m)]
    others = {"row", "col", "block_scale", *sizes, *shapes, *(f"kind::{k}" for k in kinds)}
    types = [m for m in mods if m not in others]
    scaled = "block_scale" in mods
    scale_type = types.pop() if scaled and types and types[-1] in _SCALE_TYPES else ""
    if len(kinds) != 1 or len(shapes) != 1 or len(types) != 4 or len(sizes) > 1:
        raise reject(found)
    if scaled != (kinds[0] != "f8f6f4") or (sizes and not re.fullmatch(r".*::[124]X", sizes[0])):
        raise reject(found)
    return kind_plan(
        kinds[0], shapes[0], *types, scale_type=scale_type,
        scales=int(sizes[0][-2]) if sizes else 0, model=operands.grid.machine.numerics,
    )  # fmt: skip


class _Scales:
    """`scale-data, {byte-id, thread-id}` of A or B."""

    def __init__(
        self, operands: Operands, found: Instruction, which: str, position: int, plan: KindPlan
    ) -> None:
        data = operands.items(found.operands[position])
        ids = operands.items(found.operands[position + 1])
        if len(data) != 1 or len(ids) != 2:
            raise reject(found, f"expected scale-{which}-data, {{byte-id, thread-id}}")
        self.which = which
        self.plan = plan
        self.machine = operands.grid.machine
        self.where = operands.grid.program.describe(operands.pc)
        self.words = operands.source(data[0], "b32")
        self.byte, self.thread = (operands.source(item, "u16") for item in ids)

    def values(self, lanes: LaneSet) -> Array:
        """Return the scales of every warp of a set; see `KindPlan`."""
        words = np.ascontiguousarray(lanes.by_warp(self.words))
        pairs = np.stack([lanes.by_warp(row) for row in (self.byte, self.thread)], axis=-1)
        if (pairs != pairs[:, :1]).any():
            raise ConvergenceFault(f"mma.sync: byte-id-{self.which}, thread-id differ in a warp")
        chosen = pairs[:, 0]
        take = self.plan.scales_of_a if self.which == "a" else self.plan.scales_of_b
        out: Array | None = None
        for byte, thread in np.unique(chosen, axis=0).tolist():
            selector = ScaleSelector(byte, thread)
            self.plan.check(self.which, selector)
            warps = (chosen == (byte, thread)).all(axis=1)
            found = take(words[warps], selector)
            if out is None:
                out = np.empty((len(words), *found.shape[1:]), np.float32)
            out[warps] = found
            self._look_for_assumptions(words[warps], selector)
        assert out is not None
        return out

    def _look_for_assumptions(self, words: Array, selector: ScaleSelector) -> None:
        if (selector.byte, selector.thread) != (0, 0):
            self.machine.assumptions.rely(
                "scale_selector", f"{self.where}: {self.which}: {selector}"
            )
        octets = words.view(np.uint8).reshape(len(words), 8, 4, 4)
        octets = octets[..., selector.byte : selector.byte + self.plan.scales]
        period = 2 if self.which == "a" else 1
        if (octets != np.roll(octets, period, axis=2)).any():
            self.machine.assumptions.rely(
                "scale_lanes", f"{self.where}: lanes of a quad hold different scales of "
                f"{self.which}"
            )  # fmt: skip


def build_kind(operands: Operands, found: Instruction) -> Step:
    """`mma.sync.aligned.shape.row.col.kind{.block_scale{.scale_vec}}.d.a.b.c{.stype}`."""
    plan = _plan(operands, found)
    scaled = plan.scales > 0
    if len(found.operands) != (8 if scaled else 4):
        raise reject(found, f"{len(found.operands)} operands")
    d, a, b, c = (operands.group(x, "b32", writes=i == 0) for i, x in enumerate(found.operands[:4]))
    counts = tuple(len(group.rows) for group in (a, b, c, d))
    if counts != plan.registers:
        raise reject(found, f"expected {plan.registers} registers of A, B, C, D; got {counts}")
    scales = None
    if scaled:
        scales = (
            _Scales(operands, found, "a", 4, plan),
            _Scales(operands, found, "b", 6, plan),
        )
    machine, where = operands.grid.machine, operands.grid.program.describe(operands.pc)

    def run(lanes: LaneSet) -> None:
        held_a, held_b, held_c = (
            np.ascontiguousarray(group.read_warps(lanes)) for group in (a, b, c)
        )
        if plan.has_padding(held_a, held_b):
            machine.assumptions.rely("container_padding", f"{where}: unused bits are set")
        chosen = None if scales is None else (scales[0].values(lanes), scales[1].values(lanes))
        d.write_warps(lanes, plan(held_a, held_b, held_c, chosen))

    return LaneOp(run, sync=WARP)
