"""mma.sync, ldmatrix, stmatrix and movmatrix executed from PTX text."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gemmjit.emulator.executor import KernelLaunch, emulate
from gemmjit.emulator.faults import MemoryFault, UnknownInstruction
from gemmjit.emulator.memory import DeviceMemory
from gemmjit.emulator.mma import mma_sync

HEADER = ".version 8.7\n.target {target}\n.address_size 64\n"


def kernel(body, registers, params, *, target="sm_90a", shared=0):
    """PTX of an entry `k` whose parameters are 64-bit pointers %p0, %p1, ..."""
    names = [f"param_{i}" for i in range(params)]
    declared = ", ".join(f".param .u64 {name}" for name in names)
    loads = "\n".join(f"ld.param.u64 %p{i}, [{name}];" for i, name in enumerate(names))
    storage = f".shared .align 128 .b8 smem[{shared}];" if shared else ""
    return f"""{HEADER.format(target=target)}
.visible .entry k({declared})
{{
{storage}
.reg .b64 %p<{params + 1}>; .reg .b64 %at<8>; .reg .b32 %tid, %lane, %s<8>;
{registers}
{loads}
mov.u32 %tid, %tid.x;
{body}
ret;
}}
"""


def run(ptx, arrays, out_words, *, threads=64, blocks=1):
    """Execute and return the words of the last parameter's buffer."""
    memory = DeviceMemory()
    pointers = [memory.allocate(a.nbytes, a) for a in arrays]
    out = memory.allocate(4 * out_words)
    emulate(
        [KernelLaunch(ptx=ptx, entry="k", grid=(blocks,), block=(threads,),
                      args=[*pointers, out], memory=memory)]
    )  # fmt: skip
    return memory.read(out, np.uint32, out_words)


def moves(opcode, pointer, name, count, word):
    """Loads or stores of `count` words a thread at pointer + tid * count * word."""
    lines = [f"mul.wide.u32 %at0, %tid, {count * word};", f"add.s64 %at0, %at0, {pointer};"]
    for i in range(count):
        where, register = f"[%at0+{i * word}]", f"%{name}{i}"
        pair = f"{register}, {where}" if opcode == "ld" else f"{where}, {register}"
        lines.append(f"{opcode}.global.b{8 * word} {pair};")
    return "\n".join(lines)


def vector(name, count):
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


FORMS = [
    # shape, types D A B C, registers A B C D, suffix before and after the types
    ("m16n8k16", "f32.bf16.bf16.f32", (4, 2, 4, 4), "", ""),
    ("m16n8k8", "f32.bf16.bf16.f32", (2, 1, 4, 4), "", ""),
    ("m16n8k16", "f16.f16.f16.f16", (4, 2, 2, 2), "", ""),
    ("m16n8k8", "f32.f16.f16.f32", (2, 1, 4, 4), "", ""),
    ("m16n8k4", "f32.tf32.tf32.f32", (2, 1, 4, 4), "", ""),
    ("m16n8k8", "f32.tf32.tf32.f32", (4, 2, 4, 4), "", ""),
    ("m16n8k32", "f32.e4m3.e5m2.f32", (4, 2, 4, 4), "", ""),
    ("m16n8k16", "f16.e5m2.e5m2.f16", (2, 1, 2, 2), "", ""),
    ("m16n8k32", "s32.s8.u8.s32", (4, 2, 4, 4), "", ""),
    ("m16n8k32", "s32.s8.u8.s32", (4, 2, 4, 4), ".satfinite", ""),
    ("m8n8k16", "s32.u8.u8.s32", (1, 1, 2, 2), "", ""),
    ("m16n8k64", "s32.s4.s4.s32", (4, 2, 4, 4), "", ""),
    ("m8n8k32", "s32.u4.s4.s32", (1, 1, 2, 2), "", ""),
    ("m16n8k256", "s32.b1.b1.s32", (4, 2, 4, 4), "", ".xor.popc"),
    ("m8n8k128", "s32.b1.b1.s32", (1, 1, 2, 2), "", ".and.popc"),
    ("m8n8k4", "f64.f64.f64.f64", (1, 1, 2, 2), "", ".rn"),
    ("m16n8k16", "f64.f64.f64.f64", (8, 4, 4, 4), "", ""),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f[0]}{f[3]}.{f[1]}{f[4]}")
