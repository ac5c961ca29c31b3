"""bar, barrier, barrier.cluster and mbarrier: values, misuse, deadlock reports."""

from __future__ import annotations

import numpy as np
import pytest

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.faults import BarrierFault, Deadlock, MemoryFault, RaceError

POLICIES = ["eager", "lazy", "random"]
HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"


def run(body, *, out=0, block=(64,), grid=(1,), cluster=(1,), policy="eager", seed=0, **options):
    """Run a kernel `k(p0)`; its output words."""
    memory = DeviceMemory()
    pointer = memory.allocate(max(4 * out, 4), np.zeros(max(out, 1), "u4"))
    text = f"{HEAD}.visible .entry k(.param .u64 p0)\n{{\n{body}\n}}\n"
    launch = KernelLaunch(
        ptx=text, entry="k", grid=grid, block=block, cluster=cluster, args=[pointer], memory=memory
    )
    emulate([launch], policy=policy, seed=seed, **options)
    return memory.read(pointer, "u4", max(out, 1))


REGISTERS = """
.reg .b64 %o, %state; .reg .b32 %i, %v, %u, %w, %a, %r, %n; .reg .pred %p, %q;
ld.param.u64 %o, [p0]; mov.u32 %i, %tid.x;
"""
STORE = "mad.wide.u32 %o, %i, 4, %o; st.global.u32 [%o], %v;"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_bar_sync_orders_shared_memory(policy, seed):
    body = f"""
    .shared .align 4 .b8 s[256]; {REGISTERS}
    mov.u32 %a, s; mad.lo.u32 %a, %i, 4, %a; st.shared.u32 [%a], %i;
    bar.sync 0;
    sub.u32 %v, 63, %i; mov.u32 %a, s; mad.lo.u32 %a, %v, 4, %a; ld.shared.u32 %v, [%a]; {STORE}
    """
    np.testing.assert_array_equal(run(body, out=64, policy=policy, seed=seed), 63 - np.arange(64))


def test_a_missing_bar_shows_under_some_seed():
    body = f"""
    .shared .align 4 .b8 s[256]; {REGISTERS}
    mov.u32 %a, s; mad.lo.u32 %a, %i, 4, %a; st.shared.u32 [%a], %i;
    setp.lt.u32 %p, %i, 99; @%p bra NEXT; NEXT:
    sub.u32 %v, 63, %i; mov.u32 %a, s; mad.lo.u32 %a, %v, 4, %a; ld.shared.u32 %v, [%a]; {STORE}
    """
    wrong = [
        not (run(body, out=64, policy="random", seed=s) == 63 - np.arange(64)).all()
        for s in range(8)
    ]
    assert any(wrong)


@pytest.mark.parametrize("policy", POLICIES)
def test_named_barriers_of_producer_and_consumer(policy):
    body = f"""
    .shared .align 4 .b8 s[128]; {REGISTERS}
    setp.ge.u32 %p, %i, 32; @%p bra CONSUMER;
    mov.u32 %a, s; mad.lo.u32 %a, %i, 4, %a; add.u32 %v, %i, 5; st.shared.u32 [%a], %v;
    bar.arrive 3, 64; ret;
    CONSUMER: bar.sync 3, 64;
    sub.u32 %i, %i, 32; mov.u32 %a, s; mad.lo.u32 %a, %i, 4, %a; ld.shared.u32 %v, [%a]; {STORE}
    """
    np.testing.assert_array_equal(run(body, out=32, policy=policy), np.arange(32) + 5)


@pytest.mark.parametrize("policy", POLICIES)
def test_bar_red(policy):
    body = f"""
    {REGISTERS}
    and.b32 %u, %i, 3; setp.eq.u32 %p, %u, 0;
    bar.red.popc.u32 %v, 1, %p; bar.red.and.pred %q, 1, %p; @%q add.u32 %v, %v, 100;
    bar.red.or.pred %q, 1, 64, !%p; @%q add.u32 %v, %v, 1000; {STORE}
    """
    assert (run(body, out=64, policy=policy) == 1016).all()


