"""Missing fences, waits and barriers in shared memory; races as errors and as warnings."""

from __future__ import annotations

import numpy as np
import pytest

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.faults import BarrierFault, RaceError

POLICIES = ["eager", "lazy", "random"]
HEAD = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p0)
{
.shared .align 128 .b8 s[512]; .shared .align 8 .b8 bar[8];
.reg .b64 %o, %x; .reg .b32 %i, %a, %b, %v, %w; .reg .pred %p, %q;
ld.param.u64 %o, [p0]; mov.u32 %i, %tid.x; mov.u32 %a, s; mov.u32 %b, bar;
mad.lo.u32 %w, %i, 4, %a; setp.ne.u32 %p, %i, 0;
"""
WRITE = "st.shared.u32 [%w], %i;"
STORE = """
@%p bra OUT; cp.async.bulk.global.shared::cta.bulk_group [%o], [%a], 512;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; OUT:
"""


def run(body, policy="eager", seed=0, **options):
    """Run 128 threads; the 128 words at p0, and the report."""
    memory = DeviceMemory()
    out = memory.allocate(512, np.arange(128, dtype="u4") + 1000)
    launch = KernelLaunch(
        ptx=HEAD + body + "\n}\n", entry="k", grid=(1,), block=(128,), args=[out], memory=memory
    )
    report = emulate([launch], policy=policy, seed=seed, **options)
    return memory.read(out, "u4", 128), report


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "order",
    [
        "fence.proxy.async; bar.sync 0;",
        "fence.proxy.async.shared::cta; bar.sync 0;",
        "bar.sync 0; fence.proxy.async;",
        "fence.proxy.async; barrier.cluster.arrive; barrier.cluster.wait;",
    ],
)
def test_a_fence_and_a_barrier_order_a_bulk_store(policy, order):
    got, report = run(WRITE + order + STORE, policy)
    np.testing.assert_array_equal(got, np.arange(128))
    assert report.warnings == []


@pytest.mark.parametrize("policy", POLICIES)
def test_without_the_fence_or_the_barrier(policy):
    with pytest.raises(RaceError, match=r"fence\.proxy\.async is missing"):
        run(WRITE + "bar.sync 0;" + STORE, policy)
    with pytest.raises(RaceError, match=r"no barrier orders that|fence\.proxy\.async is missing"):
        run(WRITE + "fence.proxy.async;" + STORE, policy)
    # A fence of another space does not help.
    with pytest.raises(RaceError):
        run(WRITE + "fence.proxy.async.global; bar.sync 0;" + STORE, policy)


def test_order_through_an_mbarrier():
    init = "@!%p mbarrier.init.shared.b64 [%b], 128; bar.sync 0;"
    arrive = "mbarrier.arrive.shared.b64 %x, [%b];"
    wait = "W: mbarrier.try_wait.parity.shared.b64 %q, [%b], 0; @!%q bra W;"
    got, _ = run(init + WRITE + "fence.proxy.async;" + arrive + wait + STORE)
    np.testing.assert_array_equal(got, np.arange(128))
    with pytest.raises(RaceError):
        run(init + WRITE + arrive + wait + STORE)


def test_races_as_warnings():
    got, report = run(WRITE + "bar.sync 0;" + STORE, races="warn")
    np.testing.assert_array_equal(got, np.arange(128))
    assert len(report.warnings) == 1
    assert "fence.proxy.async is missing" in report.warnings[0]


LOAD = """
@!%p mbarrier.init.shared.b64 [%b], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
@%p bra LOADED; mbarrier.arrive.expect_tx.shared.b64 _, [%b], 512;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%a], [%o], 512, [%b];
LOADED:
"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 %q, [%b], 0; @!%q bra W;"
READ = """
ld.shared.u32 %v, [%w]; mad.wide.u32 %o, %i, 4, %o; sub.u32 %v, %v, 1000;
st.global.u32 [%o], %v;
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_reading_what_a_copy_still_writes(policy):
    got, _ = run(LOAD + WAIT + "bar.sync 0;" + READ, policy)
    np.testing.assert_array_equal(got, np.arange(128))
    if policy == "lazy":
        with pytest.raises(RaceError, match="while an asynchronous operation writes it"):
            run(LOAD + READ, policy)
        with pytest.raises(RaceError, match="while an asynchronous operation writes it"):
            run(LOAD + WRITE, policy)


def test_writing_what_a_store_still_reads():
    early = STORE.replace("cp.async.bulk.wait_group 0;", "")
    body = WRITE + "fence.proxy.async; bar.sync 0;" + early + "st.shared.u32 [%w], 7;"
    with pytest.raises(RaceError, match="while an asynchronous operation reads it"):
        run(body, "lazy")
    late = body.replace("st.shared.u32 [%w], 7;", "")
    assert "exits without having waited" in run(late, "lazy")[1].warnings[0]
    with pytest.raises(RaceError, match="exits without having waited"):
        run(late, "eager", unwaited_stores="error")


def test_a_block_that_exits_before_its_copy():
    with pytest.raises((RaceError, BarrierFault), match=r"exits"):
        run(LOAD, "lazy")


def test_a_store_onto_a_barrier():
    with pytest.raises(BarrierFault, match="destroys"):
        run("@!%p mbarrier.init.shared.b64 [%b], 1; bar.sync 0; st.shared.u32 [%b+4], 1;" + STORE)


def test_a_barrier_that_the_asynchronous_proxy_may_not_see():
    body = LOAD + WAIT + "bar.sync 0;" + READ
    bare = body.replace("fence.mbarrier_init.release.cluster;", "")
    assert bare != body
    assert run(body)[1].warnings == []
    got, report = run(bare)
    np.testing.assert_array_equal(got, np.arange(128))
    assert len(report.warnings) == 1
    assert "whose init no fence.mbarrier_init" in report.warnings[0]
    with pytest.raises(RaceError, match=r"fence\.mbarrier_init or fence\.proxy\.async"):
        run(bare, unfenced_inits="error")
    # The other fence will do, on either side of the barrier; one of another block's space will not.
    for place in ("fence.proxy.async; bar.sync 0;", "bar.sync 0; fence.proxy.async.shared::cta;"):
        run(bare.replace("bar.sync 0;", place, 1), unfenced_inits="error")
    with pytest.raises(RaceError):
        run(bare.replace("bar.sync 0;", "fence.proxy.async.global; bar.sync 0;", 1),
            unfenced_inits="error")  # fmt: skip
