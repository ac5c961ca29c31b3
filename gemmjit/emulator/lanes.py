"""Sets of lanes: which threads of which resident blocks an instruction executes for.

A grid holds its threads as an array `[blocks, threads]` (threads padded to whole warps). Register
rows have that shape, so a set that is a rectangle (all blocks, one warpgroup; one thread of every
block) is a plain NumPy view and costs no gather. Sets are interned: everything that was prepared
for one (bound instructions) is found again when the same threads meet at the same instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["WARP", "LaneSet", "LaneSpace"]

WARP = 32
_CACHE_LIMIT = 8192
Array = npt.NDArray[Any]


class LaneSet:
    """An immutable set of lanes; make one through :class:`LaneSpace`.

    Attributes
    ----------
    mask : bool array [blocks, threads]
        Members.
    rect : tuple of two slices
        Smallest regular sub-grid that holds all members.
    inner : bool array or None
        Members within `rect`; None when `rect` holds nothing else.
    lanes : int64 array [count]
        Flat indices of the members, ascending.
    warps : int
        Number of warps with a member.
    full_warps, full_groups : bool
        Whether every touched warp (warpgroup of 128) belongs to the set as a whole.
    segments : dict
        Instructions bound to this set by their first program counter.
    """

    __slots__ = (
        "count", "domain", "full_groups", "full_warps", "inner", "lanes", "mask", "rect",
        "segments", "space", "warp_ids", "warps",
    )  # fmt: skip

    def __init__(self, space: LaneSpace, mask: Array) -> None:
        self.space = space
        self.mask = mask
        self.lanes: Array = np.flatnonzero(mask)
        self.count = len(self.lanes)
        per_warp = mask.reshape(-1, WARP).sum(1)
        self.warp_ids: Array = np.flatnonzero(per_warp)
        self.warps = len(self.warp_ids)
        self.full_warps = bool((per_warp[self.warp_ids] == WARP).all())
        self.full_groups = False
        if self.full_warps and space.threads % 128 == 0:
            per_group = (per_warp != 0).reshape(-1, 4).sum(1)
            self.full_groups = bool(((per_group == 0) | (per_group == 4)).all())
        self.rect, self.inner = _rectangle(mask)
        self.segments: dict[int, Any] = {}
        self.domain: Any = None

    def get(self, row: Array) -> Array:
        """Values of the members: 2-D for a rectangle (a view), else 1-D."""
        return row[self.rect] if self.inner is None else row[self.rect][self.inner]

    def put(self, row: Array, values: Any) -> None:
        """Assign values of the shape that :meth:`get` gives, or broadcastable to it."""
        if self.inner is None:
            row[self.rect] = values
        else:
            row[self.rect][self.inner] = values

    def reader(self, row: Array) -> Callable[[], Array]:
        """:meth:`get` with the view prepared."""
        view = row[self.rect]
        if self.inner is None:
            return lambda: view
        inner = self.inner
        return lambda: view[inner]

    def space_zeros(self) -> Array:
        """Return a row of zeros, to take the shape that :meth:`get` gives from."""
        return np.broadcast_to(np.int8(0), self.mask.shape)

    def row_view(self, row: Array) -> Array:
        """Return the rectangle of a row: members, and others where :attr:`inner` says so."""
        return row[self.rect]

    def by_warp(self, row: Array) -> Array:
        """Values as `[warps, 32]`; the set must consist of whole warps."""
        return self.get(row).reshape(-1, WARP)

    def put_warps(self, row: Array, values: Array) -> None:
        """Inverse of :meth:`by_warp`."""
        if self.inner is None:
            view = row[self.rect]
            view[...] = values.reshape(view.shape)
        else:
            row[self.rect][self.inner] = values.reshape(-1)

    def where(self, predicate: Array, negated: bool) -> LaneSet | None:
        """Return the members whose predicate is true (or false); None when there are none."""
        chosen = predicate[self.rect]
        if negated:
            chosen = ~chosen if self.inner is None else ~chosen & self.inner
        elif self.inner is not None:
            chosen = chosen & self.inner
        count = int(np.count_nonzero(chosen))
        if count == self.count:
            return self
        if count == 0:
            return None
        mask = np.zeros_like(self.mask)
        mask[self.rect] = chosen
        return self.space.intern(mask)

    def select(self, keep: Array) -> LaneSet | None:
        """Return the members for which `keep` (in the order of `lanes`) is true."""
        chosen = self.lanes[np.asarray(keep).reshape(-1)]
        if len(chosen) == self.count:
            return self
        return self.space.of_lanes(chosen) if len(chosen) else None

    def union(self, other: LaneSet) -> LaneSet:
        """Members of either set."""
        return self.space.intern(self.mask | other.mask)

    def minus(self, other: LaneSet) -> LaneSet | None:
        """Members that are not in `other`."""
        mask = self.mask & ~other.mask
        return self.space.intern(mask) if mask.any() else None

    def blocks(self) -> Array:
        """Return indices of the touched blocks (slots)."""
        return np.unique(self.lanes // self.space.threads)

    def of_block(self, block: int) -> LaneSet | None:
        """Return the members in one block."""
        mask = np.zeros_like(self.mask)
        mask[block] = self.mask[block]
        return self.space.intern(mask) if mask[block].any() else None


class LaneSpace:
    """All lanes of a grid's resident blocks, and the interned sets of them."""

    def __init__(self, blocks: int, threads: int) -> None:
        self.blocks = blocks
        self.threads = threads
        self.size = blocks * threads
        self._known: dict[bytes, LaneSet] = {}
        self.domain_of: Callable[[LaneSet], Any] | None = None
        self.on_forget: Callable[[], None] | None = None

    def intern(self, mask: Array) -> LaneSet:
        """Return the set with this mask `[blocks, threads]`, which must not change later."""
        key = mask.tobytes()
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _CACHE_LIMIT:
                self.forget()
            found = self._known[key] = LaneSet(self, mask)
            if self.domain_of is not None:
                found.domain = self.domain_of(found)
        return found

    def forget(self) -> None:
        """Forget all sets and what was bound to them.

        Data-dependent divergence can make any number of them. Sets in use stay valid, they are
        only no longer shared.
        """
        for lanes in self._known.values():
            lanes.segments.clear()
        self._known.clear()
        if self.on_forget is not None:
            self.on_forget()

    def of_lanes(self, lanes: Array) -> LaneSet:
        """Return the set of these flat lane indices."""
        mask = np.zeros((self.blocks, self.threads), np.bool_)
        mask.reshape(-1)[lanes] = True
        return self.intern(mask)

    def of_warp(self, warp: int, mask: Array) -> LaneSet | None:
        """Return the part of `mask` that lies in one warp."""
        part = np.zeros_like(mask)
        span = slice(warp * WARP, warp * WARP + WARP)
        part.reshape(-1)[span] = mask.reshape(-1)[span]
        return self.intern(part) if part.any() else None


def _rectangle(mask: Array) -> tuple[tuple[slice, slice], Array | None]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return (slice(0, 0), slice(0, 0)), None
    rect = (_span(rows), _span(columns))
    inner = mask[rect]
    return rect, None if inner.all() else inner.copy()


def _span(indices: Array) -> slice:
    """Return the tightest slice over ascending indices; strided when they are equally spaced."""
    first, last = int(indices[0]), int(indices[-1])
    step = int(indices[1]) - first if len(indices) > 1 else 1
    if step > 1 and not (np.diff(indices) == step).all():
        step = 1
    return slice(first, last + 1, step)
