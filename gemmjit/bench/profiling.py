"""How to call the profiler, and what it wrote.

Nsight Compute replays a kernel many times and may fix its clocks, so that its times are no times
of a program: here it only counts. Clocks stay as they are (``--clock-control none``).
"""

from __future__ import annotations

import csv
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemmjit.errors import ManifestError

__all__ = ["METRICS", "SECTIONS", "counters", "ncu_command", "read_ncu"]

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_STALLS = (
    *("barrier", "branch_resolve", "dispatch_stall", "drain", "gmma", "imc_miss"),
    *("lg_throttle", "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle"),
    *("misc", "no_instruction", "not_selected", "selected", "short_scoreboard", "sleeping"),
    *("tex_throttle", "wait"),
)

#: Sections that hold every metric below. Asked for by section, because the names of some metrics
#: differ from chip to chip, and the profiler refuses a name that it does not know.
SECTIONS = (
    *("SpeedOfLight", "SchedulerStats", "WarpStateStats", "ComputeWorkloadAnalysis"),
    *("MemoryWorkloadAnalysis", "InstructionStats", "LaunchStats", "Occupancy"),
)

_BUSY = r"\.avg\.pct_of_peak_sustained_(active|elapsed)"

#: Field of the result -> patterns of metrics, and the factor to the field's unit from the metric's
#: base unit. The first pattern that matches anything counts, with its largest value.
METRICS: dict[str, tuple[tuple[str, ...], float]] = {
    "duration_us": ((r"gpu__time_duration\.sum",), 1e-3),
    "sm_clock_mhz": ((r"(smsp|sm|gpc)__cycles_elapsed\.avg\.per_second",), 1e-6),
    "issue_rate": ((r"smsp__issue_active\.avg\.per_cycle_active",), 1.0),
    "warps_per_scheduler": ((r"smsp__warps_active\.avg\.per_cycle_active",), 1.0),
    "eligible_warps": ((r"smsp__warps_eligible\.avg\.per_cycle_active",), 1.0),
    "cycles_per_issue": ((r"smsp__average_warp_latency_per_inst_issued\.ratio",), 1.0),
    "instructions": ((r"smsp?__inst_executed\.sum",), 1.0),
    "tensor_pipe_pct": (
        (
            r"sm__pipe_tensor\w*_cycles_active" + _BUSY,
            r"sm__inst_executed_pipe_tensor\w*" + _BUSY,
        ),
        1.0,
    ),
    "sm_throughput_pct": ((r"sm__throughput" + _BUSY,), 1.0),
    "l1tex_throughput_pct": ((r"l1tex__throughput" + _BUSY,), 1.0),
    "l2_throughput_pct": ((r"lts__throughput" + _BUSY,), 1.0),
    "dram_throughput_pct": ((r"(gpu__dram|dram)_?_throughput" + _BUSY,), 1.0),
    "dram_gb_per_s": ((r"dram__bytes\.sum\.per_second",), 1e-9),
    "registers": ((r"launch__registers_per_thread",), 1.0),
    "occupancy_pct": ((r"sm__warps_active" + _BUSY,), 1.0),
}

_LEADING_STALLS = 4


def ncu_command(program: Sequence[str], *, kernel: str = "gemmjit_") -> str:
    """Return the command line that profiles a program with Nsight Compute.

    It looks at what the program launches between ``cuProfilerStart`` and ``cuProfilerStop``.

    Parameters
    ----------
    program : sequence of str
        What to profile.
    kernel : str
        What the kernel's name begins with.
    """
    return shlex.join(
        [
            *("ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"),
            *("--kernel-name", f"regex:^{kernel}"),
            *("--profile-from-start", "off"),
            *(word for section in SECTIONS for word in ("--section", section)),
            *program,
        ]
    )


