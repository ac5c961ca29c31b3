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


# Threads wait for a copy, read it, arrive on a second barrier, and the next copy follows.
FREE = """
.shared .align 8 .b8 free[8]; .reg .b32 %f; mov.u32 %f, free;
@!%p mbarrier.init.shared.b64 [%f], 128;
"""
FREED = """
mbarrier.arrive.shared.b64 %x, [%f];
F: mbarrier.try_wait.parity.shared.b64 %q, [%f], 0; @!%q bra F;
"""
AGAIN = """
@%p bra AGAIN; mbarrier.arrive.expect_tx.shared.b64 _, [%b], 512;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%a], [%o], 512, [%b];
AGAIN: V: mbarrier.try_wait.parity.shared.b64 %q, [%b], 1; @!%q bra V;
bar.sync 0;
"""
READ_STAGE = "ld.shared.u32 %v, [%w];"


def overwritten(between, read=READ_STAGE, again=AGAIN):
    return FREE + LOAD + WAIT + read + between + FREED + again + READ


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "between",
    [
        "fence.proxy.async;",
        "fence.proxy.async.shared::cta;",
        "bar.sync 0;",
        "bar.sync 1, 128;",
        "barrier.cluster.arrive; barrier.cluster.wait;",
        "@!%p fence.proxy.async; @%p fence.proxy.async;",
    ],
)
def test_a_fence_or_a_barrier_keeps_a_copy_behind_reads(policy, between):
    got, report = run(overwritten(between), policy, unfenced_reads="error")
    np.testing.assert_array_equal(got, np.arange(128))
    assert report.warnings == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("between", "warps"),
    [
        ("", "[0, 1, 2, 3]"),  # the mbarrier alone
        ("fence.proxy.async.global;", "[0, 1, 2, 3]"),
        ("membar.cta;", "[0, 1, 2, 3]"),
        ("@!%p fence.proxy.async;", "[0, 1, 2, 3]"),  # one lane of all
        ("setp.lt.u32 %q, %i, 64; @%q fence.proxy.async;", "[2, 3]"),
        ("setp.lt.u32 %q, %i, 64; @!%q bra HALF; bar.sync 1, 64; HALF:", "[2, 3]"),
        ("fence.proxy.async; setp.ge.u32 %q, %i, 96; @%q ld.shared.u32 %v, [%w];", "[3]"),
    ],
)
def test_a_copy_that_may_overtake_reads(policy, between, warps):
    with pytest.raises(RaceError) as caught:
        run(overwritten(between), policy, unfenced_reads="error")
    text = str(caught.value)
    assert f"which warps {warps} have read through the generic proxy" in text
    assert "cp.async.bulk.shared::cluster" in text


def test_a_copy_that_may_overtake_reads_as_a_warning():
    got, report = run(overwritten(""))
    np.testing.assert_array_equal(got, np.arange(128))
    assert len(report.warnings) == 1
    assert "every lane that has read needs a fence.proxy.async" in report.warnings[0]


def test_what_was_read_elsewhere_keeps_no_copy():
    beside = ".shared .align 16 .b8 t[512]; .reg .b32 %t; mov.u32 %t, t; ld.shared.u32 %v, [%t];"
    assert run(overwritten("", beside), unfenced_reads="error")[1].warnings == []
    # The last of the bytes that the copy writes, and wide reads.
    for read in ("ld.shared.u8 %v, [%a+511];", "ld.shared.v4.u32 {%v, %v, %v, %v}, [%a+496];"):
        with pytest.raises(RaceError, match=r"shared offset 0x[0-9a-f]*f0 of"):
            run(overwritten("", read), unfenced_reads="error")


def test_asynchronous_stores_overtake_reads_too():
    again = """
    @%p bra AGAIN; mbarrier.arrive.expect_tx.shared.b64 _, [%b], 4; mov.u32 %v, 1000;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%a], %v, [%b];
    AGAIN: V: mbarrier.try_wait.parity.shared.b64 %q, [%b], 1; @!%q bra V;
    bar.sync 0;
    """
    got, _ = run(overwritten("fence.proxy.async;", again=again), unfenced_reads="error")
    np.testing.assert_array_equal(got, np.arange(128))
    with pytest.raises(RaceError, match=r"warps \[0\] have read"):
        run(overwritten("", again=again), unfenced_reads="error")


def test_the_next_block_in_a_slot_has_read_nothing():
    memory = DeviceMemory()
    out = memory.allocate(512, np.arange(128, dtype="u4") + 1000)
    body = """
    @%p bra OUT;
    mbarrier.init.shared.b64 [%b], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [%b], 512;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%a], [%o], 512, [%b];
    W: mbarrier.try_wait.parity.shared.b64 %q, [%b], 0; @!%q bra W;
    ld.shared.u32 %v, [%a];
    OUT:
    """
    launch = KernelLaunch(
        ptx=HEAD + body + "\n}\n", entry="k", grid=(3,), block=(128,), args=[out], memory=memory
    )
    report = emulate([launch], resident_blocks=1, unfenced_reads="error")
    assert report.warnings == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("read", "found"),
    [
        ("@%q ld.shared.u32 %v, [%w];", True),  # what block 1 has read
        ("@%q ld.shared.u32 %v, [%w]; fence.proxy.async;", False),
        ("@%q ld.shared::cluster.u32 %v, [%r];", False),  # of another block: not followed
    ],
)
def test_multicast_overtakes_reads_of_its_receivers(policy, read, found):
    body = f"""
    .reg .b32 %rank, %r; .reg .b16 %both; .reg .pred %s, %t;
    mov.u32 %rank, %cluster_ctarank; setp.eq.u32 %q, %rank, 1; mov.b16 %both, 3;
    mapa.shared::cluster.u32 %r, %w, 0;
    @!%p mbarrier.init.shared.b64 [%b], 1; fence.mbarrier_init.release.cluster;
    @!%p mbarrier.arrive.expect_tx.shared.b64 _, [%b], 512;
    barrier.cluster.arrive; barrier.cluster.wait;
    {read}
    // Only a flag in global memory tells block 0 of the reads.
    membar.gl; @%q red.global.add.u32 [%o+4], 1; setp.eq.u32 %s, %rank, 0; not.pred %t, %p;
    and.pred %s, %s, %t; @!%s bra WAIT;
    POLL: ld.volatile.global.u32 %v, [%o+4]; setp.lt.u32 %t, %v, 1129; @%t bra POLL;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%a],
        [%o], 512, [%b], %both;
    WAIT:
    {WAIT}
    barrier.cluster.arrive; barrier.cluster.wait;
    """
    memory = DeviceMemory()
    out = memory.allocate(512, np.arange(128, dtype="u4") + 1000)
    launch = KernelLaunch(
        ptx=HEAD + body + "\n}\n", entry="k", grid=(2,), block=(128,), cluster=(2,), args=[out],
        memory=memory,
    )  # fmt: skip
    if found:
        with pytest.raises(RaceError, match=r"block \(1, 0, 0\), which warps \[0, 1, 2, 3\] have"):
            emulate([launch], policy=policy, unfenced_reads="error")
    else:
        assert emulate([launch], policy=policy, unfenced_reads="error").warnings == []