def test_mma_from_ptx(form):
    shape, types, counts, before, after = form
    d_type, a_type, b_type, c_type = types.split(".")
    word = 8 if a_type == "f64" else 4
    bits = 8 * word
    registers = "\n".join(
        f".reg .b{bits} %{name}<{count}>;" for name, count in zip("abcd", counts, strict=True)
    )
    body = "\n".join(moves("ld", f"%p{i}", "abc"[i], counts[i], word) for i in range(3))
    operands = ", ".join(vector("dabc"[i], (counts[3], *counts[:3])[i]) for i in range(4))
    body += f"\nmma.sync.aligned.{shape}.row.col{before}.{types}{after} {operands};\n"
    body += moves("st", "%p3", "d", counts[3], word)
    rng = np.random.default_rng(0)
    arrays = []
    for name, kind, count in zip("abc", (a_type, b_type, c_type), counts, strict=False):
        if kind in ("f64", "tf32") or (name == "c" and kind == "f32"):
            values = rng.integers(-9, 10, (2, 32, count)).astype(f"f{word}")
            arrays.append(values.view(np.uint64 if word == 8 else np.uint32))
        else:  # any bits, without exponents of all ones
            words = rng.integers(0, 2**32, (2, 32, count), dtype=np.uint64).astype(np.uint32)
            mask = {"bf16": 0xBFFFBFFF, "f16": 0xBFFFBFFF, "e4m3": 0xBFBFBFBF, "e5m2": 0xBFBFBFBF}
            arrays.append(words & np.uint32(mask.get(kind, 0xFFFFFFFF)))
    ptx = kernel(body, registers, 4)
    got = run(ptx, arrays, 64 * counts[3] * word // 4)
    expected = mma_sync(
        shape, a_type, b_type, c_type, d_type, *arrays,
        satfinite=bool(before), bit_op=after[1:4] if "popc" in after else None,
    )  # fmt: skip
    np.testing.assert_array_equal(got, expected.view(np.uint32).reshape(-1))


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("generic", [False, True])
def test_ldmatrix_from_ptx(num, trans, generic):
    # Thread t copies 16 bytes to row t; lane l of warp w then names row 32 w + (5 l + 3) % 32.
    where, space = ("%at2", "") if generic else ("%s1", ".shared")
    body = f"""
    mul.wide.u32 %at0, %tid, 16; add.s64 %at0, %at0, %p0;
    ld.global.v4.b32 {{%v0, %v1, %v2, %v3}}, [%at0];
    mov.u32 %s0, smem; shl.b32 %s1, %tid, 4; add.s32 %s1, %s1, %s0;
    st.shared.v4.b32 [%s1], {{%v0, %v1, %v2, %v3}};
    bar.sync 0;
    and.b32 %lane, %tid, 31; mad.lo.s32 %s2, %lane, 5, 3; and.b32 %s2, %s2, 31;
    and.b32 %s3, %tid, -32; add.s32 %s2, %s2, %s3;
    shl.b32 %s2, %s2, 4; add.s32 %s1, %s2, %s0;
    cvt.u64.u32 %at2, %s1; cvta.shared.u64 %at2, %at2;
    ldmatrix.sync.aligned.m8n8.x{num}{trans}{space}.b16 {vector("r", num)}, [{where}];
    """ + moves("st", "%p1", "r", num, 4)
    ptx = kernel(body, ".reg .b32 %v<4>; .reg .b32 %r<4>;", 2, shared=2048)
    rows = np.random.default_rng(num).integers(0, 2**16, (2, 32, 8), dtype=np.uint16)
    got = run(ptx, [rows], 64 * num).reshape(2, 32, num).view(np.uint16).reshape(2, 32, num, 2)
    for warp, lane, j, half in itertools.product(range(2), range(32), range(num), range(2)):
        along, across = 2 * (lane % 4) + half, lane // 4
        row, column = (along, across) if trans else (across, along)
        expected = rows[warp, (5 * (8 * j + row) + 3) % 32, column]
        assert got[warp, lane, j, half] == expected


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_from_ptx(num, trans):
    body = (
        moves("ld", "%p0", "r", num, 4)
        + f"""
    mov.u32 %s0, smem; shl.b32 %s1, %tid, 4; add.s32 %s1, %s1, %s0;
    mov.b32 %v0, 0; st.shared.v4.b32 [%s1], {{%v0, %v0, %v0, %v0}};
    bar.sync 0;
    stmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16 [%s1], {vector("r", num)};
    bar.sync 0;
    ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [%s1];
    """
        + moves("st", "%p1", "v", 4, 4)
    )
    ptx = kernel(body, ".reg .b32 %v<4>; .reg .b32 %r<4>;", 2, shared=1024)
    registers = np.random.default_rng(1).integers(0, 2**16, (2, 32, num, 2), dtype=np.uint16)
    got = run(ptx, [registers], 256).view(np.uint16).reshape(2, 32, 8)
    expected = np.zeros((2, 32, 8), np.uint16)
    for warp, lane, j, half in itertools.product(range(2), range(32), range(num), range(2)):
        along, across = 2 * (lane % 4) + half, lane // 4
        row, column = (along, across) if trans else (across, along)
        expected[warp, 8 * j + row, column] = registers[warp, lane, j, half]
    np.testing.assert_array_equal(got, expected)


def test_movmatrix_from_ptx():
    body = moves("ld", "%p0", "r", 1, 4)
    body += "\nmovmatrix.sync.aligned.m8n8.trans.b16 %v0, %r0;\n" + moves("st", "%p1", "v", 1, 4)
    ptx = kernel(body, ".reg .b32 %v<1>; .reg .b32 %r<1>;", 2)
    matrix = np.random.default_rng(2).integers(0, 2**16, (2, 8, 8), dtype=np.uint16)
    got = run(ptx, [matrix], 64).view(np.uint16).reshape(2, 8, 8)
    np.testing.assert_array_equal(got, matrix.swapaxes(1, 2))


@pytest.mark.parametrize(
    ("instruction", "fault", "reason"),
    [
        ("mma.sync.aligned.m16n8k4.row.col.f32.bf16.bf16.f32 {%r0,%r0,%r0,%r0}, {%r0,%r0}, "
         "{%r0}, {%r0,%r0,%r0,%r0};", UnknownInstruction, "shape"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r0,%r0,%r0,%r0}, {%r0,%r0}, "
         "{%r0,%r0}, {%r0,%r0,%r0,%r0};", UnknownInstruction, "registers"),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%s0+8];", MemoryFault, "16"),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%s0+1024];", MemoryFault, "outside"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b16 {%r0,%r0}, [%s0];",
         UnknownInstruction, "semantics"),
        ("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%s0], {%r0};", UnknownInstruction, "2"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_a_fault(instruction, fault, reason):
    body = f"mov.u32 %s0, smem;\n{instruction}"
    ptx = kernel(body, ".reg .b32 %r<1>;", 1, shared=1024)
    with pytest.raises(fault, match=reason) as caught:
        run(ptx, [], 1, threads=32)
    assert instruction.split()[0] in str(caught.value)