def test_exited_threads_are_not_waited_for():
    body = f"{REGISTERS} setp.lt.u32 %p, %i, 40; @%p exit; bar.sync 0; mov.u32 %v, 1; {STORE}"
    got = run(body, out=64)
    assert got.tolist() == [0] * 40 + [1] * 24


def test_bar_misuse():
    with pytest.raises(BarrierFault, match="barriers 0 to 15"):
        run("bar.sync 16;")
    with pytest.raises(BarrierFault, match="no multiple of 32"):
        run("bar.sync 1, 48;")
    with pytest.raises(BarrierFault, match="an earlier arrival said"):
        run(
            f"{REGISTERS} setp.lt.u32 %p, %i, 32; @%p bra A; bar.sync 1, 96; ret;A: bar.sync 1, 64;"
        )


def test_deadlock_names_barrier_counts_warps_and_source():
    body = f"""
    {REGISTERS} setp.lt.u32 %p, %i, 32; @%p bra OUT;
    .loc 1 42 1
    bar.sync 5, 64;
    OUT:
    """
    with pytest.raises(Deadlock) as caught:
        run(body)
    message = str(caught.value)
    assert "barrier 5: 32 of 64 threads arrived; warps [1] wait at" in message
    assert "bar.sync 5, 64" in message
    assert "file 1:42" in message


CLUSTER = "{REGISTERS} mov.u32 %n, %cluster_ctarank; mov.u32 %a, s;"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("variant", ["aligned", "plain", "relaxed"])
def test_clusters_read_each_others_memory(policy, variant):
    arrive = {"aligned": "arrive.aligned", "plain": "arrive", "relaxed": "arrive.release"}[variant]
    wait = (
        "wait.aligned"
        if variant == "aligned"
        else "wait.acquire"
        if variant == "relaxed"
        else "wait"
    )
    sync = f"barrier.cluster.{arrive}; barrier.cluster.{wait};"
    body = f"""
    .shared .align 4 .b8 s[256]; {REGISTERS}
    mov.u32 %n, %cluster_ctarank; mov.u32 %a, s; mad.lo.u32 %a, %i, 4, %a;
    mad.lo.u32 %v, %n, 1000, %i; st.shared.u32 [%a], %v;
    {sync}
    xor.b32 %u, %n, 1; mapa.shared::cluster.u32 %w, %a, %u; ld.shared::cluster.u32 %v, [%w];
    getctarank.shared::cluster.u32 %r, %w; mad.lo.u32 %v, %r, 100000, %v;
    mov.u32 %u, %ctaid.x; mad.lo.u32 %i, %u, 64, %i; {STORE}
    {sync}
    """
    got = run(body, out=256, grid=(4,), cluster=(2,), policy=policy)
    expected = [r * 100000 + r * 1000 + i for _ in range(2) for r in (1, 0) for i in range(64)]
    np.testing.assert_array_equal(got, expected)


def test_cluster_barrier_misuse():
    with pytest.raises(BarrierFault, match="without an arrive"):
        run("barrier.cluster.wait;", cluster=(1,))
    with pytest.raises(BarrierFault, match="twice"):
        run("barrier.cluster.arrive; barrier.cluster.arrive;")
    body = f"""
    {REGISTERS} mov.u32 %n, %cluster_ctarank; setp.eq.u32 %p, %n, 1; @%p bra OTHER;
    barrier.cluster.arrive; barrier.cluster.wait; ret;
    OTHER: bar.sync 1, 96;
    """
    with pytest.raises(Deadlock, match=r"barrier.cluster: 64 of 128 threads arrived"):
        run(body, grid=(2,), cluster=(2,))


