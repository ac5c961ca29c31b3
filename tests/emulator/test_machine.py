"""Several launches, devices, waves, residency, dependencies, policies and the report."""

from __future__ import annotations

import numpy as np
import pytest

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.faults import Deadlock, Fault, MemoryFault, RaceError

POLICIES = ["eager", "lazy", "random"]
HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
REGISTERS = """
.reg .b64 %o, %f, %x; .reg .b32 %i, %v, %u, %w; .reg .pred %p, %q;
ld.param.u64 %o, [p0]; ld.param.u64 %f, [p1]; mov.u32 %i, %ctaid.x;
"""


def kernel(body):
    return f"{HEAD}.visible .entry k(.param .u64 p0, .param .u64 p1)\n{{\n{REGISTERS}\n{body}\n}}\n"


def launch(body, args, memory, **shape):
    shape = {"grid": (1,), "block": (32,)} | shape
    return KernelLaunch(ptx=kernel(body), entry="k", args=args, memory=memory, **shape)


def words(memory, count, value=0):
    return memory.allocate(4 * count, np.full(count, value, "u4"))


@pytest.mark.parametrize("policy", POLICIES)
def test_grids_larger_than_a_wave(policy):
    memory = DeviceMemory()
    out = words(memory, 4096)
    body = "mad.wide.u32 %o, %i, 4, %o; atom.global.add.u32 %v, [%o], %i;"
    emulate([launch(body, [out, 0], memory, grid=(4096,))], policy=policy)
    np.testing.assert_array_equal(memory.read(out, "u4", 4096), np.arange(4096) * 32)


def test_three_dimensional_shapes():
    memory = DeviceMemory()
    out = words(memory, 24 * 12)
    body = """
    .reg .b32 %t<9>;
    mov.u32 %t0, %ctaid.x; mov.u32 %t1, %ctaid.y; mov.u32 %t2, %ctaid.z;
    mov.u32 %t3, %nctaid.x; mov.u32 %t4, %nctaid.y;
    mad.lo.u32 %t2, %t2, %t4, %t1; mad.lo.u32 %t2, %t2, %t3, %t0;
    mov.u32 %t5, %tid.x; mov.u32 %t6, %tid.y; mov.u32 %t7, %tid.z;
    mov.u32 %t8, %ntid.y; mad.lo.u32 %t7, %t7, %t8, %t6; mov.u32 %t8, %ntid.x;
    mad.lo.u32 %t7, %t7, %t8, %t5;
    mad.lo.u32 %u, %t2, 12, %t7; mad.wide.u32 %o, %u, 4, %o; add.u32 %u, %u, 1;
    st.global.u32 [%o], %u;
    """
    emulate([launch(body, [out, 0], memory, grid=(4, 3, 2), block=(3, 2, 2))])
    np.testing.assert_array_equal(memory.read(out, "u4", 288), np.arange(288) + 1)


SEND = "st.global.u32 [%o], 77; membar.sys; st.release.sys.global.u32 [%f], 1;"
RECEIVE = """
W: ld.acquire.sys.global.u32 %v, [%f]; setp.ne.u32 %p, %v, 1; @%p bra W;
ld.global.u32 %v, [%o]; st.global.u32 [%o+4], %v;
"""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_two_devices_talk_through_flags(policy, first):
    near, far = DeviceMemory(0), DeviceMemory(1)
    data, flag = words(near, 2), words(far, 1)
    pair = [launch(SEND, [data, flag], near), launch(RECEIVE, [data, flag], far)]
    emulate(pair if first == "sender" else pair[::-1], policy=policy)
    assert near.read(data, "u4", 2).tolist() == [77, 77]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_flag_that_nobody_sets_is_a_deadlock(policy):
    memory = DeviceMemory()
    with pytest.raises(Deadlock, match="poll without an end"):
        emulate([launch(RECEIVE, [words(memory, 2), words(memory, 1)], memory)], policy=policy)


