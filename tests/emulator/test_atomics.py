"""atom and red: every operation, type and space; lanes that meet at one address."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from lane_programs import evaluate

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate

POLICIES = ["eager", "random"]


def atomic(
    text, kind, old, operands, *, width=None, cells=None, policy="eager", space="global", declare=""
):
    """Thread i applies `text` to cell i % cells with operand i; (final cells, returned values)."""
    operands = np.ascontiguousarray(operands)
    count, size = len(operands), operands.dtype.itemsize
    cells = cells or len(old)
    memory = DeviceMemory()
    at, given, out = (
        memory.allocate(old.nbytes, old),
        memory.allocate(operands.nbytes, operands),
        memory.allocate(count * size),
    )
    memory.write(out, np.zeros(count * size, "u1"))
    bits = 8 * size
    staged, back = "", ""
    address = "[%at]"
    if space == "shared":
        staged = f"""
        mov.u32 %sa, cells; mad.lo.u32 %sa, %n, {size}, %sa; ld.global.b{bits} %v, [%at];
        st.shared.b{bits} [%sa], %v;
        bar.sync 0;
        """
        back = f"bar.sync 0; ld.shared.b{bits} %v, [%sa]; st.global.b{bits} [%at], %v;"
        address = "[%sa]"
    ptx = (
        """
    .version 8.7 .target sm_90a .address_size 64
    """.replace(" .target", "\n.target").replace(" .address", "\n.address")
        + f"""
    .visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2) {{
    .shared .align 16 .b8 cells[{cells * size}];
    .reg .b64 %at, %from, %to; .reg .b32 %i, %n, %sa; .reg .b{bits} %b, %c, %d, %v; {declare}
    ld.param.u64 %at, [p0]; ld.param.u64 %from, [p1]; ld.param.u64 %to, [p2];
    mov.u32 %i, %tid.x; rem.u32 %n, %i, {cells};
    mad.wide.u32 %at, %n, {size}, %at; mad.wide.u32 %from, %i, {size}, %from;
    mad.wide.u32 %to, %i, {size}, %to;
    ld.global.b{bits} %b, [%from]; mov.b{bits} %c, 7; mov.b{bits} %d, 0; {staged}
    {text.replace("[@]", address)}
    st.global.b{bits} [%to], %d; {back}
    }}
    """
    )
    emulate(
        [
            KernelLaunch(
                ptx=ptx, entry="k", grid=(1,), block=(count,), args=[at, given, out], memory=memory
            )
        ],
        policy=policy,
    )
    return memory.read(at, old.dtype, len(old)), memory.read(out, operands.dtype, count)


RNG = np.random.default_rng(0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("op", ["add", "min", "max"])
def test_integer_atomics(op, kind, space, policy):
    if (op, kind) == ("add", "s64"):
        kind = "u64"
    dtype = np.dtype(("i" if kind[0] == "s" else "u") + str(int(kind[1:]) // 8))
    old = RNG.integers(0, 100, 5).astype(dtype)
    given = RNG.integers(0, 1000, 64).astype(dtype)
    final, returned = atomic(
        f"atom.{space}.{op}.{kind} %d, [@], %b;", kind, old, given, space=space, policy=policy
    )
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[op]
    for cell in range(5):
        assert final[cell] == function.reduce(np.concatenate([[old[cell]], given[cell::5]]))
    if (
        op == "add"
    ):  # each returned value plus its operand is some later value: all distinct sums chain
        for cell in range(5):
            steps = sorted(
                (int(r), int(g)) for r, g in zip(returned[cell::5], given[cell::5], strict=True)
            )
            at = int(old[cell])
            for r, g in sorted(steps):
                assert r >= at or g == 0
            assert max(r + g for r, g in steps) == final[cell]


@pytest.mark.parametrize("kind", ["b32", "b64"])
@pytest.mark.parametrize("op", ["and", "or", "xor", "exch"])
def test_bitwise_atomics(op, kind):
    dtype = f"u{int(kind[1:]) // 8}"
    old, given = RNG.integers(0, 2**31, 3).astype(dtype), RNG.integers(0, 2**31, 32).astype(dtype)
    final, returned = atomic(f"atom.relaxed.gpu.global.{op}.{kind} %d, [@], %b;", kind, old, given)
    for cell in range(3):
        if op == "exch":
            chain = [old[cell], *given[cell::3]]
            np.testing.assert_array_equal(sorted(returned[cell::3]), sorted(chain[:-1]))
            assert final[cell] == chain[-1]
        else:
            function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
            assert final[cell] == function.reduce(np.concatenate([[old[cell]], given[cell::3]]))


def test_inc_dec_wrap():
    final, returned = atomic(
        "atom.global.inc.u32 %d, [@], %c;", "u32", np.zeros(1, "u4"), np.zeros(32, "u4")
    )
    assert final[0] == 32 % 8
    np.testing.assert_array_equal(sorted(returned), sorted(np.arange(32) % 8))
    final, _ = atomic(
        "atom.global.dec.u32 %d, [@], %c;", "u32", np.array([2], "u4"), np.zeros(5, "u4")
    )
    assert final[0] == 5  # 2 1 0 7 6 5


def test_cas_succeeds_once():
    text = "atom.global.cas.b32 %d, [@], %c, %b;"
    final, returned = atomic(text, "b32", np.array([7, 8], "u4"), np.arange(100, 132, dtype="u4"))
    assert final[0] == 100
    assert final[1] == 8
    assert (returned[::2] == 7).sum() == 1
    final, _ = atomic(
        "atom.global.cas.b64 %d, [@], %c, %b;",
        "b64",
        np.array([7], "u8"),
        np.arange(9, 13, dtype="u8"),
    )
    assert final[0] == 9


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("f32", "f4"), ("f64", "f8"), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)],
)
def test_float_add(kind, dtype):
    old, given = np.arange(3).astype(dtype), np.arange(30).astype(dtype)
    op = "add.noftz" if kind in ("f16", "bf16") else "add"
    final, _ = atomic(f"red.global.{op}.{kind} [@], %b;", kind, old, given)
    np.testing.assert_array_equal(final.astype("f8"), [c + sum(range(c, 30, 3)) for c in range(3)])


def test_packed_and_vector_reductions():
    old = np.zeros(2, "u4")
    given = np.ones(32, np.float16).repeat(2).view("u4")
    final, _ = atomic("red.global.add.noftz.f16x2 [@], %b;", "b32", old, given)
    np.testing.assert_array_equal(final.view(np.float16), [16.0] * 4)
    memory = DeviceMemory()
    at = memory.allocate(16, np.zeros(4, "f4"))
    ptx = """.version 8.7
    .target sm_90a
    .address_size 64
    .visible .entry k(.param .u64 p0) { .reg .b64 %a; .reg .f32 %x; ld.param.u64 %a, [p0];
    mov.f32 %x, 0f3F800000;
    red.global.add.v4.f32 [%a], {%x, %x, 0f40000000, 0f00000000}; }
    """
    ptx = "\n".join(line.strip() for line in ptx.splitlines())
    emulate([KernelLaunch(ptx=ptx, entry="k", grid=(2,), block=(32,), args=[at], memory=memory)])
    assert memory.read(at, "f4", 4).tolist() == [64.0, 64.0, 128.0, 0.0]


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_spin_lock_on_an_exchange(policy):
    body = """
    AGAIN: atom.global.exch.b32 %d, [@], 1; setp.ne.u32 %p, %d, 0; @%p bra AGAIN;
    ld.global.u32 %v, [%at+4]; add.u32 %v, %v, %b; st.global.u32 [%at+4], %v; membar.gl;
    atom.global.exch.b32 %d, [@], 0;
    """
    final, _ = atomic(
        body,
        "b32",
        np.zeros(2, "u4"),
        np.arange(32, dtype="u4"),
        cells=1,
        policy=policy,
        declare=".reg .pred %p;",
    )
    assert final.tolist() == [0, sum(range(32))]


@pytest.mark.parametrize("name", ["add.v2.f32", "v2.f32.add"])
def test_vectors_in_either_order_of_the_name(name):
    body = f"""
    ld.param.u64 %at, [p0]; and.b32 %n, %i, -2; mul.wide.u32 %o, %n, 4; add.s64 %at, %at, %o;
    atom.global.{name} {{%x, %y}}, [%at], {{0f3F800000, 0f40000000}};
    bar.sync 0; ld.global.b32 %d, [%at];
    """
    old = np.arange(32, dtype=np.float32)
    got = evaluate(body, [old], np.float32, declare=".reg .b32 %n, %x, %y; .reg .b64 %o;")
    np.testing.assert_array_equal(got, old // 2 * 2 + 2)  # two lanes a pair
