"""`clusterlaunchcontrol`: what is taken, by whom, and what a refusal means."""

from __future__ import annotations

import numpy as np
import pytest

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.faults import BarrierFault

POLICIES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(6))]


def program(cluster=1, *, query="v4", again=False):
    """Every cluster marks its own blocks, then takes others' until it is refused."""
    multicast = ".multicast::cluster::all" if cluster > 1 else ""
    leader = "setp.eq.u32 %l, %rank, 0;" if cluster > 1 else "setp.eq.u32 %l, 0, 0;"
    request = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    meet = "barrier.cluster.arrive; barrier.cluster.wait;" if cluster > 1 else "bar.sync 0;"
    first = {
        "v4": "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%x, %y, %z, _}, %r;",
        "each": "".join(
            f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{d}.b32.b128 %{d}, %r;"
            for d in "xyz"
        ),
    }[query]
    return f"""
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 result) .reqnctapercluster {cluster}, 1, 1
{{
.shared .align 16 .b8 answer[16]; .shared .align 8 .b64 bar;
.reg .b64 %to, %at; .reg .b128 %r; .reg .pred %p, %w, %l, %c;
.reg .b32 %a, %b, %rank, %x, %y, %z, %i, %gx, %gy, %parity;
ld.param.u64 %to, [result]; mov.u32 %a, answer; mov.u32 %b, bar;
mov.u32 %rank, %cluster_ctarank; mov.u32 %gx, %nctaid.x; mov.u32 %gy, %nctaid.y;
mov.u32 %x, %ctaid.x; mov.u32 %y, %ctaid.y; mov.u32 %z, %ctaid.z; sub.u32 %x, %x, %rank;
setp.eq.u32 %p, %tid.x, 0; mov.u32 %parity, 0; {leader} and.pred %l, %l, %p;
@%p mbarrier.init.shared::cta.b64 [%b], 1;
@%p fence.mbarrier_init.release.cluster;
{meet}
NEXT:
add.u32 %x, %x, %rank; mad.lo.u32 %i, %z, %gy, %y; mad.lo.u32 %i, %i, %gx, %x;
mad.wide.u32 %at, %i, 4, %to;
@%p red.global.add.u32 [%at], 1;
{meet}
@%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 16;
@%l {request}{multicast}.b128 [%a], [%b];
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %w, [%b], %parity;
@!%w bra WAIT;
xor.b32 %parity, %parity, 1;
ld.shared.b128 %r, [%a];
fence.proxy.async.shared::cta;
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %c, %r;
{"" if again else "@!%c bra DONE;"}
{first}
bra NEXT;
DONE:
{meet}
ret;
}}
"""


def run(ptx, grid, cluster=1, policy=("eager", 0), resident=None):
    memory = DeviceMemory()
    total = int(np.prod(grid))
    to = memory.allocate(4 * total, np.zeros(total, np.uint32))
    launch = KernelLaunch(
        ptx=ptx, entry="k", grid=grid, block=(32,), cluster=(cluster, 1, 1), args=[to],
        memory=memory,
    )  # fmt: skip
    report = emulate([launch], policy=policy[0], seed=policy[1], resident_blocks=resident)
    return memory.read(to, np.uint32, total), report


@pytest.mark.parametrize("query", ["v4", "each"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_every_block_is_done_once(cluster, policy, query):
    grid = (8, 3, 2)
    got, report = run(program(cluster, query=query), grid, cluster, policy, 2 * cluster)
    assert (got == 1).all()
    assert not report.warnings
    # Every cluster's work is followed by a request, which passes the warps of all its blocks.
    asked = sum(n for name, n in report.instructions.items() if "try_cancel" in name)
    assert asked == int(np.prod(grid))


def test_nothing_is_left_when_all_are_resident():
    got, report = run(program(), (4, 1, 1))
    assert (got == 1).all()
    assert sum(n for name, n in report.instructions.items() if "query" in name) == 4


def test_a_refused_request_has_no_block():
    with pytest.raises(BarrierFault, match="was refused"):
        run(program(again=True), (2, 1, 1))


def test_nobody_asks_again_after_a_refusal():
    ptx = program().replace("@!%c bra DONE;", "@!%c bra NEXT;")
    with pytest.raises(BarrierFault, match="has been refused before"):
        run(ptx, (2, 1, 1))
