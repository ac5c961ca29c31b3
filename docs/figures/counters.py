"""What Nsight Compute counted on the rungs, and on k3 product by product."""

from __future__ import annotations

from statistics import median
from typing import Any

from figures.records import FILES, Record, Results, markdown, missing, origin

__all__ = ["by_workload", "table"]

_FIELDS = (
    ("issue_rate", "issue rate", "{:.2f}"),
    ("warps_per_scheduler", "warps/scheduler", "{:.2f}"),
    ("cycles_per_issue", "cycles/issue", "{:.2f}"),
    ("tensor_pipe_pct", "tensor pipe %", "{:.0f}"),
    ("dram_throughput_pct", "DRAM %", "{:.0f}"),
    ("instructions", "instructions, M", "{:.1f}"),
)

#: Of one product: field, title, how it is shown.
_PRODUCT_FIELDS = (
    ("duration_us", "us", "{:.1f}"),
    ("sm_clock_mhz", "MHz", "{:.0f}"),
    ("tensor_pipe_pct", "tensor pipe %", "{:.0f}"),
    ("dram_throughput_pct", "DRAM %", "{:.0f}"),
    ("l2_throughput_pct", "L2 %", "{:.0f}"),
)
_STALLS = 3


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
        cells = [_cell(launches, *field) for field in _FIELDS]
        stalls = ", ".join(f"{name} {value:.1f}" for name, value in launches[-1]["stalls"].items())
        rows.append([names.get(kernel, f"`{kernel}`"), *cells, stalls])
    head = ("kernel", *(title for _, title, _ in _FIELDS), "leading stalls, cycles an instruction")
    workload = record.get("workload", "the workload is not recorded")
    return f"Workload: {workload}.\n\n{markdown(head, rows)}"


def by_workload(results: Results) -> str:
    """Return what was counted of the default choice: a table for each form, a line for each case.

    Where a call has several launches, each has a line with its kernel.
    """
    record = results.get("k3_counters")
    if record is None:
        return missing("k3_counters") + " `gemmjit bench profile --print-ncu` prints the command."
    forms: dict[str, list[list[str]]] = {}
    seen = [launch["workload"] for launch in record["launches"]]
    for launch in record["launches"]:
        case, _, form = launch["workload"].rpartition(" ")
        if seen.count(launch["workload"]) > 1:
            case += f" (`{launch['kernel']}`)"
        cells = [_cell([launch], *field) for field in _PRODUCT_FIELDS]
        stalls = list(launch["stalls"].items())[:_STALLS]
        told = ", ".join(f"{name} {value:.1f}" for name, value in stalls)
        forms.setdefault(form, []).append([case, *cells, told])
    titles = [title for _, title, _ in _PRODUCT_FIELDS]
    parts = [origin(record, (), FILES["k3_counters"][0])]
    for form, rows in forms.items():
        head = (form, *titles, "leading stalls, cycles an instruction")
        parts.append(markdown(head, rows))
    if record.get("skipped"):
        parts.append(f"Not profiled, the time was over: {', '.join(record['skipped'])}.")
    return "\n\n".join(parts)


def _cell(launches: list[Record], field: str, _: str, form: str) -> str:
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