def test_memory_of_an_exited_block_is_gone():
    body = f"""
    .shared .align 4 .b8 s[4]; {REGISTERS}
    mov.u32 %n, %cluster_ctarank; setp.eq.u32 %p, %n, 1; @%p exit;
    mov.u32 %a, s; mapa.shared::cluster.u32 %w, %a, 1; ld.shared::cluster.u32 %v, [%w];
    """
    with pytest.raises(MemoryFault, match="has exited"):
        run(body, grid=(2,), cluster=(2,))


# -- mbarrier --------------------------------------------------------------------------------

INIT = f"""
.shared .align 8 .b8 bar[16]; {REGISTERS}
mov.u32 %a, bar; setp.ne.u32 %p, %i, 0; @%p bra READY;
mbarrier.init.shared::cta.b64 [%a], {{count}};
READY: bar.sync 0;
"""


def initialised(count):
    return INIT.replace("{count}", str(count))


def spin(parity, name):
    return f"{name}: mbarrier.try_wait.parity.shared::cta.b64 %q, [%a], {parity}; @!%q bra {name};"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_phases_of_an_mbarrier(policy, seed):
    body = f"""
    .shared .align 4 .b8 s[4]; {initialised(32)}
    setp.ge.u32 %p, %i, 32; @%p bra CONSUMER;
    mov.u32 %u, s; st.shared.u32 [%u], 11; mbarrier.arrive.shared::cta.b64 %state, [%a];
    bar.sync 2, 64;
    st.shared.u32 [%u], 22; mbarrier.arrive.release.cta.shared::cta.b64 _, [%a]; ret;
    CONSUMER:
    {spin(0, "W0")} mov.u32 %u, s; ld.shared.u32 %v, [%u];
    bar.sync 2, 64;
    {spin(1, "W1")} ld.shared.u32 %w, [%u]; mad.lo.u32 %v, %v, 100, %w;
    sub.u32 %i, %i, 32; {STORE}
    """
    assert (run(body, out=32, policy=policy, seed=seed) == 1122).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_state_tokens_and_test_wait(policy):
    body = f"""
    {initialised(64)}
    mbarrier.arrive.shared.b64 %state, [%a];
    W: mbarrier.test_wait.shared.b64 %q, [%a], %state; @!%q bra W;
    mbarrier.pending_count.b64 %v, %state; bar.sync 0;
    mbarrier.arrive.shared.b64 %state, [%a];
    X: mbarrier.try_wait.shared::cta.b64 %q, [%a], %state, 1000; @!%q bra X; {STORE}
    """
    got = run(body, out=64, policy=policy)
    np.testing.assert_array_equal(np.sort(got), np.arange(1, 65))


@pytest.mark.parametrize("policy", POLICIES)
def test_counts_drops_and_transactions(policy):
    body = f"""
    {initialised(3)}
    setp.ne.u32 %p, %i, 0; @%p bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%a], 64;
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%a], 8;
    mbarrier.arrive_drop.shared::cta.b64 %state, [%a], 1;
    mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %state, [%a], 1;
    """
    with pytest.raises(BarrierFault, match="noComplete"):
        run(body.replace("relaxed.cta.", "") + "WAIT:", policy=policy)
    body = (
        body.replace(".noComplete.release.cta", "")
        + f"""
    mbarrier.test_wait.parity.shared::cta.b64 %q, [%a], 0; @%q trap;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%a], 72;
    {spin(0, "W")}
    mbarrier.arrive.shared::cta.b64 _, [%a], 2; {spin(1, "V")} mov.u32 %v, 9; {STORE}
    WAIT:
    """
    )
    assert run(body, out=1, policy=policy)[0] == 9


def test_remote_arrivals():
    body = f"""
    {initialised(2)} barrier.cluster.arrive; barrier.cluster.wait;
    setp.ne.u32 %p, %i, 0; @%p bra DONE;
    mapa.shared::cluster.u32 %w, %a, 0; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%w];
    mapa.shared::cluster.u32 %w, %a, 1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%w];
    {spin(0, "W")} mov.u32 %i, %ctaid.x; mov.u32 %v, 3; {STORE}
    DONE: barrier.cluster.arrive; barrier.cluster.wait;
    """
    assert run(body, out=2, grid=(2,), cluster=(2,)).tolist() == [3, 3]


