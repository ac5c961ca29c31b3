"""The report of a deadlock: who waits for what, with counts and source lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmjit.emulator import register_pool, tensor_memory

if TYPE_CHECKING:
    from gemmjit.emulator.machine import Machine

__all__ = ["deadlock_report"]

_MAX_LINES = 40


def deadlock_report(machine: Machine) -> str:
    """All waits of a machine on which nothing can run, one a line."""
    lines = []
    for grid in machine.grids:
        lines += grid.mbarriers.describe() + grid.bars.describe() + grid.cluster_barriers.describe()
        lines += grid.dependencies.describe() + register_pool.describe(grid)
        lines += tensor_memory.describe(grid)
        for pc, lanes in grid.scheduler.converging.items():
            lines.append(
                f"{lanes.count} threads wait for their warp at {grid.program.describe(pc)}"
            )
        for domain in grid.scheduler.domains:
            for pc, lanes in domain.ready.items():
                lines.append(f"{lanes.count} threads poll at {grid.program.describe(pc)}")
        if grid.waiting:
            resident = int((grid.cluster_ids >= 0).sum()) * grid.cluster_size
            lines.append(
                f"{len(grid.waiting) * grid.cluster_size} blocks of {grid.program.entry.name} are "
                f"not resident ({resident} are)"
            )
    if machine.engine.pending:
        kinds = [op.kind for op in machine.engine.pending]
        lines.append(f"pending: {', '.join(sorted(set(kinds)))}")
    shown = lines[:_MAX_LINES]
    if len(lines) > _MAX_LINES:
        shown.append(f"and {len(lines) - _MAX_LINES} more waits")
    return "nothing can run; waiting:\n  " + "\n  ".join(shown or ["(nobody: internal error)"])