def read_ncu(text: str) -> list[dict[str, float | str]]:
    """Read what ``ncu --csv`` printed, with pages ``raw`` or ``details``.

    Parameters
    ----------
    text : str
        Its standard output; lines that belong to no table, which begin with no quote, are skipped.

    Returns
    -------
    list of dict
        For each profiled launch, in order, the value of every metric by its name; ``kernel``,
        ``grid`` and ``process`` as the profiler writes them. A metric that the profiler does not
        know is missing.

    Raises
    ------
    ManifestError
        If there is no table in the text, or several that differ in their columns, or a row that
        has not a cell for each column.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ManifestError(
            'ncu: expected a CSV table that begins with "ID"; found none. '
            "Run it with --csv, and give this command its standard output"
        )
    rows = list(_rows(lines, start))
    return list(_details(rows) if rows and "Metric Name" in rows[0] else _raw(rows))


def _rows(lines: Sequence[str], start: int) -> Iterator[dict[str, str]]:
    """Yield the rows of the table whose head is line `start`, by the names of their columns."""
    numbers = [i for i in range(start, len(lines)) if lines[i].startswith('"')]
    reader = csv.reader(lines[i] for i in numbers)
    try:
        head = next(reader)
        for row in reader:
            if row[0] == "ID":
                if row == head:
                    continue
                raise ManifestError(
                    "ncu: expected one table, or several with the same columns; got others. "
                    "Give this command the output of one run"
                )
            if len(row) != len(head):
                raise ManifestError(
                    f"ncu: line {numbers[reader.line_num - 1] + 1}: expected {len(head)} cells, "
                    f"one for each column; got {len(row)}. Give this command the output of one "
                    "run, as it was written"
                )
            yield dict(zip(head, row, strict=True))
    except csv.Error as error:
        raise ManifestError(
            f"ncu: line {numbers[reader.line_num - 1] + 1}: expected a row of CSV; got an error: "
            f"{error}. Give this command the output of one run, as it was written"
        ) from error


def counters(launch: Mapping[str, float | str]) -> dict[str, Any]:
    """Return the fields of `METRICS` of one launch, and its leading stalls.

    Parameters
    ----------
    launch : mapping
        As `read_ncu` returns it.

    Returns
    -------
    dict
        JSON-compatible; None where the profiler said nothing. ``stalls`` are warp cycles per issued
        instruction, the largest first, without ``selected``, which is no stall.
    """
    found: dict[str, Any] = {"kernel": launch.get("kernel")}
    for field, (patterns, factor) in METRICS.items():
        largest = next((v for p in patterns if (v := _largest(launch, p)) is not None), None)
        found[field] = None if largest is None else largest * factor
    stalls: dict[str, float] = {}
    for stall in _STALLS:
        value = launch.get(_STALL.format(stall))
        if isinstance(value, float) and stall != "selected":
            stalls[stall] = value
    leading = sorted(stalls.items(), key=lambda item: -item[1])[:_LEADING_STALLS]
    found["stalls"] = dict(leading)
    return found


def _largest(launch: Mapping[str, float | str], pattern: str) -> float | None:
    compiled = re.compile(pattern)
    values = [
        value
        for name, value in launch.items()
        if isinstance(value, float) and compiled.fullmatch(name)
    ]
    return max(values, default=None)


def _raw(rows: Sequence[Mapping[str, str]]) -> Iterator[dict[str, float | str]]:
    """Read a table with a column per metric; its first row holds the units."""
    for row in rows:
        if not row.get("ID"):
            continue
        launch = _head(row)
        for name, text in row.items():
            value = _number(text)
            if "__" in name and value is not None:
                launch[name] = value
        yield launch


def _details(rows: Sequence[Mapping[str, str]]) -> Iterator[dict[str, float | str]]:
    """Read a table with a row per metric."""
    launches: dict[str, dict[str, float | str]] = {}
    for row in rows:
        launch = launches.setdefault(row["ID"], _head(row))
        value = _number(row.get("Metric Value"))
        if value is not None:
            launch[row["Metric Name"]] = value
    yield from launches.values()


def _head(row: Mapping[str, str]) -> dict[str, float | str]:
    return {
        "kernel": row.get("Kernel Name", ""),
        "grid": row.get("Grid Size", ""),
        "process": row.get("Process ID", ""),
    }


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
