"""cp.async.bulk and cp.reduce.async.bulk executed from PTX text."""

from __future__ import annotations

import numpy as np
import pytest

from gemmjit.emulator.executor import KernelLaunch, emulate
from gemmjit.emulator.faults import BarrierFault, MemoryFault, RaceError, UnknownInstruction
from gemmjit.emulator.memory import DeviceMemory

SMEM = 2048
POLICIES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
INTO = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
OUT = "cp.async.bulk.global.shared::cta.bulk_group"
ACROSS = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
COMMIT = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n"


def program(body, *, target="sm_90a"):
    """One warp: `body`, then shared memory goes to `result` (a row of SMEM bytes a block).

    Shared memory starts as ctaid * 4096 + index in 32-bit words.
    """
    return f"""
.version 8.7
.target {target}
.address_size 64
.visible .entry k(.param .u64 data, .param .u64 result)
{{
.shared .align 128 .b8 smem[{SMEM}];
.shared .align 8 .b8 bar[8];
.reg .b64 %x, %to, %at; .reg .b32 %tid, %s, %b, %r<10>, %v<4>, %far, %farbar;
.reg .pred %p<4>; .reg .b16 %h;
ld.param.u64 %x, [data]; ld.param.u64 %to, [result];
mov.u32 %tid, %tid.x; mov.u32 %s, smem; mov.u32 %b, bar; mov.u32 %r9, %cluster_ctarank;
setp.eq.u32 %p0, %tid, 0;
@%p0 mbarrier.init.shared::cta.b64 [%b], 1;
fence.mbarrier_init.release.cluster;
mov.u32 %r0, %tid; mov.u32 %r8, %ctaid.x; shl.b32 %r7, %r8, 12;
FILL:
setp.ge.u32 %p1, %r0, {SMEM // 4};
@%p1 bra FILLED;
shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %s; add.u32 %r2, %r0, %r7;
st.shared.b32 [%r1], %r2;
add.u32 %r0, %r0, 32;
bra FILL;
FILLED:
fence.proxy.async;
{MEET}
xor.b32 %r6, %r9, 1;
mapa.shared::cluster.u32 %far, %s, %r6;
mapa.shared::cluster.u32 %farbar, %b, %r6;
{body}
{MEET}
mul.wide.u32 %at, %r8, {SMEM}; add.s64 %to, %to, %at;
mov.u32 %r0, %tid;
OUT:
setp.ge.u32 %p1, %r0, {SMEM // 4};
@%p1 bra END;
shl.b32 %r1, %r0, 2; add.u32 %r2, %r1, %s;
ld.shared.b32 %v0, [%r2];
cvt.u64.u32 %at, %r1; add.s64 %at, %at, %to;
st.global.b32 [%at], %v0;
add.u32 %r0, %r0, 32;
bra OUT;
END:
ret;
}}
"""


WAIT = """
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%b], 0;
@!%p1 bra WAIT;
"""


def expect(nbytes):
    return f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {nbytes};\n"


