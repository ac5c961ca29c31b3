"""The timeline: valid trace events, one row a warp, waits and copies among them."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.trace import Trace

KERNEL = """.version 8.7
.target sm_90a
.address_size 64
.file 1 "place/kernel.cu"
.visible .entry k(.param .u64 p0)
{
.shared .align 16 .b8 s[1024]; .reg .b64 %o; .reg .b32 %i, %a; .reg .pred %p;
ld.param.u64 %o, [p0]; mov.u32 %i, %tid.x; mad.wide.u32 %o, %i, 16, %o;
mov.u32 %a, s; mad.lo.u32 %a, %i, 16, %a;
.loc 1 11 1
cp.async.cg.shared.global [%a], [%o], 16; cp.async.wait_all;
setp.lt.u32 %p, %i, 32; @%p bra NEXT;
.loc 1 12 1
mul.lo.u32 %i, %i, 3; mul.lo.u32 %i, %i, 3; mul.lo.u32 %i, %i, 3;
NEXT:
.loc 1 13 1
bar.sync 0;
ret;
}
"""


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_timeline(policy, tmp_path):
    memory = DeviceMemory()
    source = memory.allocate(1024, np.zeros(1024, "u1"))
    trace = Trace()
    launch = KernelLaunch(
        ptx=KERNEL, entry="k", grid=(2,), block=(64,), args=[source], memory=memory
    )
    report = emulate([launch], policy=policy, trace=trace)
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"k block (0, 0, 0)", "k block (1, 0, 0)"}
    segments = [e for e in events if e.get("cat") == "warp"]
    assert sum(e["dur"] for e in segments) == report.warp_instructions
    assert {(e["pid"], e["tid"]) for e in segments} == {(p, w) for p in (1, 2) for w in (0, 1)}
    assert "kernel.cu:12" in {e["name"] for e in segments}
    if policy == "random":
        assert any(e["name"] == "wait: bar.sync" for e in events)
    for row in {(e["pid"], e["tid"]) for e in segments}:
        mine = sorted((e["ts"], e["dur"]) for e in segments if (e["pid"], e["tid"]) == row)
        assert all(a[0] + a[1] <= b[0] for a, b in itertools.pairwise(mine))
    if policy != "eager":
        copies = [e for e in events if e.get("cat") == "async"]
        assert {e["ph"] for e in copies} == {"b", "e"}
        assert {e["name"] for e in copies} == {"cp.async"}


def test_runs_follow_each_other():
    memory, trace = DeviceMemory(), Trace()
    source = memory.allocate(1024, np.zeros(1024, "u1"))
    launch = KernelLaunch(
        ptx=KERNEL, entry="k", grid=(1,), block=(64,), args=[source], memory=memory
    )
    emulate([launch], trace=trace)
    first = max(e["ts"] + e["dur"] for e in trace.events if "dur" in e)
    count = len(trace.events)
    emulate([launch], trace=trace)
    assert all(e["ts"] > first for e in trace.events[count:] if "ts" in e)
