"""Instructions between the lanes of a warp: shfl, vote, match, redux, elect, activemask, bar.warp.

PTX ISA 9.7.9.6, 9.7.13.11 to 9.7.13.14.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmjit.emulator.dispatch import instruction, reject
from gemmjit.emulator.faults import ConvergenceFault
from gemmjit.emulator.lanes import WARP, LaneSet
from gemmjit.emulator.module import Instruction, Pair, Sink
from gemmjit.emulator.operands import Operands, type_of
from gemmjit.emulator.steps import LaneOp, Step

__all__: list[str] = []

Array = npt.NDArray[Any]
_LANES = np.arange(WARP)
_BITS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)


class _Warps:
    """The touched warps of a lane set, with all 32 positions of each."""

    def __init__(self, lanes: LaneSet) -> None:
        self.lanes = lanes
        self.whole = lanes.full_warps
        self.active = None if self.whole else lanes.mask.reshape(-1, WARP)[lanes.warp_ids]

    def read(self, row: Array) -> Array:
        """Values `[warps, 32]`; those of lanes that do not take part are arbitrary."""
        if self.whole:
            return self.lanes.by_warp(row)
        return np.ascontiguousarray(row).reshape(-1, WARP)[self.lanes.warp_ids]

    def write(self, row: Array, values: Array) -> None:
        """Give the lanes their values `[warps, 32]`."""
        if self.whole:
            self.lanes.put_warps(row, values)
            return
        assert self.active is not None
        self.lanes.put(row, values[self.active].reshape(self.lanes.get(row).shape))

    def present(self) -> Array:
        """Which lanes take part, `[warps, 32]`."""
        if self.active is not None:
            return self.active
        return np.ones((self.lanes.warps, WARP), np.bool_)


class _MaskedOp(LaneOp):
    """A `.sync` instruction with a member mask: it runs when all named lanes have arrived."""

    def __init__(self, run: Callable[[LaneSet], None], member_mask: Array, name: str) -> None:
        def checked(lanes: LaneSet) -> None:
            if not lanes.full_warps:
                own = np.broadcast_to(_BITS, lanes.mask.reshape(-1, WARP).shape)
                own = lanes.get(own.reshape(lanes.mask.shape))
                if ((lanes.get(member_mask) & own) == 0).any():
                    raise ConvergenceFault(
                        f"{name}: a thread executes it that its mask does not name"
                    )
            run(lanes)

        super().__init__(checked, WARP)
        self.member_mask = member_mask


@instruction("shfl.sync")
def _shfl(operands: Operands, found: Instruction) -> Step:
    mode = found.mods[1]
    if mode not in ("idx", "up", "down", "bfly") or found.mods[-1] != "b32":
        raise reject(found)
    target = found.operands[0]
    first = target.first if isinstance(target, Pair) else target
    out = operands.destination(first, "b32")
    in_range = operands.destination(target.second, "pred") if isinstance(target, Pair) else None
    a, b, c, mask = (operands.source(o, "b32") for o in found.operands[1:5])

    def run(lanes: LaneSet) -> None:
        warps = _Warps(lanes)
        values, index, control = warps.read(a), warps.read(b), warps.read(c)
        index = (index & np.uint32(31)).astype(np.int64)
        clamp = (control & np.uint32(31)).astype(np.int64)
        segment = (control >> np.uint32(8) & np.uint32(31)).astype(np.int64)
        top = (_LANES & segment) | (clamp & ~segment)
        low = _LANES & segment
        if mode == "up":
            source = _LANES - index
            valid = source >= top
        elif mode == "down":
            source = _LANES + index
            valid = source <= top
        elif mode == "bfly":
            source = _LANES ^ index
            valid = source <= top
        else:
            source = low | (index & ~segment)
            valid = source <= top
        source = np.where(valid, source, _LANES)
        present = warps.present()
        if not warps.whole and (~np.take_along_axis(present, source, 1) & present).any():
            raise ConvergenceFault(f"{found.name} reads from a thread that does not take part")
        warps.write(out, np.take_along_axis(values, source, 1))
        if in_range is not None:
            warps.write(in_range, np.broadcast_to(valid, values.shape))

    return _MaskedOp(run, mask, found.name)


@instruction("vote.sync")
def _vote(operands: Operands, found: Instruction) -> Step:
    mode = found.mods[1]
    predicate, negated = operands.predicate_reader(found.operands[1])
    mask = operands.source(found.operands[2], "b32")
    out = operands.destination(found.operands[0], "b32" if mode == "ballot" else "pred")

    def run(lanes: LaneSet) -> None:
        warps = _Warps(lanes)
        present = warps.present()
        member = (warps.read(mask)[:, :, None] & _BITS) != 0
        # Lanes with the same mask vote together; each lane counts the lanes that its mask names.
        truth = warps.read(predicate) ^ negated
        votes = truth[:, None, :] & member & present[:, None, :]
        voters = member & present[:, None, :]
        if mode == "ballot":
            answer: Array = (votes * _BITS).sum(2, dtype=np.uint32)
        elif mode == "any":
            answer = votes.any(2)
        elif mode == "all":
            answer = (votes == voters).all(2)
        elif mode == "uni":
            answer = (votes == voters).all(2) | ~votes.any(2)
        else:
            raise reject(found)
        warps.write(out, answer)

    return _MaskedOp(run, mask, found.name)


@instruction("match.any.sync", "match.all.sync")
def _match(operands: Operands, found: Instruction) -> Step:
    kind = found.mods[-1]
    target = found.operands[0]
    first = target.first if isinstance(target, Pair) else target
    out = operands.destination(first, "b32")
    flag = operands.destination(target.second, "pred") if isinstance(target, Pair) else None
    source = operands.source(found.operands[1], kind)
    mask = operands.source(found.operands[2], "b32")
    every = found.mods[0] == "all"

    def run(lanes: LaneSet) -> None:
        warps = _Warps(lanes)
        values = warps.read(source)
        member = ((warps.read(mask)[:, :, None] & _BITS) != 0) & warps.present()[:, None, :]
        same = (values[:, :, None] == values[:, None, :]) & member
        if every:
            agreed = (same == member).all(2)
            answer = np.where(agreed, (member * _BITS).sum(2, dtype=np.uint32), np.uint32(0))
            if flag is not None:
                warps.write(flag, agreed)
        else:
            answer = (same * _BITS).sum(2, dtype=np.uint32)
        warps.write(out, answer)

    return _MaskedOp(run, mask, found.name)


@instruction("redux.sync")
def _redux(operands: Operands, found: Instruction) -> Step:
    name, kind = found.mods[1], found.mods[-1]
    functions: dict[str, Any] = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
        "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip
    if name not in functions:
        raise reject(found)
    by_magnitude, keeps_nan = "abs" in found.mods, "NaN" in found.mods
    source = operands.source(found.operands[1], kind)
    mask = operands.source(found.operands[2], "b32")
    out = operands.destination(found.operands[0], kind)
    function = functions[name]
    if type_of(kind).kind == "f" and not keeps_nan:
        function = {"min": np.fmin, "max": np.fmax}[name]

    def run(lanes: LaneSet) -> None:
        warps = _Warps(lanes)
        values = warps.read(source)
        values = np.abs(values) if by_magnitude else values
        present, masks = warps.present(), warps.read(mask)
        answer = np.array(values, copy=True)
        for warp in range(len(values)):
            for chosen in np.unique(masks[warp][present[warp]]):
                members = present[warp] & ((chosen & _BITS) != 0)
                answer[warp, members] = function.reduce(values[warp][members])
        warps.write(out, answer)

    return _MaskedOp(run, mask, found.name)


@instruction("elect.sync")
def _elect(operands: Operands, found: Instruction) -> Step:
    target = found.operands[0]
    if not isinstance(target, Pair):
        raise reject(found)
    leader_out = (
        None if isinstance(target.first, Sink) else operands.destination(target.first, "b32")
    )
    flag = operands.destination(target.second, "pred")
    mask = operands.source(found.operands[1], "b32")

    def run(lanes: LaneSet) -> None:
        warps = _Warps(lanes)
        member = ((warps.read(mask)[:, :, None] & _BITS) != 0) & warps.present()[:, None, :]
        # Any one of the members may be elected; hardware takes the lowest.
        leader = member.argmax(2)
        warps.write(flag, leader == _LANES)
        if leader_out is not None:
            warps.write(leader_out, leader.astype(np.uint32))

    return _MaskedOp(run, mask, found.name)


@instruction("activemask")
def _activemask(operands: Operands, found: Instruction) -> Step:
    out = operands.destination(found.operands[0], "b32")

    def run(lanes: LaneSet) -> None:
        warps = _Warps(lanes)
        bits = (warps.present() * _BITS).sum(1, dtype=np.uint32)
        warps.write(out, np.repeat(bits[:, None], WARP, 1))

    return LaneOp(run)


@instruction("bar.warp.sync", "barrier.warp.sync")
def _bar_warp(operands: Operands, found: Instruction) -> Step:
    mask = operands.source(found.operands[0], "b32")
    grid = operands.grid

    def run(lanes: LaneSet) -> None:
        grid.machine.races.warp_barrier(grid, lanes)

    return _MaskedOp(run, mask, found.name)