def run(ptx, data, *, blocks=2, policy=("eager", 0)):
    memory = DeviceMemory()
    at, to = memory.allocate(data.nbytes, data), memory.allocate(SMEM * blocks)
    emulate(
        [KernelLaunch(ptx=ptx, entry="k", grid=(blocks,), block=(32,), cluster=(2,),
                      args=[at, to], memory=memory)],
        policy=policy[0], seed=policy[1],
    )  # fmt: skip
    smem = memory.read(to, np.uint32, SMEM // 4 * blocks).reshape(blocks, -1)
    return smem, memory.read(at, data.dtype, data.size)


def initial(blocks=2):
    return (np.arange(blocks)[:, None] * 4096 + np.arange(SMEM // 4)).astype(np.uint32)


DATA = np.random.default_rng(0).integers(0, 2**32, 1024, dtype=np.uint64).astype(np.uint32)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("own", [False, True])
def test_global_to_shared(own, policy):
    opcode = INTO.replace("shared::cluster", "shared::cta") if own else INTO + ".L2::cache_hint"
    tail = "" if own else ", %x"
    body = expect(400) + f"@%p0 {opcode} [%s+32], [%x+64], 400, [%b]{tail};\n" + WAIT
    smem, data = run(program(body), DATA, policy=policy)
    expected = initial()
    expected[:, 8:108] = DATA[16:116]
    np.testing.assert_array_equal(smem, expected)
    np.testing.assert_array_equal(data, DATA)


@pytest.mark.parametrize("policy", POLICIES)
def test_multicast(policy):
    body = f"""
    {expect(64)}
    setp.eq.and.u32 %p2, %r9, 1, %p0; mov.b16 %h, 3;
    @%p2 {INTO}.multicast::cluster [%s], [%x], 64, [%b], %h;
    {WAIT}
    """
    smem, _ = run(program(body), DATA, blocks=4, policy=policy)
    expected = initial(4)
    expected[:, :16] = DATA[:16]
    np.testing.assert_array_equal(smem, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_shared_to_global(policy):
    body = f"setp.eq.and.u32 %p2, %r9, 1, %p0; @%p2 {OUT} [%x+128], [%s+16], 96; {COMMIT}"
    smem, data = run(program(body), DATA, policy=policy)
    expected = DATA.copy()
    expected[32:56] = initial()[1, 4:28]
    np.testing.assert_array_equal(data, expected)
    np.testing.assert_array_equal(smem, initial())


def test_byte_masks():
    body = "setp.eq.and.u32 %p2, %r9, 1, %p0; mov.b16 %h, 0x8421;\n"
    body += f"@%p2 {OUT}.cp_mask [%x], [%s], 32, %h; {COMMIT}"
    _, data = run(program(body, target="sm_100a"), DATA)
    expected = DATA.copy().view(np.uint8)
    source = initial()[1].view(np.uint8)
    for chunk in (0, 16):
        for byte in (0, 5, 10, 15):
            expected[chunk + byte] = source[chunk + byte]
    np.testing.assert_array_equal(data.view(np.uint8), expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_between_blocks_of_a_cluster(policy):
    body = expect(64) + f"@%p0 {ACROSS} [%far+64], [%s], 64, [%farbar];\n" + WAIT
    smem, _ = run(program(body), DATA, policy=policy)
    expected = initial()
    expected[:, 16:32] = initial()[::-1, :16]
    np.testing.assert_array_equal(smem, expected)
    add = ACROSS.replace("cp.", "cp.reduce.", 1) + ".add.u32"
    body = expect(64) + f"@%p0 {add} [%far+64], [%s], 64, [%farbar];\n" + WAIT
    smem, _ = run(program(body), DATA, policy=policy)
    expected = initial()
    expected[:, 16:32] += initial()[::-1, :16]
    np.testing.assert_array_equal(smem, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_reductions_in_global_memory(policy):
    for op, element, function in (
        ("add", "u32", np.add),
        ("max", "s32", lambda a, b: np.maximum(a.view(np.int32), b.view(np.int32))),
        ("xor", "b32", np.bitwise_xor),
        ("add", "u64", lambda a, b: a.view(np.uint64) + b.view(np.uint64)),
    ):
        reduce = OUT.replace("cp.", "cp.reduce.", 1) + f".{op}.{element}"
        body = f"@%p0 {reduce} [%x+128], [%s], 64; {COMMIT}"
        _, data = run(program(body), DATA, policy=policy)
        part = DATA[32:48]
        for block in range(2):
            part = function(part, initial()[block, :16]).view(np.uint32)
        expected = DATA.copy()
        expected[32:48] = part
        np.testing.assert_array_equal(data, expected)


def test_half_sums():
    halves = np.arange(64, dtype=np.float16)
    fill = "".join(
        f"@%p0 st.shared.b16 [%s+{2 * i}], {int(np.float16(i).view(np.uint16))};" for i in range(8)
    )
    add = OUT.replace("cp.", "cp.reduce.", 1) + ".add.noftz.f16"
    body = f"{fill} fence.proxy.async; {MEET} @%p0 {add} [%x], [%s], 16; {COMMIT}"
    _, data = run(program(body), halves)
    expected = halves.copy()
    expected[:8] += 2 * np.arange(8, dtype=np.float16)
    np.testing.assert_array_equal(data, expected)


def test_a_source_reused_without_a_wait_is_a_race():
    body = f"@%p0 {OUT} [%x], [%s], 64; cp.async.bulk.commit_group; @%p0 st.shared.b32 [%s], %r0;"
    with pytest.raises(RaceError, match="asynchronous operation reads it"):
        run(program(body), DATA, policy=("lazy", 0))
    body = f"@%p0 st.shared.b32 [%s], %r0; @%p0 {OUT} [%x], [%s], 64; {COMMIT}"
    with pytest.raises(RaceError, match=r"fence\.proxy\.async"):
        run(program(body), DATA)


FAULTS = [
    (f"@%p0 {INTO} [%s], [%x], 24, [%b];", MemoryFault, "size: expected a multiple of 16"),
    (f"@%p0 {INTO} [%s+8], [%x], 32, [%b];", MemoryFault, "destination"),
    (f"@%p0 {INTO} [%s], [%x+4], 32, [%b];", MemoryFault, "source"),
    (f"@%p0 {INTO} [%s+2032], [%x], 64, [%b];", MemoryFault, "pass the end"),
    (expect(64) + f"@%p0 {INTO} [%s], [%x+4064], 64, [%b];" + WAIT, MemoryFault, "allocation"),
    (f"@%p0 {INTO} [%far], [%x], 64, [%b];", BarrierFault, "mbarrier is in block"),
    (f"@%p0 {ACROSS} [%s], [%s+64], 64, [%b];", MemoryFault, "another block"),
    (f"@%p0 {OUT} [%x+4064], [%s], 64; {COMMIT}", MemoryFault, "allocation"),
    (f"@%p0 {OUT} [%x], [%far], 64; {COMMIT}", MemoryFault, "source is in another block"),
    (f"@%p0 {OUT.replace('cp.', 'cp.reduce.', 1)}.min.f32 [%x], [%s], 64;", UnknownInstruction,
     "min.f32"),
    (f"@%p0 {ACROSS.replace('cp.', 'cp.reduce.', 1)}.add.f32 [%far], [%s], 64, [%farbar];",
     UnknownInstruction, "add.f32"),
    (f"@%p0 {INTO}.multicast::cluster [%s], [%x], 64, [%b], 8;", MemoryFault, "ctaMask"),
]  # fmt: skip


@pytest.mark.parametrize("case", FAULTS, ids=lambda c: c[2])
def test_what_is_not_allowed_is_a_fault(case):
    body, fault, reason = case
    with pytest.raises(fault, match=reason):
        run(program(body), DATA)
