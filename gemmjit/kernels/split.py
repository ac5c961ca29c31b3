"""Split K: how many pieces the rows of a call can make, and what memory they take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Split"]

_ACCUMULATOR_BYTES = 4
_COUNTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Split:
    """Groups with more than some rows, in pieces of so many; see ``core/split.cuh``.

    Attributes
    ----------
    rows : int
        Of a piece.
    total_rows : int
        Of all groups together; more than `rows`.
    tiles : int
        Tiles of a group.
    tile_elements : int
        Accumulators of a tile.
    sharers : int
        Warpgroups that share a tile; each adds its part by itself.
    """

    rows: int
    total_rows: int
    tiles: int
    tile_elements: int
    sharers: int

    @property
    def more_pieces(self) -> int:
        """The most pieces that there can be beyond one a group: ``ceil(r / s) - 1 <= r / s``."""
        return self.total_rows // self.rows

    @property
    def places(self) -> int:
        """Parts of tiles that there is room for.

        A group of ``r > s`` rows has ``ceil(r / s) <= floor(2 r / s)`` pieces; so twice the rows
        over those of a piece are enough for each tile, wherever groups begin.
        """
        return self.tiles * (2 * self.total_rows // self.rows)

    @property
    def partial_bytes(self) -> int:
        """Bytes that pieces leave for each other in."""
        return self.places * self.tile_elements * _ACCUMULATOR_BYTES

    @property
    def counter_bytes(self) -> int:
        """Bytes of the counters of the sums."""
        return self.places * self.sharers * _COUNTER_BYTES
