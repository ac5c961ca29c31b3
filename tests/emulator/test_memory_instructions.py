"""Loads and stores of every space and width; bounds, alignment, poison, variables."""

from __future__ import annotations

import numpy as np
import pytest
from lane_programs import evaluate
from memory_programs import run

from gemmjit.emulator import DeviceMemory, KernelLaunch, emulate
from gemmjit.emulator.faults import PtxSyntaxError


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("space", ["global", "shared", "generic", "shared::cta"])
def test_vectors_of_every_width(bits, count, space):
    if bits * count > 128:
        pytest.skip("no such vector")
    size = bits // 8 * count
    data = np.random.default_rng(0).integers(0, 256, 64 * size).astype("u1")
    memory = DeviceMemory()
    source, target = memory.allocate(data.nbytes, data), memory.allocate(data.nbytes)
    names = ", ".join(f"%v{i}" for i in range(count))
    vector, vec = (f"{{{names}}}", f".v{count}") if count > 1 else (names, "")
    hold = max(bits, 16)
    via = ""
    if space != "global":
        at = "%w" if space == "generic" else "%s"
        dot = "" if space == "generic" else f".{space}"
        via = f"""
        mov.u32 %s, buffer; mad.lo.u32 %s, %i, {size}, %s;
        cvt.u64.u32 %w, %s; cvta.shared.u64 %w, %w;
        st{dot}{vec}.b{bits} [{at}], {vector};
        mov.b{hold} %v0, 0; bar.sync 0;
        ld{dot}.volatile{vec}.b{bits} {vector}, [{at}];
        """.replace(f"ld{dot}.volatile", f"ld.volatile{dot}")
    body = f"""
    .shared .align 16 .b8 buffer[{64 * size}];
    .reg .b64 %a, %b, %w; .reg .b32 %i, %s; .reg .b{hold} %v<4>;
    mov.u32 %i, %tid.x; ld.param.u64 %a, [p0]; ld.param.u64 %b, [p1];
    mad.wide.u32 %a, %i, {size}, %a; mad.wide.u32 %b, %i, {size}, %b;
    ld.global.nc.L1::no_allocate{vec}.b{bits} {vector}, [%a];
    {via}
    st.global.wb{vec}.b{bits} [%b], {vector};
    """
    run(
        body,
        args=[source, target],
        params=".param .u64 p0, .param .u64 p1",
        block=(64,),
        memory=memory,
    )
    np.testing.assert_array_equal(memory.read(target, "u1", data.nbytes), data)


def test_narrow_loads_extend():
    memory = DeviceMemory()
    data = np.array([0xF0, 0x12, 0x83, 0x7F], "u1")
    source, target = memory.allocate(64, data), memory.allocate(64)
    body = """
    .reg .b64 %a, %b, %w; .reg .b32 %r<4>; .reg .b16 %h;
    ld.param.u64 %a, [p0]; ld.param.u64 %b, [p1];
    ld.global.s8 %r0, [%a]; ld.global.u8 %r1, [%a]; ld.global.s16 %r2, [%a+2];
    ld.global.u16 %h, [%a+2];
    cvt.u32.u16 %r3, %h; ld.global.s8 %w, [%a];
    st.global.v4.u32 [%b], {%r0, %r1, %r2, %r3}; st.global.u64 [%b+16], %w;
    st.global.u8 [%b+24], %w;
    """
    run(
        body,
        args=[source, target],
        params=".param .u64 p0, .param .u64 p1",
        block=(1,),
        memory=memory,
    )
    got = memory.read(target, "i4", 4)
    assert got.tolist() == [-16, 0xF0, np.int16(0x7F83), 0x7F83]
    assert memory.read(target + 16, "i8", 1)[0] == -16
    assert memory.read(target + 24, "u1", 2).tolist() == [0xF0, 0xFF]


def test_b128_registers():
    memory = DeviceMemory()
    data = np.arange(4, dtype="u4")
    source, target = memory.allocate(16, data), memory.allocate(16)
    body = """
    .reg .b128 %q; .reg .b64 %a, %b, %lo, %hi;
    ld.param.u64 %a, [p0]; ld.param.u64 %b, [p1];
    ld.global.b128 %q, [%a]; mov.b128 {%lo, %hi}, %q; mov.b128 %q, {%hi, %lo};
    st.global.b128 [%b], %q;
    """
    run(
        body,
        args=[source, target],
        params=".param .u64 p0, .param .u64 p1",
        block=(1,),
        memory=memory,
    )
    assert memory.read(target, "u4", 4).tolist() == [2, 3, 0, 1]


def test_parameters_by_name_offset_and_pointer():
    memory = DeviceMemory()
    out = memory.allocate(32)
    body = """
    .reg .b64 %o, %q, %g; .reg .b32 %a, %b, %c; .reg .b16 %h;
    ld.param.u64 %o, [out]; ld.param.u16 %h, [small]; cvt.u32.u16 %a, %h;
    ld.param.v2.u32 {%b, %c}, [blob+8]; st.global.v2.u32 [%o], {%a, %b}; st.global.u32 [%o+8], %c;
    mov.b64 %q, blob; ld.param.u32 %a, [%q+4]; cvta.param.u64 %g, %q; ld.u32 %b, [%g+12];
    st.global.v2.u32 [%o+16], {%a, %b};
    """
    blob = np.arange(10, 14, dtype="u4")
    params = (
        ".param .u16 small, .param .align 16 .b8 blob[16], .param .u64 .ptr .global .align 16 out"
    )
    run(body, args=[7, blob, out], params=params, block=(1,), memory=memory)
    assert memory.read(out, "u4", 6).tolist()[:3] == [7, 12, 13]
    assert memory.read(out + 16, "u4", 2).tolist() == [11, 13]


def test_isspacep_and_windows():
    body = """
    .shared .align 4 .b8 s[4]; .local .align 4 .b8 l[4]; .reg .b64 %x, %y; .reg .pred %ps, %pl, %pg;
    mov.u64 %x, s; cvta.shared.u64 %y, %x; isspacep.shared %ps, %y; isspacep.local %pl, %y;
    isspacep.global %pg, %y;
    selp.u32 %d0, 1, 0, %ps; @%pl add.u32 %d0, %d0, 2; @%pg add.u32 %d0, %d0, 4;
    mov.u64 %x, l; cvta.local.u64 %y, %x; isspacep.shared %ps, %y; isspacep.local %pl, %y;
    isspacep.global %pg, %y;
    selp.u32 %d1, 1, 0, %ps; @%pl add.u32 %d1, %d1, 2; @%pg add.u32 %d1, %d1, 4;
    ld.param.u64 %y, [p0]; isspacep.shared %ps, %y; isspacep.local %pl, %y; isspacep.global %pg, %y;
    selp.u32 %d2, 1, 0, %ps; @%pl add.u32 %d2, %d2, 2; @%pg add.u32 %d2, %d2, 4;
    """
    got = evaluate(body, [], ["u4"] * 3)
    assert [int(v[0]) for v in got] == [1, 2, 4]


def test_arguments_are_checked():
    with pytest.raises(Exception, match="takes 1 parameters, got 0"):
        run(".reg .b32 %a;", params=".param .u64 p0")
    with pytest.raises(Exception, match="has 8 bytes, got 4"):
        run(".reg .b32 %a;", params=".param .u64 p0", args=[np.uint32(1)])
    with pytest.raises(PtxSyntaxError, match="entry"):
        emulate(
            [KernelLaunch(ptx=".version 8.0\n.target sm_80\n", entry="k", grid=(1,), block=(1,))]
        )
