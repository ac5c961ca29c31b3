"""What Nsight Compute counted on the rungs, where it was allowed to count."""

from __future__ import annotations

from statistics import median
from typing import Any

from figures.records import Record, Results, markdown, missing

__all__ = ["by_workload", "table"]

_FIELDS = (
    ("issue_rate", "issue rate", "{:.2f}"),
    ("warps_per_scheduler", "warps/scheduler", "{:.2f}"),
    ("cycles_per_issue", "cycles/issue", "{:.2f}"),
    ("tensor_pipe_pct", "tensor pipe %", "{:.0f}"),
    ("dram_throughput_pct", "DRAM %", "{:.0f}"),
    ("instructions", "instructions, M", "{:.1f}"),
)


def table(results: Results) -> str:
    """Return issue rate, tensor-pipe use, DRAM throughput and leading stalls of each kernel."""
    record = results.get("counters")
    if record is None:
        return missing("counters") + " `gemmjit bench profile --print-ncu` prints the command."
    names = _rungs_by_entry(results.get("ladder"))
    by_kernel: dict[str, list[Record]] = {}
    counted = [
        one for one in record["launches"] if any(one.get(f) is not None for f, *_ in _FIELDS)
    ]
    for launch in counted:
        by_kernel.setdefault(str(launch["kernel"]).split("(")[0], []).append(launch)
    rows = []
    for kernel, launches in by_kernel.items():
        cells = [_cell(launches, field, form) for field, _, form in _FIELDS]
        stalls = ", ".join(f"{name} {value:.1f}" for name, value in launches[-1]["stalls"].items())
        rows.append([names.get(kernel, f"`{kernel}`"), *cells, stalls])
    head = ("kernel", *(title for _, title, _ in _FIELDS), "leading stalls, cycles an instruction")
    workload = record.get("workload", "the workload is not recorded")
    return f"Workload: {workload}.\n\n{markdown(head, rows)}"


def by_workload(results: Results) -> str:
    """Return the same of the default choice, product by product."""
    record = results.get("k3_counters")
    if record is None:
        return missing("k3_counters") + " `gemmjit bench profile --print-ncu` prints the command."
    rows = []
    for launch in record["launches"]:
        cells = [_cell([launch], field, form) for field, _, form in _FIELDS]
        stalls = ", ".join(f"{name} {value:.1f}" for name, value in launch["stalls"].items())
        rows.append([launch["workload"], *cells, stalls])
    head = ("product", *(title for _, title, _ in _FIELDS), "leading stalls, cycles an instruction")
    return markdown(head, rows)


def _cell(launches: list[Record], field: str, form: str) -> str:
    values = [launch[field] for launch in launches if launch.get(field) is not None]
    if not values:
        return "-"
    value: Any = median(values)
    return form.format(value / 1e6 if field == "instructions" else value)


def _rungs_by_entry(record: Record | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for state in record["states"].values() if record else ():
        for name, row in state["rows"].items():
            entry = (row["details"] or {}).get("entry")
            if entry:
                found.setdefault(entry, name.split(": ", 1)[1])
    return found
