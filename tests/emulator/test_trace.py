"""The timeline: warps, waits, copies, products and phases, and the file that Perfetto opens."""

from __future__ import annotations

import itertools
import json

import ml_dtypes
import numpy as np
import pytest

import gemmjit
from gemmjit.emulator import DeviceMemory, KernelLaunch, chrome_trace, emulate, emulating
from gemmjit.emulator.faults import Deadlock
from gemmjit.emulator.trace import Span, Trace

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

NEVER = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k()
{
.shared .align 8 .b64 b; .reg .b32 %a; .reg .pred %p;
mov.u32 %a, b; mbarrier.init.shared::cta.b64 [%a], 1;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p, [%a], 0;
@!%p bra WAIT;
ret;
}
"""

TILES = {
    "k1": gemmjit.Sm80MmaConfig(block_m=32, block_n=64, num_stages=3),
    "k2": gemmjit.Sm90TmaMmaConfig(block_m=32, block_n=64, num_stages=2),
    "k3": gemmjit.Sm90WgmmaConfig(block_m=64, block_n=64, num_stages=2),
}


def launch_of(memory, blocks):
    source = memory.allocate(1024, np.zeros(1024, "u1"))
    return KernelLaunch(
        ptx=KERNEL, entry="k", grid=(blocks,), block=(64,), args=[source], memory=memory
    )


def of_kind(trace, kind):
    return [span for span in trace.spans if span.kind == kind]


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_warps_waits_and_copies(policy):
    memory, trace = DeviceMemory(), Trace()
    report = emulate([launch_of(memory, 2)], policy=policy, trace=trace)
    runs = of_kind(trace, "run")
    assert sum(span.end - span.start for span in runs) == report.warp_instructions
    assert {(s.block, s.track) for s in runs} == {
        (f"block ({b}, 0, 0)", f"warp {w}") for b in (0, 1) for w in (0, 1)
    }
    assert {span.kernel for span in trace.spans} == {"k"}
    assert "kernel.cu:12" in {span.name for span in runs}
    copies = of_kind(trace, "copy")
    assert {span.name for span in copies} == {"cp.async kernel.cu:11"}
    assert all(span.start < span.end for span in copies)
    waits = of_kind(trace, "wait")
    assert {span.name for span in waits} <= {"bar.sync 0"}
    assert bool(waits) is (policy == "random")  # in order, the warps arrive together
    for key in {(s.block, s.track) for s in runs}:
        mine = sorted((s.start, s.end) for s in runs + waits if (s.block, s.track) == key)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(mine))


def test_runs_follow_each_other():
    memory, trace = DeviceMemory(), Trace()
    emulate([launch_of(memory, 1)], trace=trace)
    first = max(span.end for span in trace.spans)
    count = len(trace.spans)
    emulate([launch_of(memory, 1)], trace=trace)
    assert all(span.start > first for span in trace.spans[count:])
    assert len(trace.spans) == 2 * count


def test_there_is_a_limit():
    memory, trace = DeviceMemory(), Trace(max_spans=3)
    emulate([launch_of(memory, 1)], trace=trace)
    whole = Trace()
    emulate([launch_of(memory, 1)], trace=whole)
    assert len(trace.spans) == 3
    assert len(whole.spans) == trace.dropped + 3


def test_a_deadlock_leaves_the_wait_in_the_timeline():
    trace = Trace()
    launch = KernelLaunch(ptx=NEVER, entry="k", grid=(1,), block=(32,))
    with pytest.raises(Deadlock):
        emulate([launch], trace=trace)
    (wait,) = of_kind(trace, "wait")[-1:]
    assert wait.name == "mbarrier 0x400 phase 0"
    assert wait.details["complete"] is False


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("policy", ["eager", "random"])
def test_a_kernel_shows_its_pipeline(name, policy):
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (40, 256)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-3, 4, (2, 256, 64)).astype(ml_dtypes.bfloat16)
    trace = Trace()
    with emulating(policy, seed=1, trace=trace) as reports:
        gemmjit.grouped_mm(a, b, offs=[30, 40], config=TILES[name])
    products = of_kind(trace, "mma")
    counts = reports[0].instructions
    if name == "k3":
        number = sum(n for opcode, n in counts.items() if opcode.startswith("wgmma.mma_async"))
        assert len(products) == number / 4  # of the four warps of a warpgroup
        assert {span.track for span in products} <= {"warpgroup 1", "warpgroup 2"}
    else:
        number = sum(n for opcode, n in counts.items() if opcode.startswith("mma.sync"))
        assert sum(int(span.name.split()[0]) for span in products) == number
    copies = of_kind(trace, "copy")
    assert copies
    if name == "k1":
        return
    loads = [span for span in copies if span.track == "bulk load"]
    assert len(loads) == sum(
        n for opcode, n in counts.items() if opcode.startswith("cp.async.bulk.tensor")
        and ".shared::cluster.global" in opcode
    )  # fmt: skip
    phases = of_kind(trace, "phase")
    assert {span.name for span in phases} >= {"phase 0", "phase 1"}
    for key in {(s.block, s.track) for s in phases}:
        mine = [s for s in phases if (s.block, s.track) == key]
        assert all(a.end == b.start for a, b in itertools.pairwise(mine))
    if policy == "random":
        assert any(p.start < c.end and c.start < p.end for p in products for c in loads)
        assert any(span.name.startswith("mbarrier 0x") for span in of_kind(trace, "wait"))


def test_the_file_has_one_thread_a_track_and_slices_that_nest(tmp_path):
    memory, trace = DeviceMemory(), Trace()
    emulate([launch_of(memory, 2)], policy="lazy", trace=trace)
    trace.write(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(named.values()) == {"block (0, 0, 0) of k", "block (1, 0, 0) of k"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    assert {"warp 0", "warp 1", "cp.async"} <= set(threads.values())
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(trace.spans)
    for key in threads:
        mine = sorted((e["ts"], e["dur"]) for e in slices if (e["pid"], e["tid"]) == key)
        assert mine
        assert all(a[0] + a[1] <= b[0] for a, b in itertools.pairwise(mine))
    assert document["otherData"]["spans dropped"] == 0


def test_overlapping_spans_get_rows_of_their_own():
    def span(start, end):
        return Span("copy", "k", "block (0, 0, 0)", "bulk load", "load", start, end)

    spans = [span(0, 10), span(2, 5), span(4, 6), span(5, 9), span(10, 12)]
    rows = chrome_trace.rows(spans)
    assert len(rows) == 3
    assert sorted(map(id, itertools.chain(*rows))) == sorted(map(id, spans))
    for row in rows:
        assert all(a.end <= b.start for a, b in itertools.pairwise(row))
