"""setmaxnreg: registers that warpgroups hand to each other, and waits for missing ones."""

from __future__ import annotations

import numpy as np
import pytest

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.faults import BarrierFault, ConvergenceFault, Deadlock, UnknownInstruction

POLICIES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(3))]
BOUNDS = ".maxntid 384, 1, 1 .minnctapersm 1"


def run(producer, consumer, *, bounds=BOUNDS, policy=("eager", 0), grid=3, threads=384, **launch):
    """Run a producer's and the consumers' instructions; every thread then stores its number."""
    ptx = f"""
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p0) {bounds}
{{
.reg .b64 %o; .reg .b32 %i, %n; .reg .pred %p, %q;
ld.param.u64 %o, [p0]; mov.u32 %i, %tid.x; mov.u32 %n, %ctaid.x; mad.lo.u32 %n, %n, {threads}, %i;
mad.wide.u32 %o, %n, 4, %o;
setp.ge.u32 %p, %i, 128; setp.ge.u32 %q, %i, 256;
@%p bra CONSUMER;
{producer}
bra END;
CONSUMER:
{consumer}
END:
st.global.u32 [%o], %i;
ret;
}}
"""
    memory = DeviceMemory()
    out = memory.allocate(4 * threads * grid)
    described = KernelLaunch(
        ptx=ptx, entry="k", grid=(grid,), block=(threads,), args=[out], memory=memory, **launch
    )
    emulate([described], policy=policy[0], seed=policy[1])
    found = memory.read(out, np.uint32, threads * grid).reshape(grid, threads)
    np.testing.assert_array_equal(found, np.tile(np.arange(threads), (grid, 1)))


def asks(action, registers):
    return f"setmaxnreg.{action}.sync.aligned.u32 {registers};\n"


@pytest.mark.parametrize("policy", POLICIES)
def test_what_one_gives_another_gets(policy):
    run(asks("dec", 40), asks("inc", 232), policy=policy)
    run(asks("dec", 24), asks("inc", 240), policy=policy)
    # In turn: what was taken comes back.
    run(asks("dec", 40) + "bar.sync 1, 384;" + asks("inc", 168),
        asks("inc", 232) + "bar.sync 1, 384;" + asks("dec", 168), policy=policy)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_a_consumer_that_waits_for_ever(policy):
    """3 x 168 registers, and 32 + 2 x 240 asked for: so k3 hung on an H200."""
    with pytest.raises(Deadlock) as caught:
        run(asks("dec", 32), asks("inc", 240), policy=policy, grid=1)
    text = str(caught.value)
    assert "wait for 240 registers a thread (72 more," in text
    assert "of 64512 are free" in text
    assert "32 by warps [0, 1, 2, 3]" in text
    assert "setmaxnreg" in text


def test_the_report_names_warps_and_holders():
    with pytest.raises(Deadlock) as caught:
        run(asks("dec", 32), asks("inc", 240), grid=1)
    assert (
        "block (0, 0, 0): warps [11] wait for 240 registers a thread (72 more, 2304 in all) at"
        in str(caught.value)
    )
    assert (
        "1280 of 64512 are free; held: 32 by warps [0, 1, 2, 3]; 240 by warps "
        "[4, 5, 6, 7, 8, 9, 10]; 168 by warps [11]" in str(caught.value)
    )


def test_nobody_gives():
    with pytest.raises(Deadlock, match=r"wait for 176 registers a thread \(8 more"):
        run("", asks("inc", 176), registers=168)


@pytest.mark.parametrize(
    ("bounds", "threads", "entry"),
    [
        (".maxntid 384, 1, 1 .minnctapersm 1", 384, 168),
        (".maxntid 384, 1, 1", 384, 168),
        (".reqntid 384, 1, 1", 384, 168),
        (".maxntid 512, 1, 1 .minnctapersm 1", 512, 128),
        (".maxntid 384, 1, 1 .minnctapersm 2", 384, 80),
        (".maxnreg 100", 384, 104),
    ],
)
def test_bounds_say_what_there_is_at_the_start(bounds, threads, entry):
    """As ptxas has it (2026-11-30)."""
    consumers = threads // 128 - 1
    most = (entry * (1 + consumers) - 24) // consumers // 8 * 8
    run(asks("dec", 24), asks("inc", most), bounds=bounds, threads=threads)
    with pytest.raises(Deadlock, match=f"of {entry * threads} are free"):
        run(asks("dec", 24), asks("inc", most + 8), bounds=bounds, threads=threads)


def test_the_cubin_knows_better_than_the_bounds():
    run(asks("dec", 24), asks("inc", 104), registers=80)
    with pytest.raises(Deadlock, match=f"of {80 * 384} are free"):
        run(asks("dec", 24), asks("inc", 112), registers=80)


def test_no_bound_no_pool():
    """Ptxas ignores setmaxnreg then, and says so."""
    run(asks("dec", 32), asks("inc", 240), bounds="")


def test_no_more_at_the_start_than_anybody_asks_for():
    """With 256 threads there could be 256 each; ptxas takes 232, so that 232 is not fewer."""
    run("", asks("inc", 232), bounds=".maxntid 256, 1, 1 .minnctapersm 1", threads=256)


@pytest.mark.parametrize(
    ("producer", "consumer", "fault", "message"),
    [
        (asks("dec", 176), "", BarrierFault, "at most the 168"),
        (asks("inc", 160), "", BarrierFault, "at least the 168"),
        ("setp.lt.u32 %q, %i, 64; @%q " + asks("dec", 40), "", ConvergenceFault, "warpgroup"),
        ("setp.lt.u32 %q, %i, 70; @%q " + asks("dec", 40), "", ConvergenceFault, "within a warp"),
        (asks("dec", 20), "", UnknownInstruction, "multiple of 8"),
        (asks("inc", 264), "", UnknownInstruction, "multiple of 8"),
    ],
)
def test_misuse(producer, consumer, fault, message):
    with pytest.raises(fault, match=message):
        run(producer, consumer, registers=168)
