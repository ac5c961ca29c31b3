"""wgmma executed from PTX text: results, groups in flight, and the faults of misuse."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from gemmjit.emulator.executor import KernelLaunch, emulate
from gemmjit.emulator.faults import ConvergenceFault, MemoryFault, RaceError, UnknownInstruction
from gemmjit.emulator.memory import DeviceMemory

N = 16
A_AT, B_AT = 0, 64 * 32  # K-major 32-byte swizzled tiles: 64 and N rows of 32 bytes
SMEM = 4096


def tile(matrix):
    """A K-major tile of 32-byte rows under the 32-byte swizzle, from a 256-byte boundary."""
    octets = np.ascontiguousarray(matrix).view(np.uint8).reshape(-1, 2, 16)
    out = octets.copy()
    for row in range(len(octets)):
        if row // 4 % 2:  # bit 7 of the address moves chunk 0 to 1 and back
            out[row] = octets[row, ::-1]
    return out.reshape(-1)


def program(body, *, registers=N // 2, threads=128):
    """A kernel that copies 4096 bytes to shared memory and runs `body` on descriptors."""
    return f"""
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 source, .param .u64 result)
{{
.shared .align 1024 .b8 smem[{SMEM}];
.reg .b64 %from, %to, %at, %a, %b, %hi; .reg .b32 %tid, %s<8>; .reg .pred %p<4>;
.reg .b32 %d<{registers}>; .reg .b32 %e<{registers}>; .reg .b32 %x<4>; .reg .b32 %v<4>;
ld.param.u64 %from, [source]; ld.param.u64 %to, [result];
mov.u32 %tid, %tid.x; mov.u32 %s0, smem;
mov.u32 %s1, %tid;
COPY:
setp.lt.u32 %p1, %s1, {SMEM // 16};
@!%p1 bra DONE;
mul.wide.u32 %at, %s1, 16; add.s64 %at, %at, %from;
ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%at];
shl.b32 %s2, %s1, 4; add.s32 %s2, %s2, %s0;
st.shared.v4.b32 [%s2], {{%v0, %v1, %v2, %v3}};
add.s32 %s1, %s1, {threads};
bra COPY;
DONE:
fence.proxy.async;
bar.sync 0;
shr.u32 %s3, %s0, 4; cvt.u64.u32 %at, %s3;
mov.b64 %hi, {3 << 62 | (256 >> 4) << 32 | 1 << 16};
add.s64 %at, %at, %hi;
add.s64 %a, %at, {A_AT >> 4}; add.s64 %b, %at, {B_AT >> 4};
{body}
STORE:
mul.wide.u32 %at, %tid, {4 * registers}; add.s64 %at, %at, %to;
{" ".join(f"st.global.b32 [%at+{4 * i}], %d{i};" for i in range(registers))}
ret;
}}
"""


def vector(name, count=N // 2):
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
ZERO = " ".join(f"mov.b32 %d{i}, 0;" for i in range(N // 2))


def product(scale_d="1", d="d", a="%a", tail="1, 1, 0, 0"):
    return (
        f"wgmma.mma_async.sync.aligned.m64n{N}k16.f32.bf16.bf16 {vector(d)}, {a}, %b, "
        f"{scale_d}, {tail};"
    )


def operands(seed=0):
    rng = np.random.default_rng(seed)
    a = rng.integers(-8, 9, (64, 16)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-8, 9, (N, 16)).astype(ml_dtypes.bfloat16)
    source = np.zeros(SMEM, np.uint8)
    source[A_AT : A_AT + 2048] = tile(a)
    source[B_AT : B_AT + 32 * N] = tile(b)
    return source, a.astype(np.float64) @ b.astype(np.float64).T


def run(ptx, source, *, threads=128, blocks=1, words=N // 2, **options):
    memory = DeviceMemory()
    to = memory.allocate(4 * threads * words)
    report = emulate(
        [KernelLaunch(ptx=ptx, entry="k", grid=(blocks,), block=(threads,),
                      args=[memory.allocate(SMEM, source), to], memory=memory)],
        **options,
    )  # fmt: skip
    return memory.read(to, np.float32, threads * words).reshape(threads, words), report


def matrix_of(registers):
    """D (64, N) from `[128, N / 2]` by the manual's figure."""
    out = np.zeros((64, N))
    for thread, i in np.ndindex(128, N // 2):
        row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
        out[row, 8 * (i // 4) + 2 * (thread % 4) + i % 2] = registers[thread, i]
    return out


POLICIES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_a_chain_of_products(policy, seed):
    source, exact = operands()
    body = f"{ZERO} {FENCE} {product()} {product()} {COMMIT} {product('0')} {COMMIT} {WAIT}"
    got, report = run(program(body), source, policy=policy, seed=seed)
    np.testing.assert_array_equal(matrix_of(got), exact)
    assert report.async_operations == 3
    body = f"{ZERO} {FENCE} {product('0')} {product()} {COMMIT} {product()} {COMMIT} {WAIT}"
    got, _ = run(program(body), source, policy=policy, seed=seed)
    np.testing.assert_array_equal(matrix_of(got), 3 * exact)


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_two_accumulators_and_a_predicate(policy, seed):
    source, exact = operands(1)
    add = " ".join(f"add.f32 %d{i}, %d{i}, %e{i};" for i in range(N // 2))
    body = f"""
    setp.eq.u32 %p2, %s0, 0;
    {FENCE} {product("%p2", "d")} {COMMIT} {product("!%p2", "e", tail="-1, 1, 0, 0")} {COMMIT}
    wgmma.wait_group.sync.aligned 1; {WAIT} {add}
    """
    got, _ = run(program("\n".join(f"mov.b32 %e{i}, 0;" for i in range(N // 2)) + body), source,
                 policy=policy, seed=seed)  # fmt: skip
    np.testing.assert_array_equal(matrix_of(got), 0 * exact)


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_a_from_registers(policy, seed):
    source, exact = operands(2)
    # ldmatrix gives the fragment of 16 rows: warp w reads rows 16 w on, unswizzled by hand.
    body = f"""
    and.b32 %s4, %tid, 15; shr.u32 %s5, %tid, 5; shl.b32 %s5, %s5, 4; add.s32 %s4, %s4, %s5;
    shr.u32 %s6, %tid, 4; and.b32 %s6, %s6, 1;
    shr.u32 %s7, %s4, 2; and.b32 %s7, %s7, 1; xor.b32 %s6, %s6, %s7;
    shl.b32 %s4, %s4, 5; shl.b32 %s6, %s6, 4; add.s32 %s4, %s4, %s6; add.s32 %s4, %s4, %s0;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {vector("x", 4)}, [%s4];
    {FENCE} {product("0", a=vector("x", 4), tail="1, 1, 0")} {COMMIT} {WAIT}
    """
    got, _ = run(program(body), source, policy=policy, seed=seed)
    np.testing.assert_array_equal(matrix_of(got), exact)


def test_registers_are_poison_until_the_wait():
    source, exact = operands()
    late = f"{FENCE} {product('0')} {COMMIT} {WAIT}"
    got, _ = run(program(late), source)
    np.testing.assert_array_equal(matrix_of(got), exact)
    # Without the wait before the store, the stored values are NaN, whatever the policy.
    copies = " ".join(f"mov.b32 %e{i}, %d{i};" for i in range(N // 2))
    back = " ".join(f"mov.b32 %d{i}, %e{i};" for i in range(N // 2))
    for policy in ("eager", "lazy"):
        early = f"{FENCE} {product('0')} {COMMIT} {copies} {WAIT} {back}"
        got, _ = run(program(early), source, policy=policy)
        assert np.isnan(got).all()


def test_a_wait_for_older_groups_leaves_the_newest_in_flight():
    source, _ = operands()
    body = f"{FENCE} {product('0')} {COMMIT} {product()} {COMMIT} wgmma.wait_group.sync.aligned 1;"
    copies = " ".join(f"mov.b32 %e{i}, %d{i};" for i in range(N // 2))
    back = " ".join(f"mov.b32 %d{i}, %e{i};" for i in range(N // 2))
    got, _ = run(program(f"{body} {copies} {WAIT} {back}"), source)
    assert np.isnan(got).all()


MISUSES = [
    (f"{ZERO} {product()} {COMMIT} {WAIT}", RaceError, "fence"),
    (f"{FENCE} {product('0')} {COMMIT} {WAIT} {ZERO} {product()} {COMMIT} {WAIT}",
     RaceError, "fence"),
    (f"{FENCE} {product('0')} {COMMIT}", RaceError, "wait_group"),
    (f"{FENCE} {product('0')} {WAIT}", RaceError, "wait_group"),
    (f"{FENCE} {product('0')} " + product("0").replace("%d1,", "%d9,").replace("%d0,", "%d1,")
     .replace("%d9,", "%d0,") + f"{COMMIT} {WAIT}", RaceError, "overlaps"),
    (f"{FENCE} {product('0', a=vector('x', 4), tail='1, 1, 0')} {COMMIT} mov.b32 %x1, 5; {WAIT}",
     RaceError, "registers of A were changed"),
    (f"setp.lt.u32 %p2, %tid, 64; @%p2 bra STORE; {FENCE} {product('0')} {COMMIT} {WAIT}",
     ConvergenceFault, "warpgroup"),
    (f"and.b32 %s4, %tid, 32; cvt.u64.u32 %at, %s4; add.s64 %a, %a, %at; {FENCE} {product('0')}",
     ConvergenceFault, "descriptor of A differs"),
    (f"add.s64 %b, %b, 4096; {FENCE} {product('0')}", MemoryFault, "outside"),
    (f"add.s64 %b, %b, {1 << 49}; {FENCE} {product('0')}", MemoryFault, "base offset"),
    (f"{FENCE} " + product("0").replace("1, 1, 0, 0", "1, 1"), UnknownInstruction, "constants"),
    (f"{FENCE} " + product("0").replace("bf16.bf16", "bf16.f16"), UnknownInstruction, "meet"),
]  # fmt: skip


@pytest.mark.parametrize("policy", ["eager", "lazy"])
@pytest.mark.parametrize("misuse", MISUSES, ids=lambda m: re.sub(r"\W+", "-", m[2]))
def test_misuses_are_found(misuse, policy):
    body, fault, reason = misuse
    source, _ = operands()
    with pytest.raises(fault, match=reason):
        run(program(body), source, policy=policy)


@pytest.mark.parametrize(("policy", "seed"), [*POLICIES, *(("random", s) for s in range(3, 12))])
def test_the_proxy_fence_may_stand_behind_the_barrier(policy, seed):
    source, exact = operands(4)
    ptx = program(f"{FENCE} {product('0')} {COMMIT} {WAIT}")
    before, after = "fence.proxy.async;\nbar.sync 0;", "bar.sync 0;\nfence.proxy.async;"
    assert before in ptx
    got, _ = run(ptx.replace(before, after), source, policy=policy, seed=seed)
    np.testing.assert_array_equal(matrix_of(got), exact)


@pytest.mark.parametrize(("policy", "seed"), POLICIES)
def test_a_proxy_fence_of_one_warp_is_not_enough(policy, seed):
    source, _ = operands(4)
    ptx = program(f"{FENCE} {product('0')} {COMMIT} {WAIT}")
    fences = "fence.proxy.async;\nbar.sync 0;"
    for instead, reason in (
        ("bar.sync 0;", "fence.proxy.async is missing"),
        ("bar.sync 0;\nsetp.lt.u32 %p3, %tid, 32;\n@%p3 fence.proxy.async;", "no barrier orders"),
    ):
        with pytest.raises(RaceError, match=reason):
            run(ptx.replace(fences, instead), source, policy=policy, seed=seed)


def test_two_warpgroups_and_two_blocks():
    source, exact = operands(3)
    body = f"{FENCE} {product('0')} {COMMIT} {WAIT}"
    memory = DeviceMemory()
    words = N // 2
    to = memory.allocate(4 * 256 * words)
    emulate([KernelLaunch(ptx=program(body, threads=256), entry="k", grid=(2,), block=(256,),
                          args=[memory.allocate(SMEM, source), to], memory=memory)])  # fmt: skip
    got = memory.read(to, np.float32, 256 * words).reshape(2, 128, words)
    for group in got:
        np.testing.assert_array_equal(matrix_of(group), exact)