HANDSHAKE = """
setp.eq.u32 %p, %i, 0; @%p bra FIRST;
st.release.gpu.global.u32 [%f], 1; ret;
FIRST: ld.acquire.gpu.global.u32 %v, [%f]; setp.eq.u32 %p, %v, 0; @%p bra FIRST;
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_that_wait_for_blocks_that_cannot_start(policy):
    memory = DeviceMemory()
    args = [words(memory, 1), words(memory, 1)]
    emulate([launch(HANDSHAKE, args, memory, grid=(2,))], policy=policy, resident_blocks=2)
    memory.write(args[1], np.zeros(1, "u4"))
    with pytest.raises(Deadlock, match=r"1 blocks of k are not resident \(1 are\)"):
        emulate([launch(HANDSHAKE, args, memory, grid=(2,))], policy=policy, resident_blocks=1)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_waiting_block_starts_when_another_ends(policy):
    # Block 0 waits for block 2, which gets the slot of block 1.
    body = HANDSHAKE.replace(
        "@%p bra FIRST;\nst", "@%p bra FIRST; setp.eq.u32 %p, %i, 1; @%p ret;\nst"
    )
    memory = DeviceMemory()
    args = [words(memory, 1), words(memory, 1)]
    emulate([launch(body, args, memory, grid=(3,))], policy=policy, resident_blocks=2)


@pytest.mark.parametrize("policy", POLICIES)
def test_residency_is_shared_by_the_launches_of_a_device(policy):
    memory = DeviceMemory()
    data, flag = words(memory, 2), words(memory, 1)
    pair = [launch(RECEIVE, [data, flag], memory), launch(SEND, [data, flag], memory)]
    with pytest.raises(Deadlock):
        emulate(pair, policy=policy, resident_blocks=1)
    emulate(pair, policy=policy, resident_blocks=2)


@pytest.mark.parametrize("policy", POLICIES)
def test_serial_and_programmatic_launches(policy):
    memory = DeviceMemory()
    data, other = words(memory, 64), words(memory, 64)
    write = """
    mad.wide.u32 %o, %i, 4, %o; griddepcontrol.launch_dependents; add.u32 %v, %i, 3;
    st.global.u32 [%o], %v;
    """
    read = """
    griddepcontrol.wait;
    mad.wide.u32 %o, %i, 4, %o; mad.wide.u32 %f, %i, 4, %f; ld.global.u32 %v, [%o];
    st.global.u32 [%f], %v;
    """
    for edge in ("serial", "programmatic"):
        memory.write(data, np.zeros(64, "u4"))
        emulate(
            [
                launch(write, [data, other], memory, grid=(64,)),
                launch(read, [data, other], memory, grid=(64,), after=[(0, edge)]),
            ],
            policy=policy,
        )
        np.testing.assert_array_equal(memory.read(other, "u4", 64), np.arange(64) + 3)


COPY = """
.shared .align 16 .b8 s[512]; .reg .b32 %a, %b, %c, %d;
mov.u32 %u, %tid.x; mov.u32 %w, s; mad.lo.u32 %w, %u, 16, %w; mad.wide.u32 %o, %u, 16, %o;
mad.wide.u32 %f, %u, 16, %f;
{copy}
cp.async.commit_group;
{wait}
ld.shared.v4.u32 {{%a, %b, %c, %d}}, [%w]; st.global.v4.u32 [%f], {{%a, %b, %c, %d}};
{end}
"""


def copied(
    policy,
    copy="cp.async.cg.shared.global [%w], [%o], 16;",
    wait="cp.async.wait_group 0;",
    end="",
    seed=0,
):
    memory = DeviceMemory()
    source, target = memory.allocate(512, np.arange(128, dtype="u4")), words(memory, 128)
    body = COPY.format(copy=copy, wait=wait, end=end)
    emulate([launch(body, [source, target], memory)], policy=policy, seed=seed)
    return memory.read(target, "u4", 128)


@pytest.mark.parametrize("policy", POLICIES)
def test_async_copies(policy):
    expected = np.arange(128)
    np.testing.assert_array_equal(copied(policy), expected)
    np.testing.assert_array_equal(copied(policy, wait="cp.async.wait_all;"), expected)
    zeros = copied(policy, "cp.async.cg.shared.global.L2::128B [%w], [%o], 16, 0;")
    assert not zeros.any()
    part = copied(policy, "cp.async.ca.shared.global [%w], [%o], 16, 12;").reshape(-1, 4)
    np.testing.assert_array_equal(part[:, :3], expected.reshape(-1, 4)[:, :3])
    assert not part[:, 3].any()
    odd = "and.b32 %a, %u, 1; shl.b32 %a, %a, 4; cp.async.cg.shared.global [%w], [%o], 16, %a;"
    got = copied(policy, odd).reshape(-1, 4)
    assert not got[::2].any()
    np.testing.assert_array_equal(got[1::2], expected.reshape(-1, 4)[1::2])
    ignored = "setp.lt.u32 %p, %u, 9; cp.async.cg.shared.global [%w], [%o], 16, %p;"
    got = copied(policy, ignored).reshape(-1, 4)
    assert not got[:9].any()
    np.testing.assert_array_equal(got[9:], expected.reshape(-1, 4)[9:])


def test_a_missing_wait_reads_poison():
    got = copied("lazy", wait="", end="cp.async.wait_all;")
    assert (got == 0xFFFFFFFF).all()
    with pytest.raises(RaceError, match=r"exits with cp.async copies in flight"):
        copied("lazy", wait="")


@pytest.mark.parametrize("policy", POLICIES)
def test_groups_are_waited_for_by_age(policy):
    copy = """
    cp.async.ca.shared.global [%w], [%o], 8; cp.async.commit_group;
    cp.async.ca.shared.global [%w+8], [%o+8], 8;
    """
    got = copied(policy, copy, wait="cp.async.wait_group 1;", end="cp.async.wait_group 0;").reshape(
        -1, 4
    )
    np.testing.assert_array_equal(got[:, :2], np.arange(128).reshape(-1, 4)[:, :2])
    if policy == "lazy":
        assert (got[:, 2:] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", ["", ".noinc"])
def test_copies_arrive_on_an_mbarrier(policy, form):
    count = 32 if form else 1
    body = f"""
    .shared .align 8 .b8 bar[8]; mov.u32 %a, bar; setp.ne.u32 %p, %u, 0;
    @!%p mbarrier.init.shared.b64 [%a], {count}; bar.sync 0;
    cp.async.cg.shared.global [%w], [%o], 16; cp.async.mbarrier.arrive{form}.shared.b64 [%a];
    bar.sync 0;
    """
    if not form:
        body += "@!%p mbarrier.arrive.shared.b64 _, [%a];"
    wait = "X: mbarrier.try_wait.parity.shared.b64 %q, [%a], 0; @!%q bra X;"
    np.testing.assert_array_equal(copied(policy, body, wait=wait), np.arange(128))


def test_misaligned_and_oversized_copies():
    with pytest.raises(MemoryFault, match="not a multiple of 16"):
        copied("eager", "cp.async.cg.shared.global [%w], [%o+8], 16;")
    with pytest.raises(MemoryFault, match="source size 17 exceeds 16"):
        copied("eager", "cp.async.cg.shared.global [%w], [%o], 16, 17;")
    with pytest.raises(MemoryFault, match="past the end"):
        copied("eager", "cp.async.cg.shared.global [%w], [%o+512], 16;")


def test_the_report_counts_warp_instructions():
    memory = DeviceMemory()
    body = """
    setp.lt.u32 %p, %i, 2; @%p bra X; add.u32 %v, %i, 1; add.u32 %v, %i, 1;
    X: mul.lo.u32 %v, %i, 2;
    """
    counts = {}
    for policy in POLICIES:
        report = emulate([launch(body, [0, 0], memory, grid=(4,), block=(64,))], policy=policy)
        counts[policy] = report.instructions
        assert report.instructions["add.u32"] == 2 * 2 * 2
        assert report.instructions["mul.lo.u32"] == 4 * 2
        assert report.warp_instructions == sum(report.instructions.values())
    assert counts["eager"] == counts["random"]


def test_same_seed_same_run():
    body = """
    atom.global.add.u32 %v, [%f], 1; mov.u32 %u, %tid.x; shr.u32 %u, %u, 5;
    mad.lo.u32 %u, %i, 2, %u;
    mad.wide.u32 %o, %u, 4, %o; st.global.u32 [%o], %v;
    """
    runs = []
    for seed in (1, 1, 2, 3):
        memory = DeviceMemory()
        out, flag = words(memory, 16), words(memory, 1)
        emulate(
            [launch(body, [out, flag], memory, grid=(8,), block=(64,))], policy="random", seed=seed
        )
        runs.append(memory.read(out, "u4", 16).tolist())
    assert runs[0] == runs[1]
    assert runs[0] != runs[2] or runs[0] != runs[3]


def test_launch_shapes_are_checked():
    memory = DeviceMemory()
    with pytest.raises(Fault, match="1025 threads"):
        emulate([launch("", [0, 0], memory, block=(1025,))])
    with pytest.raises(Fault, match="no multiple of the cluster"):
        emulate([launch("", [0, 0], memory, grid=(3,), cluster=(2,))])
    with pytest.raises(Fault, match="less than one cluster"):
        emulate([launch("", [0, 0], memory, grid=(4,), cluster=(4,))], resident_blocks=2)
    with pytest.raises(ValueError, match="policy"):
        emulate([launch("", [0, 0], memory)], policy="hasty")