def test_mbarrier_misuse():
    with pytest.raises(BarrierFault, match="was not initialised"):
        run(
            f".shared .align 8 .b8 bar[8]; {REGISTERS} mov.u32 %a, bar;"
            "mbarrier.arrive.shared.b64 _, [%a];"
        )
    with pytest.raises(BarrierFault, match="1 arrivals, 0 of 1 are pending"):
        run(
            initialised(1) + "@!%p mbarrier.arrive.expect_tx.shared.b64 _, [%a], 16; "
            "@!%p mbarrier.arrive.shared.b64 _, [%a];"
        )
    with pytest.raises(BarrierFault, match=r"the block exits, but .*16 transaction bytes pending"):
        run(initialised(1) + "@!%p mbarrier.arrive.expect_tx.shared.b64 _, [%a], 16;")
    with pytest.raises(BarrierFault, match="count 0 is not in"):
        run(initialised(0))
    with pytest.raises(MemoryFault, match="not a multiple of 8"):
        run(initialised(1).replace("mov.u32 %a, bar;", "mov.u32 %a, bar; add.u32 %a, %a, 4;"))


def test_mbarrier_deadlock_report():
    body = initialised(5) + "mbarrier.arrive.shared.b64 _, [%a], 1; " + spin(0, "W")
    with pytest.raises(Deadlock, match="phase 12, 1 of 5 arrivals pending"):
        run(body)  # 64 arrivals by fives: twelve phases, and the parity is that of the start again
    body = initialised(3) + "@!%p mbarrier.arrive.shared.b64 _, [%a]; " + spin(0, "W")
    with pytest.raises(Deadlock) as caught:
        run(body)
    message = str(caught.value)
    assert "(bar+0): phase 0, 2 of 3 arrivals pending" in message
    assert "warps [0, 1] wait for the phase of parity 0" in message


@pytest.mark.parametrize("policy", POLICIES)
def test_polling_without_progress_is_a_deadlock(policy):
    body = initialised(2) + "W: mbarrier.test_wait.parity.shared.b64 %q, [%a], 0; @!%q bra W;"
    with pytest.raises(Deadlock, match="poll without an end"):
        run(body, policy=policy)


def test_use_before_a_visible_init():
    body = f"""
    .shared .align 8 .b8 bar[8]; {REGISTERS} mov.u32 %a, bar;
    setp.ne.u32 %p, %i, 0; @%p bra READY; mbarrier.init.shared.b64 [%a], 64; READY: {{sync}}
    mbarrier.arrive.shared.b64 _, [%a];
    """
    run(body.replace("{sync}", "bar.sync 0;"))
    for policy in POLICIES:
        with pytest.raises((RaceError, BarrierFault), match=r"mbarrier\.init|not initialised"):
            run(body.replace("{sync}", ""), policy=policy)
    # A relaxed cluster arrival publishes an init only behind fence.mbarrier_init.
    remote = f"""
    .shared .align 8 .b8 bar[8]; {REGISTERS} mov.u32 %a, bar;
    setp.ne.u32 %p, %i, 0; @%p bra READY; mbarrier.init.shared.b64 [%a], 1; {{fence}}
    READY: barrier.cluster.arrive.relaxed; barrier.cluster.wait;
    mov.u32 %n, %cluster_ctarank; xor.b32 %n, %n, 1; mapa.shared::cluster.u32 %w, %a, %n;
    @!%p mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%w];
    barrier.cluster.arrive; barrier.cluster.wait;
    """
    run(remote.replace("{fence}", "fence.mbarrier_init.release.cluster;"), grid=(2,), cluster=(2,))
    with pytest.raises(RaceError):
        run(remote.replace("{fence}", ""), grid=(2,), cluster=(2,))
